"""Mark options, list the options of a class, and check their values. No torch."""

import dataclasses
import math
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import OptionError

# What is special about an option stands in its type: `seed: Annotated[int, InPlans, Shared] = 0`.
Positional = "positional"
"""Given by its place on the command line, without a name."""
InFiles = "in files"
"""Set from Python or in a file for `--config`, never on a command line."""
NoWord = "no word"
"""Never set on a command line: no word says its value."""
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


@dataclasses.dataclass(frozen=True)
class Arg:
    """Say an option's name, short name, value word and help, where its field does not."""

    name: str = ""
    short: str = ""
    metavar: str = ""
    help: str = ""


@dataclasses.dataclass(frozen=True)
class Option:
    """Describe an option of a class, or of one of its sections."""

    owner: type
    """The class that has the field."""
    section: str
    """The section of options that it stands in; empty for an option of the command itself."""
    name: str
    flag: str
    """Its name on the command line, such as `--lr`."""
    kind: Any
    """Its type without marks."""
    marks: tuple[Any, ...]
    default: Any
    """MISSING where it must be given."""

    @property
    def arg(self) -> Arg:
        return next((mark for mark in self.marks if isinstance(mark, Arg)), Arg())

    @property
    def said(self) -> str:
        """Its name where it is given: on the command line, or in a file."""
        return self.name if InFiles in self.marks else self.flag

    def of(self, config: Any) -> Any:
        """Return its value in the options of a run."""
        return getattr(getattr(config, self.section), self.name)


@cache
def options_of(options_class: type, section: str = "", defaults: Any = None) -> tuple[Option, ...]:
    """List the options of a class and its sections; `defaults` has other values than the class.

    An option of the class hides one of the same flag in a section.
    """
    hints = typing.get_type_hints(options_class, include_extras=True)
    own: list[Option] = []
    of_sections: list[Option] = []
    for field in dataclasses.fields(options_class):
        hint = hints[field.name]
        kind, *marks = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if dataclasses.is_dataclass(kind):
            factory = typing.cast(Callable[[], Any], field.default_factory)
            of_sections += options_of(typing.cast(type, kind), field.name, factory())
        else:
            named = next((mark.name for mark in marks if isinstance(mark, Arg) and mark.name), field.name)
            default = field.default if defaults is None else getattr(defaults, field.name)
            flag = f"--{named.replace('_', '-')}"
            own.append(Option(options_class, section, field.name, flag, kind, tuple(marks), default))
    taken = {option.flag for option in own}
    return (*own, *(option for option in of_sections if option.flag not in taken))


def require_finite(config: Any) -> None:
    """Refuse options that are infinite or NaN, for NaN passes every check of a range."""
    for name, value in vars(config).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise OptionError(f"{name}={number} must be finite")


def require(config: Any, wanted: str, holds: Callable[[Any], bool], *fields: str) -> None:
    """Refuse given options that do not hold; `wanted` completes 'must', such as `be at least 1`."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not holds(value):
            raise OptionError(f"{field}={value} must {wanted}")


def require_counts(config: Any, *fields: str) -> None:
    """Refuse options that count something and are below 1."""
    require(config, "be at least 1", lambda count: count >= 1, *fields)


def operand(text: str) -> str | Path:
    """Return a name that a person gave as a word that is never taken for an option."""
    return Path(text) if text.startswith("-") else text
