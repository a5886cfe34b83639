"""Labelled image sets as loaders."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.errors import DataError

if TYPE_CHECKING:  # for type checkers, to which `as` says that a name is handed on
    from datasets.built_in import BUILT_IN as BUILT_IN
    from datasets.bundle import DataBundle as DataBundle
    from datasets.config import DataConfig as DataConfig
    from datasets.description import describe as describe
    from datasets.loaders import build_dataloaders as build_dataloaders
    from datasets.loaders import class_weights as class_weights
    from datasets.split_csv import fingerprint as fingerprint
    from datasets.split_csv import split_table as split_table
    from datasets.split_csv import write_split as write_split

_HOMES = {
    "BUILT_IN": "built_in", "DataConfig": "config", "DataBundle": "bundle", "build_dataloaders": "loaders",
    "class_weights": "loaders", "describe": "description", "fingerprint": "split_csv",
    "split_table": "split_csv", "write_split": "split_csv",
}  # fmt: skip
__all__ = ["DataError", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a name at first use (PEP 562), so that the command line begins without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
