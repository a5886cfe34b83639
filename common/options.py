"""Check ranges and numbers of options, and name them as the command line does. No torch."""

import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import OptionError


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
