"""Options of the images: their source, their splits, and how they are fed. No torch here: `python main.py --help`
imports this file."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from common.errors import OptionError
from common.options import (
    Arg,
    ChoosesImages,
    ForAllArms,
    Hparam,
    InFiles,
    Movable,
    Neutral,
    Training,
    operand,
    options_of,
    require,
    require_counts,
    require_finite,
    take_types,
)
from datasets.built_in import BUILT_IN

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
Name = Annotated[str | None, Arg(metavar="NAME")]
"""The type of an option that names something; `--help` shows the word."""
Group = Annotated[str | None, Arg(metavar="RULE")]
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
    is_file = source not in BUILT_IN and (os.path.lexists(path) or "*" in path)
    return os.path.realpath(path) if is_file else source


@dataclass(frozen=True)
class DataConfig:
    """A labelled set of images."""

    source: Annotated[str, Hparam, Movable, ForAllArms, ChoosesImages, Arg(name="data", metavar="NAME|PATH")] = "digits"
    """Name the images: a folder, a table, or a built-in set. A folder has a folder for each class. Also a CSV table
    (path,label[,split]), a zip of either, tar shards ('FOLDER/*.tar'), or hf:ORG/NAME of the Hugging Face hub."""
    root: Annotated[Path, Movable, ForAllArms, Neutral, Arg(name="data-root")] = Path("data")
    """Find built-in sets in this folder, or download them to it."""
    path_column: Annotated[Name, ForAllArms, ChoosesImages] = None
    """Name the column of a table with the image files. Default: the usual names, such as path, id, image or
    filename."""
    label_column: Annotated[Name, ForAllArms, ChoosesImages] = None
    """Name the column of a table with the classes. Default: the usual names, such as label, class, breed or
    category."""
    group: Annotated[Group, ForAllArms] = None
    """Keep images of one group, such as a patient, in one split. COLUMN of a table; `folder`, the one below the
    class or above it; or a REGEX that finds the group's name in the path, such as '(p[0-9]+)_': its first parenthesis,
    else all that it matches. Parts are train, val, test, and folds."""
    exclude: Annotated[Path | None, Movable, ForAllArms, ChoosesImages] = None
    """Leave out the images that this CSV file lists. Its column is `path`; `check` writes such a file."""
    split: Annotated[Path | None, Movable, ForAllArms, ChoosesImages] = None
    """Use the split of this `split.csv`, of an earlier run or your own. Else one is drawn."""
    grow: bool = False
    """Add images that the table of --split does not have. Each goes to the split of its group or where images are
    missing. Without it they are left out."""
    split_seed: Annotated[int, InFiles, ChoosesImages] = 0
    """Seed the split, if the set brings none. Independent of --seed."""
    val_fraction: Annotated[float | None, ForAllArms, ChoosesImages] = None
    """Hold out this share of the images for validation. If the set has no validation split. Default: 0.1 for digits and
    for sets with a test split, else 0.15."""
    test_fraction: Annotated[float | None, ForAllArms, ChoosesImages] = None
    """Hold out this share of the images for the test. If the set has no split. Default: 0.2 for digits, else 0.15."""
    folds: int | None = None
    """Cross-validate: cut all but the test images into this many folds. Each is held out in turn."""
    fold: Annotated[int | None, InFiles] = None
    """Train only this one of the folds, 1 to --folds. It is the validation split, the others train."""
    labels_per_class: Annotated[int | None, ChoosesImages] = None
    """Train on at most this many images of each class. Validation and test stay whole."""
    fraction: Annotated[float | None, InFiles, ChoosesImages] = None
    """Train on this share of each class. Validation and test stay whole."""
    balance: Literal["none", "sampler", "loss"] = "none"
    """Balance the classes: sampler draws each equally often, loss weights each. The weights are 1 / the size of a
    class."""
    augment: Annotated[
        Literal["auto", "none", "light", "standard", "strong"], Hparam, Training, Arg(metavar="PRESET")
    ] = "auto"
    """Choose a preset of data augmentation. none. light: shift or crop, mirror. standard: also RandAugment, MixUp and
    CutMix. strong: more of it, and random erasing. auto: by model and start, from trainers/options/defaults.toml."""
    mirror: Literal["auto", "yes", "no"] = "auto"
    """Mirror training images at random (horizontal flips). auto: not for built-in sets of digits, yes for all
    others."""
    allow_seen: Annotated[bool, ForAllArms] = False
    """Score validation and test images that the starting weights were trained on. Every report says so. Default: they
    are left out of the scores."""
    on_bad_image: Annotated[Literal["fail", "skip"], ForAllArms, ChoosesImages] = "fail"
    """Stop at an unreadable image (fail) or leave it out (skip). Both before training."""
    cache: Annotated[Literal["auto", "on", "off"], InFiles, Neutral] = "auto"
    """Keep decoded images in memory. auto: if they fit into a third of the free memory."""
    batch_size: Annotated[int | None, Hparam, Training] = None
    """Take this many images for each optimizer step. Default: the model's own."""
    workers: Annotated[int | None, Movable, ForAllArms, Neutral] = None
    """Load images with this many processes. Default: chosen from the data and the processor."""

    def __post_init__(self) -> None:
        take_types(self)
        require_finite(self)
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
        """Return whether a mirrored image keeps its label."""
        if self.mirror == "auto":
            return self.source not in BUILT_IN or BUILT_IN[self.source].mirror
        return self.mirror == "yes"


def words(data: DataConfig) -> list[object]:
    """Return the options that name these images as words of the command line: the set, and what differs from the
    defaults."""
    given: list[object] = []
    for option in options_of(DataConfig):
        value = getattr(data, option.name)
        if option.name == "source":
            given += [option.flag, operand(data.source)]
        elif value is True:
            given.append(option.flag)
        elif isinstance(value, str) and value.startswith("-"):
            given.append(f"{option.flag}={value}")
        elif value != option.default:
            given += [option.flag, value]
    return given


def named_set(data: DataConfig) -> list[object]:
    """Return the words that follow `check` and other commands about images, which know nothing of splits and training:
    the set and the options that say how it is read."""
    return words(DataConfig(data.source, data.root, data.path_column, data.label_column, data.group))[1:]
