"""Make parser and help of every command from its class of options.

No torch here.
"""

import argparse
import ast
import dataclasses
import glob
import inspect
import mimetypes
import os
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, cast

from common.errors import OptionError
from common.options import InFiles, NoWord, Option, Output, OutputFolder, Positional, options_of
from common.text import did_you_mean

ASKED = {"-h", "--help", "--help-all"}
ELSEWHERE = {
    "--learning-rate": "--lr", "--lr0": "--lr", "--wd": "--weight-decay", "--batch": "--batch-size",
    "--img-size": "--image-size", "--imgsz": "--image-size", "--input-size": "--image-size",
    "--num-epochs": "--epochs", "--num-workers": "--workers", "--opt": "--optimizer", "--optim": "--optimizer",
    "--data-dir": "--data", "--data-path": "--data", "--dataset": "--data", "--arch": "--model",
    "--output": "--output-dir", "--project": "--output-dir", "--name": "--run-name", "--model-ema": "--ema-decay",
    "--labels": "--labels-per-class", "--freeze": "--trainable", "--gpu": "--device", "--model": "--arms",
    "--gpus": "torchrun, a process for each GPU (docs/cluster.md); --device takes one",
    "--resume": "the command `resume RUN`", "--pretrained": "--weights", "--clip-grad": "--clip-norm",
}  # fmt: skip
"""Names that other training programs have for our options."""
OUTPUTS = {Output, OutputFolder}
OPEN_PARTS = (("export",), ("explain",))
"""Folders of a run that commands fill when they are asked to."""
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: ""}


class UsageError(OptionError):
    """A command line that cannot be understood."""


class ManyOptions:
    """Base of options too many for one screen, some of which come from files."""

    FIRST: ClassVar[tuple[str, ...]] = ()
    """The options that most people need, in the order in which `-h` shows them."""
    EXAMPLES: ClassVar[tuple[str, ...]] = ()
    """Words of a command line."""
    IN_FILES: ClassVar[frozenset[str]] = frozenset()
    """Options that this command takes from a file alone, besides those with the mark `InFiles`."""
    OF_ARMS: ClassVar[frozenset[str]] = frozenset()
    """Options that a model of a comparison may have for itself."""

    @classmethod
    def from_given(cls, given: Mapping[Option, Any]) -> Self:
        """Return all options, of which `given` stand on the command line."""
        raise NotImplementedError


class Parser(argparse.ArgumentParser):
    """A parser that raises its complaints."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized") and all(action.option_strings for action in self._actions):
            message += f"; all that it takes has a name: {self.prog} --help"
        raise UsageError(message)


def parse(options_class: type, argv: Sequence[str], *, prog: str) -> Any:
    """Fill `options_class` from the words of a command line.

    Raises OptionError: one line that names the option, the value and what would work. SystemExit: help was asked for.
    """
    given = given_in(options_class, argv, prog=prog)
    spare_inputs(given)
    if issubclass(options_class, ManyOptions):
        return options_class.from_given(given)
    return filled(options_class, given)


def spare_inputs(given: Mapping[Option, Any]) -> None:
    """Raise UsageError where an output would replace what the command reads, or a run."""
    outputs = {option: Path(os.path.realpath(value)) for option, value in given.items() if OUTPUTS & {*option.marks}}
    if not outputs:
        return
    values = (value for option, value in given.items() if option not in outputs)
    words = [word for value in values for word in (value if isinstance(value, tuple) else (value,))]
    named = [str(word) for word in words if isinstance(word, str | Path)]
    files = {Path(os.path.realpath(path)) for word in named for path in (word, *glob.iglob(word, recursive=True))}
    folders = {Path(os.path.realpath(word)) for word in words if isinstance(word, str) and os.path.isdir(word)}
    for option, place in outputs.items():
        above, there = {place, *place.parents}, place.exists()
        runs = (path for path in above if (path / "config.json").is_file() and (path / "checkpoints").is_dir())
        run = next(runs, None)
        part = place.relative_to(run).parts[:1] if run else ()
        images = [path for path in above & folders if path != run]
        is_picture = there and (mimetypes.guess_type(place)[0] or "").startswith("image/")
        if place in files and there:
            why = "is read by this command"
        elif run and (part == ("checkpoints",) or (there and place != run / "eval" and part not in OPEN_PARTS)):
            why = f"belongs to the run {run}"
        elif images and (OutputFolder in option.marks or is_picture):
            why = f"lies among the images of {images[0]}"
        elif is_picture and option.name != "grid":
            why = "is a picture"
        else:
            continue
        raise UsageError(f"{option.flag} {given[option]} {why}, and would be written over: name another place")


def filled(options_class: type, given: Mapping[Option, Any], base: Any = None) -> Any:
    """Return the options that are given over those of `base`.

    Raises OptionError: a value that a class refuses."""
    values = by_sections(given)
    changes = values.pop("", {})
    for field in dataclasses.fields(options_class):
        if field.name == "given":  # of a class with the options of a run
            changes["given"] = getattr(base, "given", frozenset()) | {option.flag for option in given}
        elif field.name in values:
            section = cast(Any, field.default_factory)() if base is None else getattr(base, field.name)
            changes[field.name] = dataclasses.replace(section, **values[field.name])
    return options_class(**changes) if base is None else dataclasses.replace(base, **changes)


def by_sections(given: Mapping[Option, Any]) -> dict[str, dict[str, Any]]:
    """Group values by the section of their options, as in a file.

    Those of the command itself are in no section."""
    values: dict[str, dict[str, Any]] = {}
    for option, value in given.items():
        values.setdefault(option.section, {})[option.name] = value
    return values


def given_in(options_class: type, argv: Sequence[str], *, prog: str) -> dict[Option, Any]:
    """Read the options that a command line gives, and their values. Raises as `parse` does."""
    if asked := ASKED.intersection(argv):
        print(help_of(options_class, prog=prog, everything="--help-all" in asked), end="", flush=True)
        raise SystemExit(0)
    options = argv[: argv.index("--")] if "--" in argv else argv
    named = [word.split("=")[0] for word in options if word.startswith("--")]
    known = named_options(options_class)
    for name in dict.fromkeys(named):
        if name not in known:
            raise UsageError(elsewhere(name, options_class, known, prog=prog))
        if named.count(name) > 1 and name == "--data":
            raise UsageError("--data is given twice: name one set of images")
        if named.count(name) > 1:
            print(f"note: {name} is given twice: the last one counts", file=sys.stderr)
    # intermixed: else images that follow an option would be words too many
    found = vars(parser_of(options_class, prog=prog).parse_intermixed_args(argv))
    given = {}
    for option in on_line(options_class):
        values = [found[key] for key in (option.flag, option.name) if key in found]
        if len(values) > 1:
            raise UsageError(f"{values[1]} and {option.flag} {values[0]}: name one set of images")
        if values:
            given[option] = tuple(values[0]) if isinstance(values[0], list) else values[0]
        elif option.flag == "--data" and option.default is dataclasses.MISSING:
            others = "".join(f" {metavar_of(place)}" for place in by_place(options_class) if place.flag != "--data")
            kinds_of_sets = "a folder, table, zip, shards, or a built-in set"
            raise UsageError(f"name the images: {prog} path/to/images{others} ({kinds_of_sets})")
    return given


def screen_of(options_class: type) -> type[ManyOptions]:
    """Return what a class says of its screen; most say nothing."""
    return options_class if issubclass(options_class, ManyOptions) else ManyOptions


def on_line(options_class: type) -> list[Option]:
    """List the options that a command line may set."""
    in_files = screen_of(options_class).IN_FILES
    return [
        option
        for option in options_of(options_class)
        if not {InFiles, NoWord} & {*option.marks} and not (option.section and option.flag in in_files)
    ]


def by_place(options_class: type) -> list[Option]:
    """List the options that are given by their place, else that of the images."""
    options = on_line(options_class)
    own = [option for option in options if Positional in option.marks]
    return own or [option for option in options if option.flag == "--data"]


def named_options(options_class: type) -> list[str]:
    """List the options that are given by their name; `--data` always may be."""
    places = by_place(options_class)
    return [option.flag for option in on_line(options_class) if option not in places or option.flag == "--data"]


def elsewhere(name: str, options_class: type, known: Sequence[str], *, prog: str) -> str:
    """Say where an option belongs that this command line does not know."""
    ours = ELSEWHERE.get(name, name.replace("_", "-"))
    if ours in known or " " in ours:
        return f"unknown option {name}; here it is {ours}. See {prog} --help"
    for option in options_of(options_class):
        if "--config" in known and option.section and option.flag in (name, ours):
            of_an_arm = option.flag in screen_of(options_class).OF_ARMS
            arm = f" or, for one model, --arms MODEL,{option.name}=VALUE" * of_an_arm
            return f"{name} is set in a file: --config FILE with the line {option.section}.{option.name} = VALUE{arm}"
    return f"unknown option {name}{did_you_mean(name, known)} See {prog} --help"


def parser_of(options_class: type, *, prog: str, shown: Sequence[Option] = (), everything: bool = False) -> Parser:
    """Make a parser, with help for the options that are shown, in their order."""
    width = min(shutil.get_terminal_size().columns, 100)
    options, places = on_line(options_class), by_place(options_class)
    words = [
        metavar_of(place) if place.default is dataclasses.MISSING else f"[{metavar_of(place)}]" for place in places
    ]
    paragraphs = (inspect.getdoc(options_class) or "").split("\n\n")
    if not everything:
        paragraphs = [first_sentence(paragraphs[0]) + "."]
    parser = Parser(
        prog=prog,
        usage=" ".join([prog, *words, "[OPTIONS]"]),
        description="\n\n".join(textwrap.fill(" ".join(text.split()), width) for text in paragraphs),
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=26),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    listed = [*shown, *(option for option in options if option not in shown)]
    for option in sorted(listed, key=lambda option: option not in places):
        title = f"{option.section} options".strip() if everything else "options"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = text_of(option, everything=everything) if option in shown else argparse.SUPPRESS
        add(groups[title], option, text, place=option in places)
    return parser


def add(group: Any, option: Option, text: str, *, place: bool) -> None:
    """Add an option to a parser, by place or name, `--data` by both."""
    several = takes_several(option)
    value = {"type": partial(read, option), "metavar": metavar_of(option)}
    if place:
        needed = option.default is dataclasses.MISSING and option.flag != "--data"
        nargs = "*" if several else None if needed else "?"
        group.add_argument(option.name, help=text, nargs=nargs, **value)
        if option.flag != "--data":
            return
        text = argparse.SUPPRESS
    names = [name for name in (option.arg.short, option.flag) if name]
    how = {"action": "store_true"} if option.kind is bool else {"nargs": "+" if several else None, **value}
    group.add_argument(*names, dest=option.flag, help=text, **how)


def takes_several(option: Option) -> bool:
    """Return whether an option has several values."""
    return any(typing.get_origin(kind) is tuple for kind in (option.kind, *typing.get_args(option.kind)))


def read(option: Option, word: str) -> Any:
    """Return the value that a word stands for.

    Raises ArgumentTypeError: none of this option's types has it."""
    word = os.path.expanduser(word)  # which a shell leaves after --NAME=
    for kind in kinds(option.kind):
        if typing.get_origin(kind) is not Literal:
            try:
                return kind(word)
            except ValueError:
                continue
        if word in typing.get_args(kind):
            return word
    wanted = [choice for kind in kinds(option.kind) for choice in typing.get_args(kind) or (METAVARS[kind],)]
    raise argparse.ArgumentTypeError(f"{word!r} is not {' or '.join(wanted)}")


def kinds(hint: Any) -> tuple[Any, ...]:
    """List the types that one value may have: of `tuple[int, ...] | None` int."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in arguments if part is not types.NoneType for kind in kinds(part))
    return kinds(arguments[0]) if typing.get_origin(hint) is tuple else (hint,)


def metavar_of(option: Option) -> str:
    """Return the word for a value in the help, such as INT, PATH or {auto,off}."""
    if option.arg.metavar:
        return option.arg.metavar
    words = (
        "{" + ",".join(typing.get_args(kind)) + "}" if typing.get_origin(kind) is Literal else METAVARS[kind]
        for kind in kinds(option.kind)
    )
    return "|".join(words)


def help_of(options_class: type, *, prog: str, everything: bool) -> str:
    """Return the help: all of it, or of `-h` a line for each important option."""
    options = on_line(options_class)
    screen, more = screen_of(options_class), ""
    if not everything:
        more = f"--help-all says more about all {len(options)} options."
        flags = {option.flag.removeprefix("--"): option for option in options}
        options = [flags[name] for name in screen.FIRST] or options
    parser = parser_of(options_class, prog=prog, shown=options, everything=everything)
    examples = ["examples:", *(f"  {prog} {words}" for words in screen.EXAMPLES)] if screen.EXAMPLES else []
    parser.epilog = "\n".join([*examples, more]).strip()
    return parser.format_help()


def text_of(option: Option, *, everything: bool) -> str:
    """Return the help of an option: its first sentence, or all, with its default."""
    text = " ".join((option.arg.help or docstrings(option.owner)[option.name]).split()).replace("%", "%%")
    if not everything:
        return first_sentence(text)
    silent = option.default in (dataclasses.MISSING, None, ()) or option.default is False or "Default: " in text
    return text if silent else f"{text} [default: {option.default}]"


def first_sentence(text: str) -> str:
    """Return the first sentence without its full stop."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


@cache
def docstrings(options_class: type) -> dict[str, str]:
    """Return the string below each field of a class and of its bases."""
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
