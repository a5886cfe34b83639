"""Labelled image sets as loaders. Exports are lazy (PEP 562): importing `datasets.config` does not import torch."""

from importlib import import_module
from typing import Any

_HOMES = {
    "DataBundle": "bundle",
    "DataError": "errors",
    "DataConfig": "config",
    "DATASETS": "config",
    "build_dataloaders": "loaders",
    "class_weights": "loaders",
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
