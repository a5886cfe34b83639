"""Options of training, and all options of a run together. No torch here: `python main.py --help` imports this file."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from common.errors import OptionError
from common.options import (
    Arg,
    ForAllArms,
    Hparam,
    Incidental,
    InFiles,
    InFits,
    InPlans,
    Movable,
    Neutral,
    Option,
    Shared,
    options_of,
    require,
    require_finite,
    take_types,
)
from common.options import (
    from_dict as from_dict,
)
from common.text import decode_text, printable
from datasets.config import DataConfig, Name
from vit.config import ModelConfig

Device = Annotated[str, Arg(metavar="DEVICE", help="Compute on auto, cpu, cuda, cuda:N or mps.")]


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation. A value left at None depends on the model and comes from `trainers/options/defaults.toml`."""

    epochs: Annotated[int | float | None, Hparam, Movable, Shared, ForAllArms] = None
    """Pass so often over the training images. A fraction, such as 2.5, ends within an epoch. Default: chosen by the
    model and the number of images."""
    optimizer: Annotated[Literal["adamw", "sgd", "muon"], Hparam] = "adamw"
    """Choose the optimizer: adamw, sgd with momentum 0.9, or muon. Muon makes the step of each matrix below the head
    orthogonal and leaves the rest to adamw; it learns more in few steps and wants a rate near 0.02."""
    lr: Annotated[float | None, Hparam] = None
    """Set the peak learning rate. Default: the model's own, from trainers/options/defaults.toml."""
    weight_decay: Annotated[float | None, Hparam] = None
    """Set the weight decay. Decoupled with adamw, an L2 penalty with sgd; never on biases, norms, class token and
    positions. Default: the model's own."""
    schedule: Annotated[Literal["cosine", "constant", "cooldown"], Hparam, InFiles] = "cosine"
    """Choose the learning rate after the warm-up. cosine falls to zero; constant stays; cooldown stays and falls to
    zero over the last 30 %."""
    warmup_epochs: Annotated[float | None, Hparam, InFiles] = None
    """Warm the learning rate up, linearly, for so many epochs. May be a fraction. Default: a tenth of the epochs."""
    label_smoothing: Annotated[float | None, Hparam, InFiles] = None
    """Spread this share of each target evenly over all classes. Default: the model's own, mostly 0.1."""
    mixup: Annotated[float | None, InFiles] = None
    """Set alpha of MixUp, which blends pairs of training images. 0 turns it off. Default: as the --augment preset has
    it."""
    cutmix: Annotated[float | None, InFiles] = None
    """Set alpha of CutMix, which pastes a box of another training image. 0 turns it off. With both on, each batch takes
    one of them. Default: as the --augment preset has it."""
    ema_decay: Annotated[float, InFiles] = 0.0
    """Average the weights by an exponential moving average (EMA) with this decay. The averaged model is validated,
    saved and chosen. 0 turns it off."""
    clip_norm: Annotated[float, InFiles] = 1.0
    """Clip the norm of the whole gradient to this. 0 turns it off."""
    layer_decay: Annotated[float, InFiles] = 1.0
    """Multiply the learning rate of each layer below the next by this. For fine-tuning: lower layers learn slower. 1
    turns it off."""
    accumulate: Annotated[int, InPlans] = 1
    """Cut each batch into this many parts (gradient accumulation). Less memory, the same update."""
    checkpoint_activations: Annotated[bool, InFiles, Neutral] = False
    """Compute activations again in the backward pass. Less memory, slower."""
    compile: Annotated[bool, Neutral] = False
    """Compile the model with torch.compile. It takes a minute to start and pays in long runs on a GPU."""
    amp: Annotated[Literal["auto", "off", "tf32", "bf16", "fp16"], InPlans, Hparam, InFits] = "auto"
    """Set the precision of the arithmetic. off computes in full float32, tf32 rounds the factors of products on a GPU,
    bf16 and fp16 are mixed precision. auto: bf16 where the device computes in it natively and the model is wide enough
    to gain, else tf32 on a GPU."""
    deterministic: Annotated[bool, InPlans, InFiles, InFits] = False
    """Give equal bits in two equal runs on one kind of GPU. Slower there; a processor always does."""
    cache_features: Annotated[Literal["auto", "on", "off"], InFiles, Neutral] = "auto"
    """Keep the features of a frozen backbone, and train the head on them. auto: if the images stay the same, which is
    without augmentation, MixUp and CutMix."""
    patience: Annotated[int, InPlans, Shared] = 0
    """Stop after this many epochs without a better validation score. 0 never stops early."""
    start_head: Annotated[Literal["plain", "probe", "fit"] | None, InFiles] = None
    """Choose how the head starts: plain, probe or fit. plain: zero, or as the weights bring it. probe: a fitted linear
    probe, so that fine-tuning does not begin by distorting the features (LP-FT); it is kept if no epoch is better. fit,
    with --trainable head: chosen by cross-validation, fitted to the training images at once, and not trained after it.
    Default: probe for convolutional networks, whose batch norms then keep their statistics; plain for others."""
    select: Annotated[Literal["auto", "accuracy", "balanced_accuracy", "loss", "macro_f1", "last"], InPlans, Shared] = (
        "auto"
    )
    """Choose the validation metric that picks the best epoch. Ties go to the lower loss, then to the earlier epoch.
    last keeps the last epoch, whatever it scores, so that chance picks none. auto: accuracy, or balanced_accuracy (mean
    recall) where a class has over ten times the images of another."""
    seed: Annotated[int, InPlans, Hparam, Shared, ForAllArms, InFits] = 0
    """Seed initial weights, order, augmentation and dropout. Never the split."""
    save_every: Annotated[int | None, InPlans, InFiles, Neutral] = None
    """Save also after so many optimizer steps. Default: at the end of each epoch only."""
    device: Annotated[Device, InPlans, Shared, Movable, ForAllArms, Neutral, InFits] = "auto"
    threads: Annotated[int | None, InPlans, Shared, Incidental, InFiles, Neutral, InFits] = None
    """Compute with this many threads. Default: one per processor core, or OMP_NUM_THREADS."""
    log_every: Annotated[int | None, InPlans, InFiles, Neutral] = None
    """Log to TensorBoard after so many optimizer steps. Default: about 200 points in a run."""

    def __post_init__(self) -> None:
        take_types(self)
        require_finite(self)
        positive = ("epochs", "lr", "accumulate", "save_every", "log_every", "threads")
        require(self, "be greater than 0", lambda value: value > 0, *positive)
        require(self, "be at most 1024", lambda threads: threads <= 1024, "threads")
        not_negative = ("weight_decay", "warmup_epochs", "mixup", "cutmix", "clip_norm", "patience", "seed")
        require(self, "be 0 or greater", lambda value: value >= 0, *not_negative)
        require(self, "lie in (0, 1]", lambda share: 0 < share <= 1, "layer_decay")
        require(self, "lie in [0, 1)", lambda share: 0 <= share < 1, "ema_decay", "label_smoothing")
        if self.select == "last" and self.patience:
            raise OptionError("--select last keeps the last epoch: leave out --patience, which waits for a better one")


@dataclass(frozen=True)
class OutputConfig:
    """Options of what a run writes, and where."""

    output_dir: Annotated[Path, Movable, ForAllArms] = Path("runs")
    """Write the runs below this folder. Each data set has a folder in it, which `tensorboard --logdir` shows."""
    run_name: Annotated[Name, Movable, ForAllArms] = None
    """Name the folder of the run. Default: model and seed, numbered from the second on."""
    tb: Annotated[Literal["scalars", "standard", "full"], Movable, ForAllArms] = "standard"
    """Choose how much TensorBoard shows. scalars: curves. standard: pictures too (worst mistakes, confusion matrix,
    calibration, attention). full: also PR curves, the projector with thumbnails, and position embeddings."""
    tracker: Annotated[Literal["mlflow", "wandb", "clearml"] | None, Movable] = None
    """Send options and scores to MLflow, Weights & Biases or ClearML, too. As their own settings say."""
    auto_resume: Annotated[bool, Movable, Incidental] = False
    """Continue the newest unfinished run of the same options, if there is one. For schedulers that repeat a command."""

    def __post_init__(self) -> None:
        take_types(self)
        for option, name in (("--output-dir", str(self.output_dir)), ("--run-name", self.run_name or "")):
            if not name.isascii() and name.encode("utf-8", "replace").decode() != name:
                raise OptionError(f"{option} {printable(name)} is not UTF-8, and TensorBoard opens no other folder")
        if self.run_name is not None and {"", ".", ".."} & {*self.run_name.split("/")}:
            raise OptionError(f"run_name={self.run_name!r} must be a plain folder name, or a few of them joined by '/'")


@dataclass(frozen=True)
class RunConfig:
    """Every option of one training run. `config.json` in the run directory holds the resolved one."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Options that a person gave, such as `--lr`, on the command line or in a file. It is none itself: no file has
    it."""

    def __post_init__(self) -> None:
        for name, section in SECTIONS.items():
            if not isinstance(value := getattr(self, name), section):
                meant = f"did you mean {name}={section.__name__}(...)?"
                raise OptionError(f"{name}={value!r:.100} is no section of options; {meant}")

    def changed(self, **sections: Mapping[str, Any]) -> Self:
        """Return the options with other values: `config.changed(train={"epochs": 3}, data={"workers": 0})`."""
        changes = {name: dataclasses.replace(getattr(self, name), **values) for name, values in sections.items()}
        return dataclasses.replace(self, **changes)

    def is_given(self, option: Option) -> bool:
        """Return whether an option was given, even with its default, or differs from that."""
        return option.flag in self.given or option.of(self) != option.default


def require_run_config(config: object) -> None:
    """Raise OptionError where a program gave something else than a run's options."""
    if not isinstance(config, RunConfig):
        raise OptionError(f"{config!r:.100} is no RunConfig; such as RunConfig(data=DataConfig('path/to/images'))")


def metric_of(select: str) -> str:
    """Name the validation metric that compares runs: `select` itself, and the loss for `last`."""
    return "loss" if select == "last" else select


def rank_key(select: str) -> Callable[[Mapping[str, float]], tuple[float, float]]:
    """Return the key that ranks scores by `select`; ties go to the lower loss."""
    metric = metric_of(select)
    sign = -1.0 if metric == "loss" else 1.0
    return lambda scores: (sign * scores[metric], -scores["loss"])


SECTIONS: dict[str, type] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig, "output": OutputConfig}


@cache
def run_options(mark: str | None = None) -> tuple[Option, ...]:
    """List a run's options, or those with a mark of `common.options` in their type."""
    return tuple(option for option in options_of(RunConfig) if mark is None or mark in option.marks)


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as plain JSON data: paths become strings, tuples lists."""

    def options(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in pairs if name != "given"}

    return dict(json.loads(json.dumps(dataclasses.asdict(config, dict_factory=options), default=str)))


def read_options(path: Path) -> dict[str, Any]:
    """Read a JSON or TOML file of options, by section.

    Raises OptionError: it is neither, or cannot be read."""
    if path.suffix in (".yaml", ".yml"):
        raise OptionError(f"config {path}: YAML is not read; the same as TOML: [train], then a line lr = 0.001")
    try:
        text = decode_text(path.read_bytes())[0]
        if path.suffix == ".toml" and re.search(r'"[A-Za-z]:\\(?!\\)', text):
            raise ValueError("\\ between double quotes begins an escape, such as that of a tab in C:\\temp")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        hint = "; write single quotes: 'C:\\photos'" if "\\" in str(error) else ""
        raise OptionError(f"config {path}: {error}{hint}") from error
    if not isinstance(values, dict):
        raise OptionError(f"config {path} must hold a table of options, not {type(values).__name__}")
    try:
        return by_section(values)
    except OptionError as error:
        raise OptionError(f"config {path}: {error}") from error


def by_section(values: dict[str, Any]) -> dict[str, Any]:
    """Put options into their sections.

    They may have names of the command line, such as `labels-per-class = 10`."""
    named = {option.flag.removeprefix("--"): option for option in run_options()}
    placed: dict[str, Any] = {}
    for key, value in values.items():
        if key in SECTIONS and key not in named and not isinstance(value, dict):
            raise OptionError(f"{key} must be a table of options, not {value!r:.100}")
        option = named.get(key.replace("_", "-"))
        if isinstance(value, dict):
            own = {name: f.name for name, f in named.items() if f.section == key}
            placed.setdefault(key, {}).update({own.get(name, name): each for name, each in value.items()})
        elif option:
            placed.setdefault(option.section, {})[option.name] = value
        else:
            placed[key] = value
    return placed


def load_config(path: Path, line: Mapping[str, Mapping[str, Any]] | None = None) -> RunConfig:
    """Read a file of options, which are given but for those left at None.

    `line`: values by section that go over those of the file. Raises OptionError: no readable file, an unknown key, or a
    wrong value."""
    values = read_options(path)
    values |= {section: values.get(section, {}) | part for section, part in (line or {}).items() if section}
    try:
        config: RunConfig = from_dict(RunConfig, values)
    except OptionError as error:
        raise OptionError(f"config {path}: {error}") from error
    return dataclasses.replace(config, given=given_in(values))


def given_in(values: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """List the options that a file or a recipe gives; None leaves one open."""
    given = (option.flag for option in run_options() if values.get(option.section, {}).get(option.name) is not None)
    return frozenset(given)
