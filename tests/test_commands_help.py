"""The help of every command: a first screen, then everything; lines that fit; a text for each option."""

import importlib
import re
import shutil
import subprocess

import pytest

import main
from commands.arguments import TrainOptions, UsageError, flags, named, parse
from commands.help import lines, metavar_of, options_of, shown_default

MODULES = {name: importlib.import_module(f"commands.{name}") for name in main.COMMANDS}
CLASSES = {name: getattr(module, "Options", TrainOptions) for name, module in MODULES.items()}
BOTH = pytest.mark.parametrize("everything", [False, True], ids=["-h", "--help-all"])
EACH = pytest.mark.parametrize("name", CLASSES)


def shown(name: str, *, everything: bool, width: int = 80) -> list[str]:
    return list(lines(CLASSES[name], prog=f"python main.py {name}", everything=everything, width=width))


@EACH
@BOTH
@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(name, everything, width):
    for line in shown(name, everything=everything, width=width):
        example = line.startswith("  python main.py") and width < 80
        assert len(line) <= width or len(line.split()) == 1 or example, line


def test_the_list_of_commands_fits_80_columns(capsys):
    assert main.main(["--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@EACH
def test_every_option_stands_in_the_whole_help_with_a_text(name):
    options = {option.name: option for option in options_of(CLASSES[name])}
    assert set(options) == set(flags(CLASSES[name]))
    text = "\n".join(shown(name, everything=True))
    for option in options.values():
        assert option.text.strip(), option.name
        assert re.search(rf"^  {re.escape(option.metavar if option.positional else option.name)}", text, re.M)
    assert "None" not in text


@EACH
def test_a_text_is_a_sentence(name):
    for option in options_of(CLASSES[name]):
        text = re.sub(r" \[default: .*\]$", "", option.text)
        assert text.endswith("."), option
        assert not text.startswith(("Of ", "So ", "The same")), option


@pytest.mark.parametrize("name", ["train", "compare"])
def test_the_first_screen_has_examples_that_are_understood_and_some_twenty_options(name):
    screen = shown(name, everything=False)
    options_class = CLASSES[name]
    assert 12 <= len(options_class.FIRST) <= 20
    assert len(screen) < 100
    assert f"--help-all lists all {len(list(flags(options_class)))} options." in screen[-1]
    assert all(words in "\n".join(screen) for words, _ in options_class.EXAMPLES)


@pytest.mark.parametrize("name", ["train", "compare"])
def test_the_examples_parse(name, tmp_path, monkeypatch):
    from commands.arguments import options_of as parsed

    monkeypatch.chdir(tmp_path)
    command = importlib.import_module(f"commands.{name}")
    for words, _ in CLASSES[name].EXAMPLES:
        for run in re.findall(r"runs/\S+", words):
            (tmp_path / run).mkdir(parents=True, exist_ok=True)
            (tmp_path / run / "config.json").touch()
        parsed(command, words.split(), prog=name)


def test_defaults_are_said_once_and_only_where_there_is_one():
    assert shown_default(3, "Runs.") == " [default: 3]"
    assert shown_default(3, "Runs. Default: three.") == ""
    assert [shown_default(value, "x") for value in (None, False, ())] == ["", "", ""]


def test_the_word_for_a_value_follows_its_type():
    from pathlib import Path
    from typing import Literal

    wanted = {int: "INT", bool: "", int | float | None: "INT|FLOAT", Literal["a", "b"]: "{a,b}", Path | None: "PATH"}
    assert {hint: metavar_of(hint) for hint in wanted} == wanted


@pytest.mark.parametrize("words", [["train", "-h"], ["predict", "--help"], ["compare", "--help-all"]])
def test_help_goes_to_standard_output_with_exit_code_0(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(words)
    assert not stop.value.code
    assert capsys.readouterr().out.startswith("usage: python main.py")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not here")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("tr", "train"), ("train --weight", "--weight-decay --weights --weights-source"), ("check --no", "--no-near")],
)
def test_a_shell_completes_commands_and_options(typed, completed, capsys):
    assert main.main(["--completion"]) == 0
    words = ["vit-train", *typed.split()]
    ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _vit_train; echo ${{COMPREPLY[@]}}"
    shell = ["bash", "-c", f"{capsys.readouterr().out}\n{ask}"]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.strip() == completed


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_shell_is_offered_what_the_command_understands_and_nothing_else(name, capsys):
    assert main.main(["--completion"]) == 0
    offered = re.search(rf'^ +{name}\) words="(.*)" ;;$', capsys.readouterr().out, re.MULTILINE)[1].split()
    assert set(offered) == {*named(CLASSES[name]), "-h", "--help", "--help-all", "--debug"}
    assert not [option for option in named(CLASSES[name]) if "unknown option" in complaint(CLASSES[name], option)]


def complaint(options_class: type, *words: str) -> str:
    try:
        parse(options_class, words, prog="x")
    except UsageError as error:
        return str(error)
    return ""


def test_explain_lists_the_methods_that_there_are():
    from commands.explain import Options
    from trainers.reporting.explanations.methods import BEST_FIRST, METHODS

    text = next(option.text for option in options_of(Options) if option.name == "--method")
    listed = text.partition(": ")[2].partition(" [")[0].replace(" or ", " ")
    assert re.findall(r"[a-z]+(?:-[a-z]+)*", listed) == ["auto", *METHODS]
    assert set(re.findall(r"[a-z-]+", Options.__doc__)) >= set(BEST_FIRST)
