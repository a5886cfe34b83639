"""Mark options, list the options of a class, and check their values. No torch."""

import dataclasses
import math
import operator
import os
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import OptionError
from common.text import did_you_mean

# An option's type carries its marks: `seed: Annotated[int, InPlans, Shared] = 0`.
Positional = "positional"
"""Given by position on the command line, without a name."""
InFiles = "in files"
"""Set from Python or in a file for `--config`, never on a command line."""
Output, OutputFolder = "output", "output folder"
"""Names a file or a folder to write, not one of the command's inputs."""
NoWord = "no word"
"""Cannot be given on a command line, as no word expresses its value."""
InPlans = "in plans"
"""Obeyed by a plan of `train --minutes`. Other options of the model and its training switch the plan off."""
Hparam = "hparam"
"""Has a column in TensorBoard's HPARAMS tab, whatever its value."""
Movable = "movable"
"""May change when a run is resumed: no bit of the run depends on it, or `resume` handles the change."""
Incidental = "incidental"
"""Does not distinguish runs: with another value a command still means the same run."""
Training = "training"
"""Says how to train, although it is among the options of the images."""
InFits = "in fits"
"""Obeyed if a head is fitted at once to frozen networks."""
Shared = "shared"
"""Is the same in all models of a comparison, or the result would mean nothing."""
ForAllArms = "for all arms"
"""Set by `compare` on its command line, for all models; the others are set in a file, or for a model."""
Neutral = "neutral"
"""Changes no result: time, memory and files at most."""
ChoosesImages = "chooses images"
"""Chooses images, labels or splits, which compared runs share; they are compared themselves."""
OfWeights = "of weights"
"""Follows from the pretrained weights if it is left open."""
Shape = "shape"
"""Must be given with a model's name for the weights of a run to fit."""


@dataclasses.dataclass(frozen=True)
class Arg:
    """An option's name, short name, value word and help, if they do not follow from its field."""

    name: str = ""
    short: str = ""
    metavar: str = ""
    help: str = ""


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a class, or of one of its sections."""

    owner: type
    """The class that defines the field."""
    section: str
    """The section of options it belongs to; empty for an option of the command itself."""
    name: str
    flag: str
    """Its name on the command line, such as `--lr`."""
    kind: Any
    """Its type without marks."""
    marks: tuple[Any, ...]
    default: Any
    """MISSING if it must be given."""

    @property
    def arg(self) -> Arg:
        return next((mark for mark in self.marks if isinstance(mark, Arg)), Arg())

    @property
    def said(self) -> str:
        """Return its name as it is given: on the command line, or in a file."""
        return self.name if InFiles in self.marks else self.flag

    def of(self, config: Any) -> Any:
        """Return its value in the options of a run."""
        return getattr(getattr(config, self.section), self.name)


def is_option(field: dataclasses.Field) -> bool:
    """Return whether a field of a class of options is one.

    Other fields describe options, and are not compared."""
    return field.compare


@cache
def options_of(options_class: type, section: str = "", defaults: Any = None) -> tuple[Option, ...]:
    """List the options of a class and its sections; `defaults` overrides the values of the class.

    An option of the class hides one with the same flag in a section.
    """
    hints = typing.get_type_hints(options_class, include_extras=True)
    own: list[Option] = []
    of_sections: list[Option] = []
    for field in filter(is_option, dataclasses.fields(options_class)):
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


def from_dict(config_class: type, values: dict[str, Any], *, base: Any = None, where: str = "") -> Any:
    """Build a config dataclass from plain data; `base` supplies missing values.

    Raises OptionError: an unknown key (the nearest known one is named), or a value of the wrong type.
    """
    hints, changes = hints_of(config_class), {}
    for key, value in values.items():
        if key not in hints:
            hint = f"{did_you_mean(key, hints)} Known: {', '.join(hints)}"
            raise OptionError(f"unknown option {where + key!r} in the config{hint}")
        changes[key] = as_type(value, hints[key], f"{where}{key}", base=getattr(base, key, None))
    if base is not None:
        return dataclasses.replace(base, **changes)
    fields = dataclasses.fields(config_class)
    required = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    if missing := required - changes.keys():
        raise OptionError(f"{where.rstrip('.')} in the config lacks {', '.join(sorted(missing))}")
    return config_class(**changes)


def take_types(config: Any) -> None:
    """Convert each option of a config to its type, as in a file. Raises OptionError: it has another type."""
    for name, hint in hints_of(config.__class__).items():
        value = getattr(config, name)
        if value is not (taken := as_type(value, hint, name)):
            object.__setattr__(config, name, taken)


@cache
def hints_of(config_class: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(config_class)
    return {field.name: hints[field.name] for field in filter(is_option, dataclasses.fields(config_class))}


def as_type(value: Any, hint: Any, label: str, *, base: Any = None) -> Any:
    """Convert a value to type `hint`.

    An int may be a float, a str a Path (`~` is home), a list a tuple.

    Numbers of NumPy and torch become Python's.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int) and abs(value) >= 2**63:
        raise OptionError(f"{label}={value!r:.100} is too large")
    if hint is Path and isinstance(value, str | Path):
        return Path(os.path.expanduser(value))
    if isinstance(hint, type) and isinstance(value, hint) and isinstance(value, bool) is (hint is bool):
        return typing.cast(Any, hint)(value) if hint in (int, float, str) else value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise OptionError(f"{label} must be a table of options, not {value!r}")
        return from_dict(hint, value, base=base, where=f"{label}.")
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            with suppress(OptionError):
                return as_type(value, option, label)
    elif origin is typing.Literal:
        if isinstance(value, str) and value in arguments:
            return str(value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(as_type(item, arguments[0], label) for item in value)
    elif hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif hint in (int, float) and not isinstance(value, bool | str) and not hasattr(value, "__len__"):
        with suppress(TypeError, ValueError, OverflowError):
            return operator.index(typing.cast(Any, value)) if hint is int else float(typing.cast(Any, value))
    raise OptionError(f"{label}={value!r:.100} must be {in_words(hint)}")


def in_words(hint: Any) -> str:
    """Name a type for people: `one of adamw, sgd`, `int or float`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(part) for part in arguments if part is not types.NoneType)
    return f"a list of {in_words(arguments[0])}" if origin is tuple else getattr(hint, "__name__", str(hint))


def require_finite(config: Any) -> None:
    """Refuse options that are infinite or NaN; NaN would pass every check of a range."""
    for name, value in vars(config).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise OptionError(f"{name}={number} must be finite")


def require(config: Any, wanted: str, holds: Callable[[Any], bool], *fields: str) -> None:
    """Refuse given options for which `holds` is false; `wanted` completes 'must', such as `be at least 1`."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not holds(value):
            raise OptionError(f"{field}={value} must {wanted}")


def require_counts(config: Any, *fields: str) -> None:
    """Refuse counts below 1."""
    require(config, "be at least 1", lambda count: count >= 1, *fields)


def operand(text: str) -> str | Path:
    """Return a name that a person gave, as a word that is never parsed as an option."""
    return Path(text) if text.startswith("-") else text
