"""Options of the images: their source, their splits, and how they are fed. No torch here: `python main.py --help`
imports this file."""

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from common.errors import OptionError
from common.options import Hparam, Movable, flag, operand, require, require_counts

DATASETS = (
    "digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "hymenoptera", "dog_breed", "oxford_pets", "flowers102",
)  # fmt: skip
"""The built-in sets; `READERS` in datasets/sources/builtin.py reads them."""
HUB_PREFIX = "hf:"
"""Beginning of the name of a set on Hugging Face's hub: hf:ORG/NAME."""
IMBALANCE = 10
"""Ratio of the largest class to the smallest one from which classes are unequal."""


class Columns(NamedTuple):
    """Names of the columns of a person's own table; None: the usual ones."""

    path: str | None = None
    label: str | None = None
    group: str | None = None
    """Value of `--group`, which may be something else than a column."""


USUAL_COLUMNS = Columns()
FOLDER = "folder"
"""The value of `--group` that takes folders for groups."""
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
"""The type of an option that names something; `--help` shows the word."""
Group = Annotated[str | None, tyro.conf.arg(metavar="COLUMN|folder|REGEX")]
"""The type of the option that says which images belong together."""


def column_of(option: str | None) -> str | None:
    """Return the column or field that `--group` may name; None where it can only be something else."""
    return option if option and option != FOLDER and re.fullmatch(r"[\w -]+", option) else None


def by_column(option: str) -> str:
    """Return the words for groups of a column."""
    return f"by the column {option.strip().lower()!r}"


def data_name(source: str) -> str:
    """Return the name of a data set for paths: the last part without its extension; of a pattern its folder's. Bytes of
    a name that are no UTF-8, which TensorBoard could not open, are underscores."""
    path = Path(source)
    path = path if path.name.strip(".") else Path(os.path.abspath(path))  # . and .. are no names
    stem = path.absolute().parent.name if "*" in path.name else path.stem
    return re.sub("[\ud800-\udfff]", "_", stem) if stem.strip(".") else "data"


def data_place(source: str) -> str:
    """Return what distinguishes a data set from others of its name: its absolute path, links followed; of one that is
    no file, such as a built-in one, its name."""
    path = os.path.expanduser(source)
    is_file = source not in DATASETS and (os.path.lexists(path) or "*" in path)
    return os.path.realpath(path) if is_file else source


@dataclass(frozen=True)
class DataConfig:
    """A labelled set of images."""

    source: Annotated[str, Hparam, Movable, tyro.conf.arg(name="data", metavar="NAME|PATH")] = "digits"
    """Images: a built-in set, or the path of your own: a folder of class folders, a CSV table (path,label[,split]), a
    zip of either, tar shards ('FOLDER/*.tar'), or hf:ORG/NAME of the Hugging Face hub."""
    root: Annotated[Path, Movable, tyro.conf.arg(name="data-root")] = Path("data")
    """Folder where built-in sets are found, or downloaded to."""
    path_column: Name = None
    """Column of a table that names the image files. Default: the usual names, such as path, id, image or filename."""
    label_column: Name = None
    """Column of a table that names the classes. Default: the usual names, such as label, class, breed or category."""
    group: Group = None
    """Keep images that belong together, such as those of one patient, animal or video, in one part (train, val, test or
    fold). COLUMN of a table; `folder`, the one below the class or above it; or a REGEX that finds the group's name in
    the path, such as '(p[0-9]+)_': its first parenthesis, else all that it matches."""
    exclude: Annotated[Path | None, Movable] = None
    """CSV file; the images in its `path` column are left out, such as the errors that `check` found."""
    split: Annotated[Path | None, Movable] = None
    """Reuse the split in this `split.csv`, of an earlier run or your own, instead of drawing one."""
    grow: bool = False
    """With --split: add images that the table does not have, each to the part of its group or where images are missing.
    Without it they are left out."""
    split_seed: int = 0
    """Seed of the split, if the set brings none; independent of --seed."""
    val_fraction: float | None = None
    """Share of the images held out for validation, if the set has no validation split. Default: 0.1 for digits and for
    sets with a test split, else 0.15."""
    test_fraction: float | None = None
    """Share of the images held out for the test, if the set has no split. Default: 0.2 for digits, else 0.15."""
    folds: int | None = None
    """Cross-validation: cut all images but the test split into this many folds, and hold out each in turn."""
    fold: int | None = None
    """Train only this one of the folds, 1 to --folds: it is the validation split, the others train."""
    labels_per_class: int | None = None
    """Train on at most this many images of each class; validation and test stay whole."""
    fraction: float | None = None
    """Train on this share of each class; validation and test stay whole."""
    balance: Literal["none", "sampler", "loss"] = "none"
    """Class imbalance: sampler draws every class equally often; loss weights each class by 1 / its size."""
    augment: Annotated[Literal["auto", "none", "light", "standard", "strong"], Hparam] = "auto"
    """Data augmentation preset. none. light: shift or crop, mirror. standard: also RandAugment, MixUp and CutMix.
    strong: more of it, and random erasing. auto: by model and start, from trainers/options/defaults.toml."""
    mirror: Literal["auto", "yes", "no"] = "auto"
    """Mirror training images at random (horizontal flips). auto: not for digits and mnist, yes for all others."""
    allow_seen: bool = False
    """Also score validation and test images that the starting weights were trained on, and say so in every report.
    Default: they are left out of the scores."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Unreadable images: fail names the first and stops; skip finds and leaves them out before training."""
    cache: Literal["auto", "on", "off"] = "auto"
    """Keep decoded images in memory. auto: if they fit into a third of the free memory."""
    batch_size: Annotated[int | None, Hparam] = None
    """Images per optimizer step. Default: the model's own."""
    workers: Annotated[int | None, Movable] = None
    """Loader processes. Default: chosen from the data and the processor."""

    def __post_init__(self) -> None:
        for name in ("root", "exclude", "split"):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, Path(value))
        if not isinstance(self.source, str):
            object.__setattr__(self, "source", os.fspath(self.source))
        require(self, "lie in (0, 1)", lambda share: 0 < share < 1, "val_fraction")
        require(self, "lie in [0, 1)", lambda share: 0 <= share < 1, "test_fraction")
        require(self, "lie in (0, 1]", lambda share: 0 < share <= 1, "fraction")
        require(self, "be at least 2", lambda count: count >= 2, "folds")
        require(self, "be 0 or more", lambda count: count >= 0, "workers")
        require_counts(self, "labels_per_class", "batch_size")
        val, test = self.val_fraction, self.test_fraction
        if (val or 0) + (test or 0) >= 1:
            raise OptionError(f"val_fraction={val} + test_fraction={test} leave nothing to train on")
        if self.fraction is not None and self.labels_per_class is not None:
            raise OptionError("fraction and labels_per_class both choose the training images; give one of them")
        if self.fold is not None and self.folds is None:
            raise OptionError(f"fold={self.fold} needs folds, the number of all folds")
        if self.fold is not None and not 1 <= self.fold <= (self.folds or 0):
            raise OptionError(f"fold={self.fold} must lie in 1 to {self.folds}")
        if self.grow and self.split is None:
            raise OptionError("grow adds new images to a split; name its table with split")
        if self.folds is not None and self.split is not None:
            raise OptionError("folds draw their own split; leave out split")

    @property
    def may_mirror(self) -> bool:
        """True if a mirrored image keeps its label."""
        return self.mirror == "yes" or (self.mirror == "auto" and self.source not in ("digits", "mnist"))


def words(data: DataConfig) -> list[object]:
    """Return the options that name these images as words of the command line: the set, and what differs from the
    defaults."""
    given: list[object] = []
    for field in dataclasses.fields(data):
        value, option = getattr(data, field.name), f"--{flag(DataConfig, field.name)}"
        if field.name == "source":
            value = operand(data.source)
        elif value == field.default:
            continue
        if value is True:
            given.append(option)
        elif isinstance(value, str) and value.startswith("-"):
            given.append(f"{option}={value}")
        else:
            given += [option, value]
    return given


def named_set(data: DataConfig) -> list[object]:
    """Return the words that follow `check` and other commands about images, which know nothing of splits and training:
    the set and the options that say how it is read."""
    return words(DataConfig(data.source, data.root, data.path_column, data.label_column, data.group))[1:]
