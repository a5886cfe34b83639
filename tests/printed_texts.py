"""Every text that the program may print, read from its source, and the options that each command takes."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module

from test_architecture import FILES, imported

import main
from commands.parser import ASKED, named_options

CLASSES = {name: import_module(f"commands.{name}").Options for name in main.COMMANDS}
LINES = {name: {*named_options(options_class), *ASKED, "--debug"} for name, options_class in CLASSES.items()}
ROOMS = {"comparison.": ["compare"], "trainers.budget.": ["train"], "inference.labels.clean": ["clean"]}
"""Modules whose messages are those of fewer commands than import them."""
OTHERS = ("torchrun", "docker", "pip", "tensorboard", "git", "squeue")
"""Programs whose options are named, too."""
WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@cache
def reached(name: str) -> frozenset[str]:
    found, todo = set(), [f"commands.{name}"]
    while todo:
        if (module := todo.pop()) not in found:
            found.add(module)
            todo += imported(module)
    return frozenset(found)


def who_prints(module: str) -> list[str]:
    if module.startswith("commands.") and module.removeprefix("commands.") in CLASSES:
        return [module.removeprefix("commands.")]
    rooms = [commands for room, commands in ROOMS.items() if module.startswith(room)]
    found = rooms[0] if rooms else [name for name in CLASSES if module in reached(name)]
    return found or [*CLASSES]


@cache
def texts(module: str) -> list[tuple[str, list[str]]]:
    """Each string of a module that is no docstring, with the commands that may print it."""
    return [*texts_in(module)]


def texts_in(module: str) -> Iterator[tuple[str, list[str]]]:
    nodes = [*ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8")))]
    printed_by, left_out = {}, {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.List) and first_word(node.elts) in OTHERS:
            left_out |= {id(part) for part in ast.walk(node)}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command":
            if (name := first_word(node.args)) in CLASSES:
                printed_by |= {id(part): [name] for part in ast.walk(node)}
        elif isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in nodes:
        if id(node) not in left_out and (text := text_of(node)) is not None:
            # A word alone, in the code of a command, may be one of a command line that is put together there.
            alone = WORD.fullmatch(text) and module.startswith(("commands.", "inference.labels."))
            yield text, printed_by.get(id(node)) or ([*CLASSES] if alone else who_prints(module))


def first_word(nodes: Sequence[ast.expr]) -> object:
    return getattr(nodes[0], "value", None) if nodes else None


def text_of(node: ast.AST) -> str | None:
    """A string, or an f-string with the code between its braces."""
    if isinstance(node, ast.JoinedStr):
        parts = (getattr(part, "value", part) for part in node.values)
        return "".join(part if isinstance(part, str) else f"{{{ast.unparse(part)}}}" for part in parts)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def untypeable(text: str, commands: Sequence[str]) -> set[str]:
    """The options in a text that none of these commands takes on its line, nor the program that it names before."""
    words = set()
    for match in WORD.finditer(text):
        named = re.findall(rf"(?<![\w-])({'|'.join([*CLASSES, *OTHERS])})(?![\w-])", text[: match.start()].lower())
        of_another = named and named[-1] in OTHERS
        if not of_another and not any(match[0] in LINES[name] for name in {*commands, *named} & {*CLASSES}):
            words.add(match[0])
    return words
