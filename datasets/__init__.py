"""Labelled image sets as loaders. Exports are lazy (PEP 562): importing `datasets.config` does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from common.errors import DataError
    from datasets.bundle import DataBundle
    from datasets.config import DATASETS, DataConfig
    from datasets.description import data_report, describe
    from datasets.loaders import build_dataloaders, class_weights
    from datasets.split_file import fingerprint, split_table, write_split

_EXPORTS = {
    "datasets.bundle": ("DataBundle",),
    "common.errors": ("DataError",),
    "datasets.config": ("DATASETS", "DataConfig"),
    "datasets.loaders": ("build_dataloaders", "class_weights"),
    "datasets.description": ("data_report", "describe"),
    "datasets.split_file": ("fingerprint", "split_table", "write_split"),
}
__all__ = [name for names in _EXPORTS.values() for name in names]


def __getattr__(name: str) -> Any:
    for home, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
