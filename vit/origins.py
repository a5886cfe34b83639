"""Files whose weights were loaded into modules; a run from scratch needs this without vit/checkpoints.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn


class Origin(NamedTuple):
    path: Path
    extras: Mapping[str, Any]
    """Everything in the file but the tensors of the network."""


ORIGINS: WeakKeyDictionary[nn.Module, Origin] = WeakKeyDictionary()
"""Read where a program gives a run its module."""
