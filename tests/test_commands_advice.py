"""What messages advise can be typed: each `--word` is an option that a command which may print it takes on its line."""

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module

import pytest
from test_architecture import FILES, imported

import main
from commands.parser import ASKED, ELSEWHERE, docstrings, named_options
from common.errors import OptionError
from common.options import NoWord, options_of
from trainers.config import OutputConfig, RunConfig, by_section, from_dict, run_options
from trainers.storage.data_folder import free_folder, plan_run_directory

CLASSES = {name: import_module(f"commands.{name}").Options for name in main.COMMANDS}
LINES = {name: {*named_options(options_class), *ASKED, "--debug"} for name, options_class in CLASSES.items()}
ROOMS = {"comparison.": ["compare"], "trainers.budget.": ["train"], "inference.labels.clean": ["clean"]}
"""Modules whose messages are those of fewer commands than import them."""
OTHERS = ("torchrun", "docker", "pip", "tensorboard", "git", "squeue")
"""Programs whose options are named, too."""
WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
LINE = re.compile(r"""(?<![\w.-])([a-z][a-z_-]*) = ("[^"]*"|[\d.]+|true|false)(?![\w(])""")
"""A line of a file of options, such as `mixup = 0`."""


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
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    printed_by, left_out = {}, {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        first = getattr(node, "args", None) or getattr(node, "elts", None) or [None]
        word = getattr(first[0], "value", "") if isinstance(first, list) else ""
        if isinstance(node, ast.List) and word in OTHERS:
            left_out |= {id(part) for part in ast.walk(node)}
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command" and word in CLASSES:
            printed_by |= {id(part): [word] for part in ast.walk(node)}
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (getattr(part, "value", part) for part in node.values)
            text = "".join(part if isinstance(part, str) else f"{{{ast.unparse(part)}}}" for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        # A word alone, in the code of a command, may be one of a command line that is put together there.
        alone = WORD.fullmatch(text) and module.startswith(("commands.", "inference.labels."))
        yield text, printed_by.get(id(node)) or ([*CLASSES] if alone else who_prints(module))


def untypeable(text: str, commands: Sequence[str]) -> set[str]:
    """The options in a text that none of these commands takes on its line, nor the program that it names before."""
    words = set()
    for match in WORD.finditer(text):
        named = re.findall(rf"(?<![\w-])({'|'.join([*CLASSES, *OTHERS])})(?![\w-])", text[: match.start()].lower())
        if not (named and named[-1] in OTHERS) and not any(
            match[0] in LINES[name] for name in {*commands, *named} & {*CLASSES}
        ):
            words.add(match[0])
    return words


@pytest.mark.parametrize("module", sorted({*FILES} - {"commands.parser", "commands.compare"}))
def test_every_option_that_a_message_names_can_be_typed(module):
    assert not {text: words for text, commands in texts(module) if (words := untypeable(text, commands))}


def test_every_line_of_a_file_that_a_message_advises_is_taken_there():
    lines = [
        (text, *line)
        for module in FILES
        for text, _ in texts(module)
        if "file" in text or "config" in text
        for line in [*LINE.findall(text), *((name, None) for name in re.findall(r"in a file: ([a-z][a-z_-]*)", text))]
    ]
    assert len(lines) >= 5
    options = {name: option for option in run_options() for name in (option.name, option.flag.removeprefix("--"))}
    base = RunConfig().changed(data={"folds": 3})
    for text, name, value in lines:
        assert NoWord not in options[name].marks, text
        if value is not None:
            from_dict(RunConfig, by_section(tomllib.loads(f"{name} = {value}")), base=base)


@pytest.mark.parametrize("name", CLASSES)
def test_every_option_that_the_help_of_a_command_names_can_be_typed(name):
    options = options_of(CLASSES[name])
    helps = {option.flag: option.arg.help or docstrings(option.owner).get(option.name, "") for option in options}
    shown = {flag: text for flag, text in helps.items() if flag in LINES[name]}
    assert not {flag: words for flag, text in shown.items() if (words := untypeable(text, [name]))}


@pytest.mark.parametrize("foreign", ELSEWHERE)
def test_the_option_that_is_named_in_place_of_a_foreign_one_is_taken_where_it_is_named(foreign, capsys):
    for name, line in LINES.items():
        if foreign not in line and main.main([name, foreign, "x"]):
            here = re.findall(r"here it is (--[a-z-]+)", capsys.readouterr().err)
            assert {*here} <= line


def test_a_comparison_is_not_advised_to_go_on_with_a_run(tmp_path):
    run = tmp_path / "digits" / "r"
    run.mkdir(parents=True)
    (run / "config.json").touch()
    with pytest.raises(OptionError, match="--run-name") as refused:
        free_folder(OutputConfig(output_dir=tmp_path, run_name="r"), "digits", "compare")
    assert "--auto-resume" not in str(refused.value)


def test_who_gives_auto_resume_is_not_advised_to_give_it(tmp_path):
    config = RunConfig(output=OutputConfig(output_dir=tmp_path, run_name="r", auto_resume=True))
    with pytest.raises(OptionError) as refused:
        for _ in range(2):
            folder = plan_run_directory(config)
            folder.mkdir(parents=True)
            (folder / "config.json").touch()
    assert "--auto-resume" not in str(refused.value)
    assert "--run-name" in str(refused.value)
