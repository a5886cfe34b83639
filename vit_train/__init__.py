"""Vision Transformers, trained with PyTorch-Ignite and compared honestly: the doors of the whole application.

`from vit_train import train, build_model, build_dataloaders` is all that most programs need. Each name is imported at
its first use (PEP 562). The rooms below are packages of this one: `vit_train.vit`, `vit_train.trainers.engine`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.shell import PREFIX
from common.shell import VERSION as __version__

if TYPE_CHECKING:  # for type checkers, to which `as` says that a name is handed on
    from common.image_spec import ImageSpec as ImageSpec
    from comparison.compare import compare_arms as compare_arms
    from comparison.plan import Request as Request
    from datasets.bundle import DataBundle as DataBundle
    from datasets.config import DataConfig as DataConfig
    from datasets.loaders import build_dataloaders as build_dataloaders
    from trainers.config import OutputConfig as OutputConfig
    from trainers.config import RunConfig as RunConfig
    from trainers.config import TrainConfig as TrainConfig
    from trainers.engine.engines import create_evaluator as create_evaluator
    from trainers.engine.engines import create_trainer as create_trainer
    from trainers.resume import resume as resume
    from trainers.run import train as train
    from trainers.storage.checkpoint_file import load as load
    from trainers.storage.run_result import RunResult as RunResult
    from vit.checkpoints import load_weights as load_weights
    from vit.config import ModelConfig as ModelConfig
    from vit.factory import build_model as build_model
    from vit.factory import image_spec as image_spec
    from vit.model import VisionTransformer as VisionTransformer

_EXPORTS = {
    "comparison.compare": ("compare_arms",),
    "comparison.plan": ("Request",),
    "datasets.bundle": ("DataBundle",),
    "datasets.config": ("DataConfig",),
    "datasets.loaders": ("build_dataloaders",),
    "trainers.config": ("OutputConfig", "RunConfig", "TrainConfig"),
    "trainers.engine.engines": ("create_evaluator", "create_trainer"),
    "trainers.resume": ("resume",),
    "trainers.run": ("train",),
    "trainers.storage.checkpoint_file": ("load",),
    "trainers.storage.run_result": ("RunResult",),
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
