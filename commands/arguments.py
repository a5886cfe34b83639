"""Parser from argv to a frozen options object, with one line for every mistake. No torch here."""

import contextlib
import dataclasses
import io
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TextIO, cast, runtime_checkable

import tyro

from commands.first_screen import ASKED, FirstScreen, is_fixed
from common.errors import OptionError
from common.files import text_file
from common.options import flag, require_counts
from common.text import did_you_mean
from datasets.config import DataConfig, Group, Name
from trainers.config import Device, RunConfig, load_config, set_in

if TYPE_CHECKING:
    from inference.classifier import Classifier

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
"""The first word of a command about a trained model."""


class UsageError(ValueError):
    """A command line that cannot be understood."""

    exit_code = 2


ELSEWHERE = {
    "--learning-rate": "--lr", "--lr0": "--lr", "--wd": "--weight-decay", "--batch": "--batch-size",
    "--img-size": "--image-size", "--imgsz": "--image-size", "--input-size": "--image-size",
    "--num-epochs": "--epochs", "--num-workers": "--workers", "--opt": "--optimizer", "--optim": "--optimizer",
    "--data-dir": "--data", "--data-path": "--data", "--dataset": "--data", "--arch": "--model",
    "--output": "--output-dir", "--project": "--output-dir", "--name": "--run-name", "--model-ema": "--ema-decay",
    "--labels": "--labels-per-class", "--freeze": "--trainable", "--gpu": "--device",
    "--gpus": "torchrun, a process for each GPU (docs/cluster.md); --device takes one",
    "--resume": "the command `resume RUN`", "--pretrained": "--weights", "--clip-grad": "--clip-norm",
}  # fmt: skip
"""Names that other training programs have for our options."""


Jobs = Literal["auto"] | int


@dataclasses.dataclass(frozen=True)
class SeveralRuns:
    """Options of the runs of one command: where they train, and how many at a time."""

    jobs: Jobs = "auto"
    """Number of runs to train in parallel, each in its own process. The results are the same. auto: one for
    each processor or GPU."""
    on: Literal["local", "slurm"] = "local"
    """Train on this machine, or as jobs of the Slurm queue, at most --jobs at once."""
    slurm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """sbatch options for each job, with --on slurm, such as partition=gpu gres=gpu:1 time=4:00:00."""

    def __post_init__(self) -> None:
        if self.jobs != "auto" and self.jobs < 1:
            raise UsageError(f"jobs={self.jobs} must be at least 1, or auto")
        if self.slurm and self.on != "slurm":
            raise UsageError("--slurm has options for jobs of its queue: add --on slurm")
        if wrong := [word for word in self.slurm if not re.fullmatch(r"[a-z-]+=[^\n]+", word)]:
            raise UsageError(f"slurm={wrong[0]!r} is not KEY=VALUE with a long option of sbatch, such as time=4:00:00")

    @property
    def placed(self) -> dict[str, Any]:
        """Keywords for `train_all` and `compare_arms`."""
        slurm = dict(word.split("=", 1) for word in self.slurm) if self.on == "slurm" else None
        return {"jobs": None if self.jobs == "auto" else self.jobs, "slurm": slurm}


def parse(options_class: type, argv: Sequence[str], *, prog: str, default: Any = None) -> Any:
    """Fill `options_class` from argv; all options have short flat names, whatever the nesting of the dataclasses.
    Raises UsageError: one line that names the option, the value and what would work. SystemExit: `--help` was asked for
    and answered."""
    if asked := ASKED.intersection(argv):
        from commands.help import show_help

        show_help(options_class, prog=prog, everything="--help-all" in asked)
        raise SystemExit(0)
    known, given = named(options_class), [word.split("=")[0] for word in argv if word.startswith("--")]
    for name in dict.fromkeys(name for name in given if given.count(name) > 1):
        if name == "--data":
            raise UsageError("--data is given twice: name one set of images")
        print(f"note: {name} is given twice: the last one counts", file=sys.stderr)
    if "--data" in flags(options_class, by_place=True):
        argv = images_first(argv)
    for name in given:
        if name not in known:
            ours = ELSEWHERE.get(name, name.replace("_", "-"))
            hint = f"; here it is {ours}." if ours in known or " " in ours else did_you_mean(name, known)
            if ours in {*flags(options_class, fixed=True)} and ours in {*flags(RunConfig, fixed=True)}:
                hint = "; it is set in a file for `train --config`, or from Python."
            raise UsageError(f"unknown option {name}{hint} See {prog} --help")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                options_class,
                prog=prog,
                args=list(argv),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
                **({} if default is None else {"default": default}),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(one_line(complaint.getvalue())) from None
    except OptionError as error:  # a value that an options class refuses
        raise UsageError(str(error)) from error


def named(options_class: type) -> list[str]:
    """List the options that a command line may name; of those that are given by their place `--data` alone."""
    by_place = {*flags(options_class, by_place=True)} - {"--data"}
    return [name for name in flags(options_class) if name not in by_place]


def images_first(argv: Sequence[str]) -> Sequence[str]:
    """Read `check --data FOLDER`, as `train` has it, like `check FOLDER`."""
    words = [part for word in argv for part in (("--data", word[7:]) if word.startswith("--data=") else (word,))]
    at = words.index("--data") if "--data" in words else len(words)
    return [*words[at + 1 : at + 2], *words[:at], *words[at + 2 :]]


class Command(Protocol):
    """A module of `COMMANDS`, with options like the others'."""

    Options: type
    """The dataclass that `main` takes, filled from the words of the command line."""

    def main(self, options: object) -> int:
        """Do what the command is for. The exit code."""


@runtime_checkable
class ParsingCommand(Protocol):
    """A module of `COMMANDS` that reads its words itself."""

    def parse(self, argv: Sequence[str], *, prog: str) -> object:
        """The options, which `main` takes."""

    def main(self, options: object) -> int:
        """Do what the command is for. The exit code."""


def options_of(command: Command | ParsingCommand, argv: Sequence[str], *, prog: str) -> object:
    """Parse what `main` of a command takes."""
    if isinstance(command, ParsingCommand):
        return command.parse(argv, prog=prog)
    return parse(command.Options, argv, prog=prog)


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes its place when it is whole; its folder is made."""
    with writing(path), text_file(path) as file:
        yield file


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes this file; its folder is made. Raises UsageError: it cannot be written."""
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

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|PATH")]
    """Images: a folder, a CSV or TSV table, a zip, tar shards (FOLDER/*.tar), or a built-in set."""
    _: dataclasses.KW_ONLY
    data_root: Path = Path("data")
    """Folder where built-in sets are found, or downloaded to."""
    path_column: Name = None
    """Column of a table that names the image files, as for train."""
    label_column: Name = None
    """Column of a table that names the classes, as for train."""
    group: Group = None
    """Images that belong together, as for train: COLUMN of a table, `folder`, or a REGEX for the path."""

    @property
    def images(self) -> DataConfig:
        """These images as training takes them."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(ImagesOptions)}
        return DataConfig(own.pop("data"), own.pop("data_root"), **own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsOptions:
    """A trained model, and what its name or file does not say."""

    run: RunName
    """Model to open: a run directory, `latest`, an export (.safetensors, .onnx), a weights file (with --model),
    or hf:ID."""
    model: Name = None
    """Model that a weights file from elsewhere belongs to."""
    class_names: Path | None = None
    """Text file with one class name per line, for weights that carry none."""
    output_dir: Path = Path("runs")
    """Folder in which `latest` is looked for."""

    def open(self, source: str | None = None, **options: Any) -> "Classifier":
        """Open `run`, or another such name; `options` go to `open_classifier`."""
        from inference.classifier import open_classifier

        own = {name: vars(self)[name] for name in ("model", "class_names", "output_dir")}
        return open_classifier(source or self.run, **own, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(WeightsOptions):
    """A trained model, what its name does not say, and where it runs."""

    device: Device = "auto"

    def open(self, source: str | None = None, **options: Any) -> "Classifier":
        return super().open(source, device=self.device, **options)


@dataclasses.dataclass(frozen=True)
class TrainOptions(SeveralRuns, RunConfig, FirstScreen):
    """Train one model on a set of images, from scratch or from pretrained weights.

    The result is a run directory that evaluate, predict, explain, export and serve open, and that TensorBoard shows.
    """

    FIRST = (
        "minutes", "model", "weights", "trainable", "image-size", "epochs", "batch-size", "lr", "augment", "patience",
        "seeds", "group", "recipe", "config", "device", "output-dir", "run-name", "dry-run",
    )  # fmt: skip
    EXAMPLES = (
        ("path/to/images --minutes 5", "The best model for a folder of class folders that five minutes allow."),
        ("path/to/images --model vit_b_16 --trainable head", "A linear probe: ImageNet weights, a new last layer."),
        ("digits --epochs 20", "A small ViT from scratch on a built-in set, in under a minute."),
    )
    PAGE = "docs/train.md"

    images: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|PATH")] = None
    """Images to train on: a folder of class folders, a table, a zip, or a built-in set. The same as --data."""
    config: Path | None = None
    """JSON or TOML file of options, such as a run's config.json. The command line overrides it."""
    recipe: Literal["scratch-small", "finetune-small", "finetune-sgd", "finetune-adamw-llrd", "linear-probe"] | None = (
        None
    )
    """Named set of options, each with its source; --config and the command line override it. See docs/train.md."""
    minutes: float | None = None
    """Time budget in minutes for the whole command. Measures the speed first, then picks epochs (and model and image
    size, if not given) to fit."""
    with_: Annotated[tuple[str, ...], tyro.conf.arg(name="with", metavar="NAME[@SIZE]")] = ()
    """Pretrained networks that a plan uses besides those on this machine: timm:NAME or hf:ID_OR_FOLDER, with the side
    of their input in pixels after @. They may be downloaded."""
    seeds: int = 1
    """Repeat with this many seeds; report mean and standard deviation."""
    dry_run: bool = False
    """Run two batches through every stage, print the time per step, and delete everything."""
    find_lr: bool = False
    """Learning-rate finder: raise the rate step by step until the loss diverges; draw the curve and suggest a rate."""
    given: Annotated[tuple[str, ...], tyro.conf.Fixed] = ()
    """Options that are set, on the command line or in a file, such as `--lr`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_counts(self, "seeds")

    @property
    def run(self) -> RunConfig:
        """The options of the run itself."""
        return RunConfig(**sections(self))


def parse_train_options(argv: Sequence[str], *, prog: str) -> TrainOptions:
    """Everything `train` is told: defaults < `--recipe NAME` < `--config FILE` < command line."""
    options: TrainOptions = parse(TrainOptions, argv, prog=prog)
    if options.images is not None and any(word.split("=")[0] == "--data" for word in argv):
        raise UsageError(f"{options.images} and --data {options.data.source}: one set of images a run")
    if options.minutes is not None and not options.minutes > 0:
        raise UsageError(f"--minutes {options.minutes:g} must be greater than 0")
    if options.minutes is not None and options.seeds > 1:
        raise UsageError("--minutes plans one run; with --seeds give --epochs")
    given = [word.split("=")[0] for word in argv if word.startswith("--")]
    if options.config is not None or options.recipe is not None:
        base = RunConfig()
        if options.recipe is not None:
            from trainers.options.recipes import recipe_config

            base = recipe_config(options.recipe)
        if options.config is not None:
            base = load_config(options.config, base=base)
            given += set_in(options.config)
        if options.minutes is not None:
            base = base.changed(train={"epochs": None, "warmup_epochs": None})
        options = parse(TrainOptions, argv, prog=prog, default=TrainOptions(**sections(base)))
    if options.images is not None:
        options = dataclasses.replace(options, data=dataclasses.replace(options.data, source=options.images))
    return dataclasses.replace(options, images=None, given=tuple(dict.fromkeys(given)))


def sections(config: RunConfig) -> dict[str, Any]:
    """The parts of a run's options, without what a command adds to them."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}


def flags(options_class: type, *, by_place: bool = False, fixed: bool = False) -> Iterator[str]:
    """Every `--option` of a dataclass tree; or the names of those that are given by their place, without a name; or of
    those that no command line sets."""
    hints = typing.get_type_hints(options_class, include_extras=True)
    for field in dataclasses.fields(options_class):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from flags(cast(type, hint), by_place=by_place, fixed=fixed)
        elif is_fixed(hint) is not fixed:
            continue
        elif not by_place or tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            yield f"--{flag(options_class, field.name)}"


WORDING = (
    (r"^Missing from (.*?): (\S+) (.*?) \(required\)$", r"\1 needs \2: \3"),
    (r"^Missing value for argument '(.*?)'\..*$", r"\1 needs a value"),
    (r"^Unrecognized options: (.*)$", r"\1: one word too many"),
    (r"^Error parsing (--\S+): invalid literal for int\(\) with base 10: (.*)$", r"\1 \2 is not a whole number"),
    (r"^Error parsing (--\S+): no type matching .*FLOAT.* from \[(.*)\]\.?$", r"\1 \2: not a number"),
    (r"^Error parsing (?!-)[\w.]+: ", ""),
)
"""tyro's complaints, and ours."""


def one_line(box: str) -> str:
    """The message in one of tyro's framed complaints, without the frame and the hints below its rule."""
    lines = [line.strip("│ ").strip() for line in box.splitlines()[1:-1]]
    lines = [*dropwhile(is_rule, lines)]
    text = re.sub(r"\s+", " ", " ".join(takewhile(lambda line: not is_rule(line), lines)))
    for theirs, ours in WORDING:
        text = re.sub(theirs, ours, text)
    return text or "the command line could not be understood"


def is_rule(line: str) -> bool:
    """Return whether a line is a divider: of hyphens where a terminal knows no other signs."""
    return set(line) <= set("─-")
