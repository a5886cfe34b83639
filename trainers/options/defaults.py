"""Default settings of every model, from scratch and fine-tuned: the table is trainers/options/defaults.toml.

They fill in what a user left open and nothing else. `resolve` turns every `auto` into a value once; the run prints the
values, `config.json` keeps them and a resumed run uses them again.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.errors import OptionError
from datasets.augmentation import PRESETS
from datasets.bundle import DataBundle, image_set
from datasets.config import IMBALANCE
from trainers.config import RunConfig
from trainers.system.distributed import world_size
from vit.config import DEFAULT_WEIGHTS, HF_PREFIX, MIXTURE, OWN_PREFIX, TIMM_PREFIX
from vit.factory import kind_of

SMALL_IMAGES = dict.fromkeys(("mnist", "fashion_mnist", "cifar10", "cifar100"), "vit_micro_4")
SMALL_IMAGES["digits"] = "vit_micro_2"

MUON_LR = 0.02  # of every model: a step turns a matrix so far, whatever its gradient (trainers/engine/muon.py)


@dataclass(frozen=True)
class Defaults:
    """Settings for one kind of model and start. Epochs: enough to see `images_seen` images, within [3, max_epochs]."""

    lr: float
    weight_decay: float
    batch_size: int
    images_seen: int
    max_epochs: int
    label_smoothing: float
    augment: str
    source: str
    start_head: str = "plain"


DEFAULTS: dict[tuple[str, str], Defaults] = {
    (model, start): Defaults(**row)
    for model, starts in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    for start, row in starts.items()
}
"""(model, start) -> its settings. The models without rows of their own take those of `vit`."""


def model_family(name: str) -> str:
    """Find the family whose rows of the table a model takes: its own, or those of its kind."""
    return name if any(name == model for model, _start in DEFAULTS) else kind_of(name)


def lookup(config: RunConfig) -> Defaults:
    """The row of a model and a start: scratch, finetune (any block trains from weights), few (of its parameters alone,
    by norms or lora:R), probe (the head alone)."""
    if config.model.name.startswith(OWN_PREFIX):
        return DEFAULTS["own", "scratch"]
    start = "scratch" if config.model.weights == "none" else "finetune"
    if config.model.trainable.startswith(("norms", "lora")) and (config.model.name, "finetune") not in DEFAULTS:
        start = "few"
    start = "probe" if config.model.trainable == "head" else start
    return DEFAULTS.get((model_family(config.model.name), start)) or DEFAULTS["vit", start]


def resolve_model(config: RunConfig) -> RunConfig:
    """Name the model and its weights; what follows depends on both."""
    name = config.model.name
    if name == "auto":
        name = SMALL_IMAGES.get(config.data.source, "vit_tiny_16")
    weights = config.model.weights
    if weights is None and name != MIXTURE and not name.startswith((HF_PREFIX, TIMM_PREFIX)):  # they bring their own
        weights = DEFAULT_WEIGHTS.get(name, "none")
    return config.changed(model={"name": name, "weights": weights})


def resolve(config: RunConfig) -> RunConfig:
    """Fill in every value that does not depend on the images; `resolve_for` does the rest. Raises OptionError: a
    device that this machine does not have, or a precision that the device cannot compute in."""
    config = resolve_model(config)
    chosen, train = lookup(config), config.train
    device = resolve_device(train.device)
    augment = chosen.augment if config.data.augment == "auto" else config.data.augment
    mixup, cutmix = PRESETS[augment]
    rates = {"lr": MUON_LR if train.optimizer == "muon" else chosen.lr, "mixup": mixup, "cutmix": cutmix}
    rates |= {name: getattr(chosen, name) for name in ("weight_decay", "label_smoothing", "start_head")}
    config = config.changed(
        data={"augment": augment} | left_open(config.data, batch_size=chosen.batch_size),
        train={"device": device, "amp": resolve_amp(config, device)} | left_open(train, **rates),
    )
    config = config.changed(train={"cache_features": resolve_cache(config)})
    if train.start_head == "fit" and config.train.cache_features != "on":
        raise OptionError("--start-head fit needs features that stay: --trainable head --augment none, without MixUp")
    return config


def resolve_cache(config: RunConfig) -> Literal["on", "off"]:
    """Resolve whether a linear probe may train on cached features: `auto` does so whenever it changes nothing but the
    time."""
    train = config.train
    obstacles = {
        "only --trainable head leaves the backbone as it is": config.model.trainable != "head",
        f"--augment {config.data.augment} changes the images from epoch to epoch; add --augment none": (
            config.data.augment != "none"
        ),
        "MixUp and CutMix blend images, not features; add --mixup 0 --cutmix 0": bool(train.mixup or train.cutmix),
        "a head on cached features trains in one process, without torchrun": world_size() > 1,
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if train.cache_features == "on" and reasons:
        raise OptionError(f"--cache-features on is not possible: {reasons[0]}")
    return "off" if train.cache_features == "off" or reasons else "on"


def default_epochs(images_seen: int, max_epochs: int, *, train_images: int) -> int:
    """Enough to see `images_seen` images, within [3, max_epochs]."""
    return min(max_epochs, max(3, round(images_seen / train_images)))


def resolve_for(config: RunConfig, data: DataBundle) -> RunConfig:
    """Epochs, warm-up, logging interval and the metric that selects, which depend on the images."""
    chosen, train_loader = lookup(config), data.dataloaders["train"]
    epochs = config.train.epochs
    if config.train.start_head == "fit":
        epochs = 1
    if epochs is None:
        epochs = default_epochs(chosen.images_seen, chosen.max_epochs, train_images=data.dataset_sizes["train"])
    log_every = max(1, min(50, round(epochs * len(train_loader)) // 200))
    length = left_open(config.train, warmup_epochs=0.1 * epochs, log_every=log_every) | {"epochs": epochs}
    labels = np.concatenate([image_set(loader).labels for loader in (train_loader, data.dataloaders["val"])])
    config = config.changed(train=length | {"select": resolve_select(config.train.select, labels)})
    if (config.train.warmup_epochs or 0) >= epochs:
        raise OptionError(f"warmup_epochs={config.train.warmup_epochs:g} leaves nothing of a run of epochs={epochs}")
    return config


def resolve_select(select: str, labels: np.ndarray) -> Any:
    """The metric that chooses the epoch; `labels` are those of the training and validation images."""
    sizes = np.unique(labels, return_counts=True)[1]
    unequal = sizes.max() > IMBALANCE * sizes.min()
    return select if select != "auto" else "balanced_accuracy" if unequal else "accuracy"


def resolve_device(name: str) -> str:
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kinds = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    try:
        device = torch.device(name)
        there = kinds[device.type]
    except (RuntimeError, KeyError):
        raise OptionError(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:N, mps") from None
    if (device.index or 0) >= there:
        raise OptionError(f"device {name!r} is not there: torch sees {there} of its kind; try --device cpu")
    return name


def resolve_amp(config: RunConfig, device: str) -> str:
    """`auto` is bf16 where the device multiplies in it natively. The narrowest model would lose more in casts, and of a
    program's own module nobody knows whether it gains."""
    amp, model = config.train.amp, config.model
    if amp == "fp16" and device == "cpu":
        raise OptionError("--amp fp16 needs a GPU; on this device use bf16 or off")
    gains = model.name != "vit_micro_2" and not model.name.startswith(OWN_PREFIX)
    return amp if amp != "auto" else "bf16" if gains and computes_in_bf16(device) else "off"


def computes_in_bf16(device: str) -> bool:
    import torch

    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    return False


def left_open(options: Any, **values: Any) -> dict[str, Any]:
    """The values of those options that are still None."""
    return {name: value for name, value in values.items() if getattr(options, name) is None}
