"""The help of a command, made from its options class: a first screen with what matters, and all options on request.

tyro parses; it would print every option in one list, with the line breaks of our source. No torch here.
"""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import tyro

from commands.first_screen import FirstScreen, is_fixed
from common.options import flag

WORDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
INDENT = 24
"""Columns before the text about an option."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the help."""

    name: str
    """`--lr`; the metavar where the option is given by its place."""
    metavar: str
    text: str
    group: str
    positional: bool


def show_help(options_class: type, *, prog: str, everything: bool) -> None:
    """Print the help: the first screen of a class that has one, else all options."""
    width = min(shutil.get_terminal_size().columns, 100)
    print("\n".join(lines(options_class, prog=prog, everything=everything, width=width)), flush=True)


def lines(options_class: type, *, prog: str, everything: bool, width: int) -> Iterator[str]:
    """The lines of the help, none longer than `width` unless a word is."""
    options = list(options_of(options_class))
    by_place = " ".join(option.metavar for option in options if option.positional)
    yield from textwrap.wrap(f"usage: {prog} {by_place} [OPTIONS]".replace("  ", " "), width, subsequent_indent="    ")
    for paragraph in inspect.cleandoc(options_class.__doc__ or "").split("\n\n"):
        yield ""
        yield from wrap(paragraph, width)
    first = options_class if issubclass(options_class, FirstScreen) else None
    if first:
        yield ""
        yield "examples:"
        for words, meaning in first.EXAMPLES:
            yield f"  {prog} {words}"
            yield from wrap(meaning, width, indent=6)
    if first and not everything:
        named = {option.name.removeprefix("--"): option for option in options}
        places = [option for option in options if option.positional]
        chosen = [*places, *(named[name] for name in first.FIRST)]
        yield from section("options that matter most", [shortened(option) for option in chosen], width)
        yield ""
        yield from wrap(f"--help-all lists all {len(options)} options. More: {first.PAGE}", width)
        return
    options.sort(key=lambda option: not option.positional)
    for group in dict.fromkeys(option.group for option in options):
        yield from section(group, [option for option in options if option.group == group], width)


def shortened(option: Option) -> Option:
    """The option with the first sentence about it, and its default."""
    first, *others = re.split(r"(?<=[.;]) (?=[A-Z])", option.text)
    default = next((sentence for sentence in others if sentence.startswith("Default")), "")
    return dataclasses.replace(option, text=f"{first} {default}")


def section(title: str, options: Sequence[Option], width: int) -> Iterator[str]:
    """A heading and its options."""
    yield ""
    yield f"{title}:"
    for option in options:
        head = f"  {option.metavar}" if option.positional else f"  {option.name} {option.metavar}".rstrip()
        text = wrap(option.text, width, indent=INDENT)
        if len(head) + 2 > INDENT:
            yield from wrap(head.strip(), width, indent=2)
        elif text:
            text[0] = head.ljust(INDENT) + text[0].strip()
        else:
            text = [head]
        yield from text


def wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """The text in lines of at most `width`, whatever its line breaks were."""
    words = " ".join(text.split())
    space = " " * indent
    return textwrap.wrap(
        words, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False, break_long_words=False
    )


def options_of(options_class: type, default: Any = dataclasses.MISSING, group: str = "options") -> Iterator[Option]:
    """Every option of a dataclass tree; a nested dataclass is a group of its own, after the others."""
    hints = typing.get_type_hints(options_class, include_extras=True)
    nested = []
    for field in dataclasses.fields(options_class):
        hint, value = hints[field.name], value_of(field, default)
        if is_fixed(hint):
            continue
        if dataclasses.is_dataclass(hint):
            nested.append((hint, value, field.name))
            continue
        extras = getattr(hint, "__metadata__", ())
        text = said_of(extras, "help") or docstrings(options_class).get(field.name, "")
        metavar = said_of(extras, "metavar") or metavar_of(hint)
        place = tyro.conf.Positional in extras
        several = typing.get_origin(bare(hint)) is tuple
        if place:
            metavar = f"{metavar} ..." if several else metavar
            metavar = metavar if value is dataclasses.MISSING else f"[{metavar}]"
        elif several:
            metavar = f"{metavar} ..."
        yield Option(f"--{flag(options_class, field.name)}", metavar, text + shown_default(value, text), group, place)
    for hint, value, name in nested:
        yield from options_of(cast(type, hint), value, f"{name} options")


def said_of(extras: Sequence[Any], name: str) -> str:
    """Return an argument of the `tyro.conf.arg` among the annotations of a field."""
    return next((getattr(extra, name) for extra in extras if getattr(extra, name, None)), "")


def value_of(field: dataclasses.Field, default: Any) -> Any:
    """The default of a field: of this instance where there is one; MISSING where it has to be given."""
    if default is not dataclasses.MISSING:
        return getattr(default, field.name)
    factory: Any = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def shown_default(value: Any, text: str) -> str:
    """Return the default as shown after the text about an option: nothing where there is no default, or where the text
    says it."""
    silent = value is dataclasses.MISSING or value is None or value is False or value == ()
    return "" if silent or re.search(r"\bDefault\b", text) else f" [default: {value}]"


def bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def metavar_of(hint: Any) -> str:
    """The word that stands for a value of this type: INT, PATH, {auto,off}; empty for a switch."""
    hint = bare(hint)
    arguments = typing.get_args(hint)
    if hint is bool:
        return ""
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "|".join(dict.fromkeys(metavar_of(argument) for argument in arguments if argument is not type(None)))
    if typing.get_origin(hint) is tuple:
        return metavar_of(arguments[0])
    return WORDS.get(hint, "TEXT")


@cache
def docstrings(options_class: type) -> dict[str, str]:
    """The string below each field of a class and of its bases, as sphinx and pdoc read them."""
    found: dict[str, str] = {}
    for base in reversed(options_class.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for node, following in pairwise(cast(ast.ClassDef, body).body):
            match node, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found
