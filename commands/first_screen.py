"""Marks of an options class beside its types, which the help of its command (`commands.help`) follows."""

from typing import Any, ClassVar

import tyro

ASKED = {"-h", "--help", "--help-all"}


class FirstScreen:
    """Base of an options class that has too many options for one screen."""

    FIRST: ClassVar[tuple[str, ...]] = ()
    """The options that most people need, in the order in which they are shown."""
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Words of a command line, and what they do."""
    PAGE: ClassVar[str] = ""
    """The page of docs/ about the command."""


def is_fixed(hint: Any) -> bool:
    """Return whether a field is no option of the command, although it is one of a base class."""
    return tyro.conf.Fixed in getattr(hint, "__metadata__", ())
