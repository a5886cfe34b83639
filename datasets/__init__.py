"""Labelled image sets as loaders. Exports are lazy (PEP 562): importing `datasets.config` does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.errors import DataError

if TYPE_CHECKING:  # for type checkers and editors
    from datasets.bundle import DataBundle
    from datasets.config import DATASETS, DataConfig
    from datasets.description import data_report, describe
    from datasets.loaders import build_dataloaders, class_weights
    from datasets.split_file import fingerprint, split_table, write_split

_EXPORTS = {
    "bundle": ("DataBundle",),
    "config": ("DATASETS", "DataConfig"),
    "loaders": ("build_dataloaders", "class_weights"),
    "description": ("data_report", "describe"),
    "split_file": ("fingerprint", "split_table", "write_split"),
}
__all__ = ["DataError", *(name for names in _EXPORTS.values() for name in names)]


def __getattr__(name: str) -> Any:
    for home, names in _EXPORTS.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
