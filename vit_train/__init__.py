"""Vision Transformers, trained with PyTorch-Ignite and compared honestly: the doors of the whole application.

`from vit_train import train, build_model, build_dataloaders` is all that most programs need. Each name is imported at
its first use (PEP 562). The rooms below are packages of this one: `vit_train.vit`, `vit_train.trainers.engine`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.shell import PREFIX
from trainers.version import VERSION as __version__

if TYPE_CHECKING:  # for type checkers and editors
    from common.image_spec import ImageSpec
    from comparison.compare import compare_arms
    from datasets.bundle import DataBundle
    from datasets.config import DataConfig
    from datasets.loaders import build_dataloaders
    from trainers.config import OutputConfig, RunConfig, TrainConfig
    from trainers.engine.engines import create_evaluator, create_trainer
    from trainers.resume import resume
    from trainers.run import train
    from trainers.storage.finished_run import load
    from trainers.storage.run_result import RunResult
    from vit.checkpoints import load_weights
    from vit.config import ModelConfig
    from vit.factory import build_model, image_spec
    from vit.model import VisionTransformer

_EXPORTS = {
    "comparison.compare": ("compare_arms",),
    "datasets.bundle": ("DataBundle",),
    "datasets.config": ("DataConfig",),
    "datasets.loaders": ("build_dataloaders",),
    "trainers.config": ("OutputConfig", "RunConfig", "TrainConfig"),
    "trainers.engine.engines": ("create_evaluator", "create_trainer"),
    "trainers.resume": ("resume",),
    "trainers.run": ("train",),
    "trainers.storage.finished_run": ("RunResult", "load"),
    "vit.checkpoints": ("load_weights",),
    "common.image_spec": ("ImageSpec",),
    "vit.config": ("ModelConfig",),
    "vit.factory": ("build_model", "image_spec"),
    "vit.model": ("VisionTransformer",),
}
__all__ = [name for names in _EXPORTS.values() for name in names]


def __getattr__(name: str) -> Any:
    for home, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"{PREFIX}{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
