"""Labelled image sets as loaders. Exports are lazy (PEP 562): importing `datasets.config` does not import torch."""

# ruff: noqa: F401  # what a type checker sees; at run time `__getattr__` imports it
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets.bundle import DataBundle
    from datasets.config import DATASET_NAMES, DataConfig
    from datasets.description import data_report, describe
    from datasets.errors import DataError
    from datasets.loaders import DATASETS, build_dataloaders, class_weights, skipped
    from datasets.splits import fingerprint, split_table, write_split

_HOMES = {
    "DataBundle": "bundle",
    "DataError": "errors",
    "DATASET_NAMES": "config",
    "DataConfig": "config",
    "DATASETS": "loaders",
    "build_dataloaders": "loaders",
    "class_weights": "loaders",
    "skipped": "loaders",
    "data_report": "description",
    "describe": "description",
    "fingerprint": "splits",
    "split_table": "splits",
    "write_split": "splits",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'datasets' has no attribute {name!r}")
    return getattr(import_module(f"datasets.{_HOMES[name]}"), name)
