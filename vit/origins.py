"""Origin of a module's weights, for a run that a program gives the module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn


class Origin(NamedTuple):
    """A file of weights, and the plain data that stood beside its tensors."""

    path: Path
    extras: Mapping[str, Any]


ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()
"""Noted whenever weights are loaded into a module."""
