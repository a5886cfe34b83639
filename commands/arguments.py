"""Options that several commands have, and those of `train`. No torch here."""

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TextIO

from commands.parser import ManyOptions, UsageError, by_sections, filled
from common.files import text_file
from common.options import Arg, Option, Positional, require, require_counts, require_finite
from common.text import did_you_mean, pluralise, printable, wrapped
from datasets.config import DataConfig, Group, Name
from trainers.config import Device, RunConfig, load_config
from trainers.options.recipes import RECIPES, recipe_config

if TYPE_CHECKING:
    from inference.classifier import Classifier

RunName = Annotated[str, Positional, Arg(metavar="RUN")]
"""The first word of a command about a trained model."""


DEFAULT_MINUTES = 15.0
"""Time of `train FOLDER` and `compare --data FOLDER`: enough for a useful answer, and not too long to wait for it."""


@dataclasses.dataclass(frozen=True)
class SeveralRuns:
    """Options of several runs: where they train, and how many at a time."""

    jobs: Literal["auto"] | int = "auto"
    """Train this many runs in parallel, each in its own process. The results are the same. auto: one for each processor
    or GPU."""
    on: Annotated[tuple[str, ...], Arg(metavar="slurm")] = ()
    """Train as jobs of a Slurm queue, with options of sbatch. Such as: slurm partition=gpu gres=gpu:1 time=4:00:00. At
    most --jobs at once. Default: this machine."""

    def __post_init__(self) -> None:
        if self.jobs != "auto" and self.jobs < 1:
            raise UsageError(f"jobs={self.jobs} must be at least 1, or auto")
        if self.on and self.on[0] != "slurm":
            raise UsageError(f"on={self.on[0]!r} must be slurm, then options of sbatch, such as time=4:00:00")
        if wrong := [word for word in self.on[1:] if not re.fullmatch(r"[a-z-]+=[^\n]+", word)]:
            raise UsageError(f"--on slurm {wrong[0]!r} is not KEY=VALUE with a long option of sbatch: time=4:00:00")

    @property
    def placed(self) -> dict[str, Any]:
        """Keywords for `train_all` and `compare_arms`."""
        slurm = dict(word.split("=", 1) for word in self.on[1:]) if self.on else None
        return {"jobs": None if self.jobs == "auto" else self.jobs, "slurm": slurm}


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears when it is whole, and make its folder.

    Raises UsageError: it cannot be written."""
    with writing(path), text_file(path) as file:
        yield file


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file that the block writes. Raises UsageError: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.filename is None or Path(error.filename) not in (path, *path.parents):
            raise
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --output") from error


@dataclasses.dataclass(frozen=True)
class ImagesOptions:
    """A set of images, as training reads it."""

    data: Annotated[str, Positional, Arg(metavar="NAME|PATH")]
    """Name the images: a folder, a table, or a built-in set. A folder has a folder for each class. Also a zip, or tar
    shards (FOLDER/*.tar)."""
    _: dataclasses.KW_ONLY
    data_root: Path = Path("data")
    """Find built-in sets here, or download them to it."""
    path_column: Name = None
    """Name the table's column of image files, as for train."""
    label_column: Name = None
    """Name the table's column of classes, as for train."""
    group: Group = None
    """Keep images together, as for train. COLUMN of a table, `folder`, or a REGEX for the path."""

    @property
    def images(self) -> DataConfig:
        """These images as training takes them."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(ImagesOptions)}
        return DataConfig(own.pop("data"), own.pop("data_root"), **own)


def refuse_place(run: str, output_dir: Path) -> None:
    """Raise UsageError where a folder to look for `latest` is of no use."""
    if run != "latest" and output_dir != Path("runs"):
        raise UsageError(f"--output-dir is where `latest` is looked for, and {run} says itself where it is")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsOptions:
    """A trained model, and what its name or file does not say."""

    run: RunName
    """Name the model: a run, `latest`, an export or a file. Exports are .safetensors and .onnx; a file of weights needs
    --model; hf:ID is a model of the Hugging Face hub."""
    model: Name = None
    """Name the model of a weights file from elsewhere."""
    class_names: Path | None = None
    """Read class names from this text file, one a line. For weights that carry none."""
    output_dir: Path = Path("runs")
    """Look for `latest` in this folder."""

    def __post_init__(self) -> None:
        refuse_place(self.run, self.output_dir)

    def open(self, source: str | None = None, **options: Any) -> "Classifier":
        """Open `run`, or another such name; `options` go to `open_classifier`.

        A run that is not finished is a note."""
        from inference.classifier import open_classifier

        own = {name: vars(self)[name] for name in ("model", "class_names", "output_dir")}
        classifier = open_classifier(source or self.run, **own, **options)
        if "latest" in (source, self.run):
            classes = pluralise(len(classifier.class_names), "class")
            print(wrapped(f"model: {printable(str(classifier.run))}, {classes}"), file=sys.stderr)
        if classifier.run is not None and (note := classifier.run.unfinished):
            print(wrapped(f"note: {note}"), file=sys.stderr)
        return classifier


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(WeightsOptions):
    """A trained model, what its name does not say, and where it runs."""

    device: Device = "auto"

    def open(self, source: str | None = None, **options: Any) -> "Classifier":
        return super().open(source, device=self.device, **options)


@dataclasses.dataclass(frozen=True)
class TrainOptions(SeveralRuns, RunConfig, ManyOptions):
    """Train a model on a set of images.

    The result is a run directory that evaluate, predict, explain, export and serve open, and that TensorBoard shows.
    """

    FIRST = (
        "data", "minutes", "model", "weights", "trainable", "image-size", "epochs", "lr", "augment", "seeds",
        "group", "config", "output-dir",
    )  # fmt: skip
    EXAMPLES = (
        "path/to/images --minutes 5",
        "path/to/images --model vit_b_16 --trainable head",
        "digits --epochs 20",
    )

    config: Annotated[str | None, Arg(metavar="FILE")] = None
    """Read options from a TOML or JSON file, or a recipe. A run's config.json is such a file. Recipes: scratch-small,
    finetune-small, finetune-sgd, finetune-adamw-llrd. The command line overrides both."""
    minutes: float | None = None
    """Plan the whole command for this many minutes. The speed is measured first; then the epochs are chosen, and the
    model and the image size, if they are not given."""
    with_: Annotated[tuple[str, ...], Arg(name="with", metavar="NAME[@SIZE]")] = ()
    """Use these pretrained networks in a plan, too. timm:NAME or hf:ID_OR_FOLDER, with the side of their input in
    pixels after @. They may be downloaded."""
    seeds: int = 1
    """Repeat the run with this many seeds. Reports mean and standard deviation."""
    dry_run: bool = False
    """Try two batches in every stage and delete all. Prints the time per step."""
    find_lr: bool = False
    """Search for a learning rate. It rises step by step until the loss diverges; a curve is drawn and a rate
    suggested."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "seeds")
        require_finite(self)
        require(self, "be greater than 0", lambda time: time > 0, "minutes")
        if self.minutes is not None and self.seeds > 1:
            raise UsageError("--minutes plans one run; with --seeds give --epochs")

    @classmethod
    def from_given(cls, given: Mapping[Option, Any]) -> Self:
        """Fill all: defaults < `--config` < command line."""
        options = filled(cls, {option: value for option, value in given.items() if not option.section})
        base, line = RunConfig(), by_sections(given)
        if options.config in RECIPES:
            base = recipe_config(options.config)
        elif options.config is not None:
            file = Path(options.config)
            if not file.exists():
                hint = f"{did_you_mean(options.config, RECIPES)} Recipes: {', '.join(RECIPES)}"
                raise UsageError(f"config {options.config!r} is neither a file nor a recipe{hint}")
            base = load_config(file, line)
        if options.minutes is not None:
            lengths = {"epochs", "warmup_epochs"} - {*line.get("train", {})}
            base = left_out(base, sorted(lengths), options.config, by="--minutes")
        return filled(cls, given, cls(**sections(base)))

    @property
    def run(self) -> RunConfig:
        """The options of the run itself."""
        return RunConfig(**sections(self))


def left_out(base: RunConfig, names: Sequence[str], file: object, *, by: str) -> RunConfig:
    """Return the options of a file without those that the command line sets."""
    lengths = [name for name in names if getattr(base.train, name) is not None]
    if lengths:
        print(
            f"note: {by} sets the length of the training: no effect has {', '.join(lengths)} of {file}", file=sys.stderr
        )
    return base.changed(train=dict.fromkeys(lengths))


def sections(config: RunConfig) -> dict[str, Any]:
    """Return the parts of a run's options, without what a command adds to them."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}
