"""Options of a dataclass as words on the command line. No torch here."""

import dataclasses
import typing
from pathlib import Path

from datasets.config import DataConfig


def flag(config_class: type, name: str) -> str:
    """The command-line name of a field: its tyro name where it has one, else the field's own."""
    hint = typing.get_type_hints(config_class, include_extras=True)[name]
    named = (extra.name for extra in getattr(hint, "__metadata__", ()) if getattr(extra, "name", None))
    return next(named, name.replace("_", "-"))


def words(data: DataConfig) -> list[object]:
    """The options that name these images: the set, and what differs from the defaults."""
    chosen = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    chosen["source"] = operand(data.source)
    given = [name for name, value in chosen.items() if name == "source" or value != getattr(DataConfig(), name)]
    pairs = [(f"--{flag(DataConfig, name)}", chosen[name]) for name in given]
    return [word for option, value in pairs for word in _pair(option, value)]


def named_set(data: DataConfig) -> list[object]:
    """Return the words that follow `check` and other commands about images, which know nothing of splits and training:
    the set and the options that say how it is read."""
    known = DataConfig(data.source, data.root, data.path_column, data.label_column, data.group)
    return words(known)[1:]


def operand(text: str) -> str | Path:
    """A name or path that a person gave, as a word that is never taken for an option."""
    return Path(text) if text.startswith("-") else text


def _pair(option: str, value: object) -> tuple[object, ...]:
    if value is True:
        return (option,)
    return (f"{option}={value}",) if isinstance(value, str) and value.startswith("-") else (option, value)
