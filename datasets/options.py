"""The options that name a set of images, as words on the command line. No torch here."""

import dataclasses

from common.options import flag, operand
from datasets.config import DataConfig


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


def _pair(option: str, value: object) -> tuple[object, ...]:
    if value is True:
        return (option,)
    return (f"{option}={value}",) if isinstance(value, str) and value.startswith("-") else (option, value)
