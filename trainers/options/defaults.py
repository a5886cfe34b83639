"""Default settings of every model, from scratch and fine-tuned: the table is trainers/options/defaults.toml.

`of_model` and, once the images are read, `of_images` turn each option that a user left open into a value, for
`trainers.resolve`.
"""

import os
import re
import shutil
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import OptionError
from datasets.built_in import small_model
from datasets.bundle import DataBundle, image_set
from datasets.config import IMBALANCE
from datasets.processes import cpu_quota
from datasets.transforms import PRESETS
from trainers.config import RunConfig
from trainers.engine.optim import OPTIMIZERS, computes_in_bf16
from trainers.system.distributed import world_size
from vit.config import DEFAULT_WEIGHTS, ENSEMBLE, HF_PREFIX, OWN_PREFIX, TIMM_PREFIX, ModelConfig
from vit.factory import kind_of

STILL_IMAGES: dict[str, dict[str, Any]] = {"data": {"augment": "none"}, "train": {"mixup": 0.0, "cutmix": 0.0}}
"""Options with which images stay the same in each epoch, so that features of them can be computed once: see
`resolve_cache`."""


@dataclass(frozen=True)
class Defaults:
    """Settings for one kind of model and start.

    Epochs: enough to see `images_seen` images, within [3, max_epochs]."""

    lr: float
    weight_decay: float
    batch_size: int
    images_seen: int
    max_epochs: int
    label_smoothing: float
    augment: str
    start_head: str = "plain"


DEFAULTS: dict[tuple[str, str], Defaults] = {
    (model, start): Defaults(**row)
    for model, starts in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    for start, row in starts.items()
}
"""(model, start) -> its settings. The models without rows of their own take those of `vit`."""


def model_family(name: str) -> str:
    """Name the family whose rows a model takes: its own, or its kind's."""
    return name if any(name == model for model, _start in DEFAULTS) else kind_of(name)


def lookup(config: RunConfig) -> Defaults:
    """Return the row of a model and its start.

    Starts: scratch; finetune, any block trains from weights; few, norms or lora:R alone; probe, the head alone.
    """
    model = config.model
    if model.name.startswith(OWN_PREFIX):
        return DEFAULTS["own", "scratch"]
    start = "scratch" if model.weights == "none" else "finetune"
    if model.trainable.startswith(("norms", "lora")) and (model.name, "finetune") not in DEFAULTS:
        start = "few"
    start = "probe" if model.trainable == "head" else start
    return DEFAULTS.get((model_family(model.name), start)) or DEFAULTS["vit", start]


def with_model(config: RunConfig) -> RunConfig:
    """Name the model and its weights, on which all else depends."""
    name, weights = config.model.name, config.model.weights
    if name == "auto":
        name = small_model(config.data.source) or "vit_tiny_16"
    if weights is None and name != ENSEMBLE and not name.startswith((HF_PREFIX, TIMM_PREFIX)):  # they bring their own
        weights = DEFAULT_WEIGHTS.get(name, "none")
    return config.changed(model={"name": name, "weights": weights})


def of_model(asked: RunConfig) -> RunConfig:
    """Turn every open option into a value, but for those of `of_images`.

    Raises OptionError: a device that is not here, or values that exclude each other.
    """
    config = with_model(asked)
    chosen, data, train = lookup(config), config.data, config.train
    augment = chosen.augment if data.augment == "auto" else data.augment
    mixing = PRESETS[augment]
    open_values = {name: getattr(chosen, name) for name in ("weight_decay", "label_smoothing", "start_head")}
    open_values |= {"mixup": mixing.mixup, "cutmix": mixing.cutmix, "threads": default_threads()}
    open_values["lr"] = OPTIMIZERS[train.optimizer].lr or chosen.lr
    device = resolve_device(train.device)
    if train.compile:
        require_compiler(device)
    values = {"device": device, "amp": resolve_amp(config.model, train.amp, device)} | left_open(train, **open_values)
    values["cache_features"] = resolve_cache(config.model.trainable, augment, **vars(train) | values)
    sizes = left_open(data, batch_size=chosen.batch_size)
    return config.changed(data={"augment": augment} | sizes, train=values)


def default_threads() -> int:
    """Return torch's number of threads, or a lower one of a container's quota."""
    threads = torch.get_num_threads()
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, cpu_quota())


def resolve_cache(
    trainable: str, augment: str, *, cache_features: str, start_head: str, mixup: float, cutmix: float, **_: Any
) -> str:
    """Say whether a head trains on features that are computed once.

    `auto` means if that changes the time alone."""
    obstacles = {
        "only --trainable head leaves the backbone as it is": trainable != "head",
        f"--augment {augment} changes the images from epoch to epoch; add --augment none": augment != "none",
        "MixUp and CutMix blend images, not features; in a file: mixup = 0, cutmix = 0": mixup or cutmix,
        "a head on cached features trains in one process, without torchrun": world_size() > 1,
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if cache_features == "on" and reasons:
        raise OptionError(f"cache_features on is not possible: {reasons[0]}")
    cached = cache_features != "off" and not reasons
    if start_head == "fit" and not cached:
        raise OptionError("start_head fit needs features that stay: --trainable head --augment none, without MixUp")
    return "on" if cached else "off"


def default_epochs(images_seen: int, max_epochs: int, *, train_images: int) -> int:
    """Count the epochs that see `images_seen` images, within [3, max_epochs]."""
    return min(max_epochs, max(3, round(images_seen / train_images)))


def of_images(known: RunConfig, data: DataBundle) -> RunConfig:
    """Set the open options that depend on the images.

    They are epochs, warm-up, log interval and metric. Raises OptionError: a warm-up as long as the run.
    """
    chosen, train, loaders = lookup(known), known.train, data.dataloaders
    epochs = 1 if train.start_head == "fit" else train.epochs
    if epochs is None:
        epochs = default_epochs(chosen.images_seen, chosen.max_epochs, train_images=data.dataset_sizes["train"])
    log_every = max(1, min(50, round(epochs * len(loaders["train"])) // 200))
    labels = np.concatenate([image_set(loaders[split]).labels for split in ("train", "val")])
    length = left_open(train, warmup_epochs=0.0 if train.start_head == "fit" else 0.1 * epochs, log_every=log_every)
    config = known.changed(train=length | {"epochs": epochs, "select": resolve_select(train.select, labels)})
    if (config.train.warmup_epochs or 0) >= epochs:
        raise OptionError(f"warmup_epochs={config.train.warmup_epochs:g} leaves nothing of a run of epochs={epochs}")
    return config


def resolve_select(select: str, labels: np.ndarray) -> Any:
    """Name the metric that chooses the epoch.

    `labels` are those of the training and validation images."""
    sizes = np.unique(labels, return_counts=True)[1]
    unequal = sizes.max() > IMBALANCE * sizes.min()
    return select if select != "auto" else "balanced_accuracy" if unequal else "accuracy"


def resolve_device(name: str, *, fall_back: bool = False) -> str:
    """Return a device that this machine has.

    `fall_back`: return the best one in place of one that is not there. Raises OptionError: it is unknown, or not there.
    """
    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        return next(kind for kind, count in counts.items() if count)
    require_known_device(name)
    kind, _, number = name.partition(":")
    if int(number or 0) >= counts[kind]:
        if fall_back:
            return resolve_device("auto")
        raise OptionError(f"device {name!r} is not there: torch sees {counts[kind]} of its kind; try --device cpu")
    return name


def require_known_device(name: str) -> None:
    """Raise OptionError for a device that is nowhere."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]*))?", name):
        raise OptionError(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:N, mps")


def require_compiler(device: str) -> None:
    """Refuse `--compile` where there is nothing to compile with.

    Triton calls a C compiler for a GPU, and torch one of C++ for a processor. Raises OptionError."""
    kind, names = ("CXX", ("g++", "clang++")) if device == "cpu" else ("CC", ("gcc", "clang"))
    found = os.environ.get(kind) or any(map(shutil.which, names)) or sys.platform == "win32"
    if not found or not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        lacks = "the headers of Python (Debian: python3-dev)" if found else f"a compiler ({' or '.join(names)})"
        raise OptionError(f"--compile needs {lacks}, which this machine does not have: install it, or leave it out")


def resolve_amp(model: ModelConfig, amp: str, device: str) -> str:
    """Name the precision; `auto` is bf16 where that is native.

    Elsewhere it is tf32 on a GPU. The narrowest model would lose more in casts, and of a program's own module nobody
    knows whether it gains.
    """
    if amp == "fp16" and device == "cpu":
        raise OptionError("--amp fp16 needs a GPU; on this device use bf16 or off")
    gains = model.name != "vit_micro_2" and not model.name.startswith(OWN_PREFIX)
    if amp == "auto" and gains and computes_in_bf16(device):
        return "bf16"
    return amp if amp != "auto" else "tf32" if device.startswith("cuda") else "off"


def left_open(options: Any, **values: Any) -> dict[str, Any]:
    """Return the values of those options that are still None."""
    return {name: value for name, value in values.items() if getattr(options, name) is None}
