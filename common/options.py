"""Marks of options, checks of their values, and their names on the command line. No torch."""

import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

from common.errors import OptionError

# What is special about an option stands in its type: `seed: Annotated[int, InPlans, Shared] = 0`.
InFiles = tyro.conf.Fixed
"""Set from Python or in a file for `--config`, never on a command line: builders of models need it."""
InPlans = "in plans"
"""Obeyed by a plan of `train --minutes`. Other options of the model and its training switch the plan off."""
Hparam = "hparam"
"""Has a column in TensorBoard's HPARAMS tab, whatever its value."""
Movable = "movable"
"""May have changed when a run is resumed: no bit of the run depends on it, or `resume` looks after it."""
Incidental = "incidental"
"""Does not tell runs apart: with another value a command still asks for the same run."""
Shared = "shared"
"""Is the same in all arms of a comparison, or its result would mean nothing."""


def require_finite(config: Any) -> None:
    """Refuse options that are infinite or no number: NaN passes every check for too small or too large."""
    for name, value in vars(config).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise OptionError(f"{name}={number} must be finite")


def require(config: Any, wanted: str, holds: Callable[[Any], bool], *fields: str) -> None:
    """Refuse options that are given and do not hold; `wanted` says what they must, such as `be at least 1`."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not holds(value):
            raise OptionError(f"{field}={value} must {wanted}")


def require_counts(config: Any, *fields: str) -> None:
    """Refuse options that count something and are below 1."""
    require(config, "be at least 1", lambda count: count >= 1, *fields)


def flag(config_class: type, name: str) -> str:
    """Return the command-line name of a field: its tyro name where it has one, else the field's own."""
    hint = typing.get_type_hints(config_class, include_extras=True)[name]
    named = (extra.name for extra in getattr(hint, "__metadata__", ()) if getattr(extra, "name", None))
    return next(named, name.replace("_", "-"))


def operand(text: str) -> str | Path:
    """Return a name or path that a person gave as a word that is never taken for an option."""
    return Path(text) if text.startswith("-") else text
