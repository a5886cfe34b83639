"""Checks that every class of options makes: unknown keywords, ranges, numbers that are none. No torch."""

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.errors import OptionError

T = TypeVar("T")


def refuse_unknown(whose: str, given: Iterable[str], known: Sequence[str], other_names: Mapping[str, str]) -> None:
    """Refuse keywords that are no options, with the one that was meant: the same under its name in `other_names`, or
    the nearest. Raises OptionError."""
    for name in (name for name in given if name not in known):
        meant = other_names.get(name) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
        hint = f"; did you mean {meant}?" if meant else f". Known: {', '.join(known)}"
        raise OptionError(f"{whose} has no option {name!r}{hint}")


def known_keywords(other_names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """A decorator of dataclasses: a keyword that is none of its fields gets one line in place of a TypeError."""

    def decorate(config_class: type[T]) -> type[T]:
        known = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
        initialise = config_class.__init__

        @functools.wraps(initialise)
        def checked(self: T, *values: Any, **given: Any) -> None:
            refuse_unknown(config_class.__name__, given, known, other_names)
            initialise(self, *values, **given)

        config_class.__init__ = checked  # type: ignore[assignment]
        return config_class

    return decorate


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
