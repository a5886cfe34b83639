"""Options of training, and all options of a run together. No torch here: `python main.py --help` imports this file."""

import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tyro

from common.errors import OptionError
from common.options import flag, require, require_finite
from common.text import decode_text, did_you_mean, printable
from datasets.config import DataConfig, Name
from vit.config import InPlans, ModelConfig

_ESCAPE = r'\\(?:["\\]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})'
_BACKSLASH = re.compile(rf"""^[^'"#\n]*"(?:[^"\\\n]|{_ESCAPE})*(?!{_ESCAPE})\\""", re.MULTILINE)
"""A string of TOML with a backslash that begins no escape, or that of a tab, as in a path of Windows: C:\\temp."""
Device = Annotated[str, tyro.conf.arg(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation. A value left at None depends on the model and comes from `trainers/options/defaults.toml`."""

    epochs: int | float | None = None
    """Passes over the training images. A fraction, such as 2.5, ends within an epoch. Default: chosen by the model and
    the number of images."""
    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """Optimizer: adamw, sgd with momentum 0.9, or muon, which makes the step of each matrix below the head orthogonal
    and leaves the rest to adamw. Muon learns more in few steps and wants a rate near 0.02."""
    lr: float | None = None
    """Peak learning rate. Default: the model's own, from trainers/options/defaults.toml."""
    weight_decay: float | None = None
    """Decoupled weight decay (adamw) or L2 penalty (sgd), never on biases, norms, class token and positions. Default:
    the model's own."""
    schedule: Literal["cosine", "step", "constant", "cooldown"] = "cosine"
    """Learning rate after the warm-up: cosine to zero; step, a tenth at 60 % and again at 85 % of the run; constant; or
    cooldown, constant with a linear fall to zero over the last 30 %."""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up of the learning rate; may be a fraction. Default: a tenth of the epochs."""
    label_smoothing: float | None = None
    """Share of each target that is spread evenly over all classes. Default: the model's own, mostly 0.1."""
    mixup: float | None = None
    """Alpha of MixUp, which blends pairs of training images; 0 turns it off. Default: as the --augment preset has
    it."""
    cutmix: float | None = None
    """Alpha of CutMix, which pastes a box of another training image; 0 turns it off. With both on, each batch takes one
    of them. Default: as the --augment preset has it."""
    ema_decay: float = 0.0
    """Decay of the exponential moving average (EMA) of the weights; the averaged model is validated, saved and chosen.
    0 turns it off."""
    clip_norm: float = 1.0
    """Gradient clipping: largest norm of the whole gradient. 0 turns it off."""
    layer_decay: float = 1.0
    """Layer-wise learning-rate decay for fine-tuning: each layer below the head learns slower by this factor. 1 turns
    it off."""
    accumulate: Annotated[int, InPlans] = 1
    """Gradient accumulation: micro-batches per optimizer step. Less memory, the same update."""
    checkpoint_activations: bool = False
    """Activation (gradient) checkpointing: less memory, slower."""
    compile: bool = False
    """Compile the model with torch.compile. It takes a minute to start and pays in long runs on a GPU."""
    amp: Annotated[Literal["auto", "off", "bf16", "fp16"], InPlans] = "auto"
    """Mixed precision. auto: bf16 where the device computes in it natively and the model is wide enough to gain."""
    cache_features: Literal["auto", "on", "off"] = "auto"
    """With --trainable head: pass each image through the frozen backbone once and train the head on the cached
    features. auto: whenever the images stay the same, that is without augmentation, MixUp and CutMix."""
    max_minutes: float | None = None
    """Time limit: stop training after this many minutes, then validate and conclude as usual. The learning rate still
    follows --epochs; --minutes plans a whole run instead."""
    patience: Annotated[int, InPlans] = 0
    """Early stopping: end after this many epochs without a better validation score. 0 never stops early."""
    start_head: Literal["plain", "probe", "fit"] | None = None
    """Head initialisation: plain, zero or as the weights bring it; probe, a fitted linear probe, so that fine-tuning
    does not begin by distorting the features (LP-FT); or fit, with --trainable head: chosen by cross-validation, fitted
    to the training images at once, and not trained after it. Default: probe for convolutional networks, whose batch
    norms then keep their statistics; plain for others."""
    select: Annotated[Literal["auto", "accuracy", "balanced_accuracy", "loss", "macro_f1", "last"], InPlans] = "auto"
    """Validation metric that picks the best epoch; ties go to the lower loss, then to the earlier epoch. last keeps the
    last epoch, whatever it scores, so that no luck chooses. auto: accuracy, or balanced_accuracy (mean recall) where a
    class has over ten times the images of another."""
    seed: Annotated[int, InPlans] = 0
    """Seed of initial weights, order, augmentation and dropout; never of the split."""
    save_every: Annotated[int | None, InPlans] = None
    """Also save every so many optimizer steps. Default: at the end of each epoch only."""
    device: Annotated[Device, InPlans] = "auto"
    threads: Annotated[int | None, InPlans] = None
    """Threads that PyTorch computes with. Default: one per processor core, or OMP_NUM_THREADS."""
    log_every: Annotated[int | None, InPlans] = None
    """Optimizer steps between two TensorBoard points. Default: about 200 points in a run."""

    def __post_init__(self) -> None:
        require_finite(self)
        positive = ("epochs", "lr", "accumulate", "max_minutes", "save_every", "log_every", "threads")
        not_negative = ("weight_decay", "warmup_epochs", "mixup", "cutmix", "clip_norm", "patience", "seed")
        for names, holds, wanted in (
            (positive, lambda value: value > 0, "be greater than 0"),
            (not_negative, lambda value: value >= 0, "be 0 or greater"),
            (("layer_decay",), lambda value: 0 < value <= 1, "lie in (0, 1]"),
            (("ema_decay", "label_smoothing"), lambda value: 0 <= value < 1, "lie in [0, 1)"),
        ):
            require(self, wanted, holds, *names)
        if self.select == "last" and self.patience:
            raise OptionError("--select last keeps the last epoch: leave out --patience, which waits for a better one")


@dataclass(frozen=True)
class OutputConfig:
    """Options of what a run writes, and where."""

    output_dir: Path = Path("runs")
    """Parent folder of all runs; each data set has a folder in it, which `tensorboard --logdir` shows."""
    run_name: Name = None
    """Name of the run's folder. Default: model and seed, numbered from the second on."""
    tb: Literal["scalars", "standard", "full"] = "standard"
    """Amount of detail for TensorBoard. scalars: curves. standard: pictures too (worst mistakes, confusion matrix,
    calibration, attention). full: also PR curves, the projector with thumbnails, and position embeddings."""

    tracker: Literal["mlflow", "wandb", "clearml"] | None = None
    """Experiment tracker that is also sent the options, the scores of each epoch and the final ones: MLflow, Weights &
    Biases or ClearML, as its own settings say."""
    auto_resume: bool = False
    """Continue the newest unfinished run that was started with these same options, if there is one; for schedulers that
    repeat a command."""

    def __post_init__(self) -> None:
        if isinstance(self.output_dir, str):
            object.__setattr__(self, "output_dir", Path(self.output_dir))
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

    def __post_init__(self) -> None:
        for f, first in zip(dataclasses.fields(self), ("name", "source", "epochs", "output_dir"), strict=True):
            value, section = getattr(self, f.name), f.default_factory
            if not isinstance(value, section):  # type: ignore[arg-type]
                given = f"**{value!r}" if isinstance(value, Mapping) else f"{first}={value!r}"
                meant = f"{f.name}={section.__name__}({given})"  # type: ignore[union-attr]
                raise OptionError(f"{f.name}={value!r:.100} is no section of options; did you mean {meant:.200}?")

    def changed(self, **sections: Mapping[str, Any]) -> Self:
        """Return the options with other values: `config.changed(train={"epochs": 3}, data={"workers": 0})`."""
        changes = {name: dataclasses.replace(getattr(self, name), **values) for name, values in sections.items()}
        return dataclasses.replace(self, **changes)


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain JSON data: paths become strings, tuples lists."""
    return dict(json.loads(json.dumps(dataclasses.asdict(config), default=str)))


def from_dict(config_class: type, values: dict[str, Any], *, base: Any = None, where: str = "") -> Any:
    """Build a config dataclass from plain data, strictly; `base` supplies what `values` leaves out. Raises OptionError:
    an unknown key (the nearest known one is named) or a value of the wrong type."""
    known = {f.name: f for f in dataclasses.fields(config_class)}
    hints = typing.get_type_hints(config_class)
    changes = {}
    for key, value in values.items():
        label = f"{where}{key}"
        if key not in known:
            hint = f"{did_you_mean(key, known)} Known: {', '.join(known)}"
            raise OptionError(f"unknown option {label!r} in the config{hint}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise OptionError(f"{label} must be a table of options, not {value!r}")
            changes[key] = from_dict(hints[key], value, base=getattr(base, key, None), where=f"{label}.")
        else:
            changes[key] = _coerce(value, hints[key], label)
    if base is not None:
        return dataclasses.replace(base, **changes)
    required = {f.name for f in known.values() if f.default is f.default_factory is dataclasses.MISSING}
    if missing := required - changes.keys():
        raise OptionError(f"{where.rstrip('.')} in the config lacks {', '.join(sorted(missing))}")
    return config_class(**changes)


def _coerce(value: Any, hint: Any, label: str) -> Any:
    """`value` as type `hint`: only the conversions JSON forces on us (int to float, str to Path, list to tuple)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    small = not isinstance(value, int) or abs(value) < 2**63
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            with suppress(OptionError):
                return _coerce(value, option, label)
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(item, arguments[0], label) for item in value)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(hint, value, where=f"{label}.")
    elif hint is type(None) and value is None:
        return None
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool) and small:
        return float(value)
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif isinstance(hint, type) and isinstance(value, hint) and small and (hint is bool or not isinstance(value, bool)):
        return value
    choices = f"one of {', '.join(map(str, arguments))}" if origin is Literal else getattr(hint, "__name__", str(hint))
    raise OptionError(f"{label}={value!r:.100} in the config must be {choices}")


SECTIONS = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig, "output": OutputConfig}


def by_section(values: dict[str, Any]) -> dict[str, Any]:
    """Put options that are written as on the command line, such as `data = "photos"` and `labels-per-class = 10`, into
    their sections `data`, `model`, `train` and `output`; what stands in a section stays there."""
    homes = {
        flag(part, option.name): (name, option.name)
        for name, part in SECTIONS.items()
        for option in dataclasses.fields(part)
    }
    placed: dict[str, Any] = {}
    for key, value in values.items():
        section, name = homes.get(key.replace("_", "-"), ("", ""))
        if section and (key not in SECTIONS or isinstance(value, str)):
            placed.setdefault(section, {})[name] = value
        elif isinstance(value, dict):
            given = {"source" if (key, name) == ("data", "data") else name: value[name] for name in value}
            placed[key] = placed.get(key, {}) | given
        else:
            placed[key] = value
    return placed


def read_options(path: Path) -> dict[str, Any]:
    """Read a JSON or TOML file of options, by section. Raises OptionError: it is neither, or cannot be read."""
    if path.suffix in (".yaml", ".yml"):
        raise OptionError(f"config {path}: YAML is not read; the same as TOML: [train], then a line lr = 0.001")
    try:
        text = decode_text(path.read_bytes())[0]
        if path.suffix == ".toml" and (found := _BACKSLASH.search(text)):
            where = f"line {text.count(chr(10), 0, found.end()) + 1}: \\ between double quotes is no plain sign"
            raise OptionError(rf"{where}; write single quotes, such as 'C:\photos' or '(p\d+)_'")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"config {path}: {error}") from error
    if not isinstance(values, dict):
        raise OptionError(f"config {path} must hold a table of options, not {type(values).__name__}")
    return by_section(values)


def set_in(path: Path) -> list[str]:
    """List the options that a file sets, as on the command line."""
    sections = ((SECTIONS[name], values) for name, values in read_options(path).items())
    return [f"--{flag(part, name)}" for part, values in sections for name in values if values[name] is not None]


def load_config(path: Path, *, base: RunConfig | None = None) -> RunConfig:
    """Read a file of options over `base`. Raises OptionError: not a readable file, an unknown key, or a wrong value."""
    values = read_options(path)
    try:
        config: RunConfig = from_dict(RunConfig, values, base=base)
    except OptionError as error:
        raise OptionError(f"config {path}: {error}") from error
    return config
