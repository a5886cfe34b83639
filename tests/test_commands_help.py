"""The help and the completion of every command: one screen, then everything, and nothing that is not understood."""

import importlib
import re
import shutil
import subprocess

import pytest

import main
from commands.parser import UsageError, help_of, named_options, on_line, parse
from common.options import Positional
from common.shell import PROGRAM

CLASSES = {name: importlib.import_module(f"commands.{name}").Options for name in main.COMMANDS}
EACH = pytest.mark.parametrize("name", CLASSES)


def shown(name: str, monkeypatch, *, everything: bool, width: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    return help_of(CLASSES[name], prog=f"python main.py {name}", everything=everything).splitlines()


@EACH
def test_every_option_stands_in_the_whole_help_with_a_sentence(name, monkeypatch):
    text = "\n".join(shown(name, monkeypatch, everything=True))
    for option in on_line(CLASSES[name]):
        start = option.arg.metavar if Positional in option.marks else rf"(-\w .*, )?{option.flag}"
        assert re.search(rf"^  {start.replace('|', '[|]')}\b[^.]*\.", text, re.M), option.flag
    assert "None" not in text


@EACH
@pytest.mark.parametrize("width", [80, 100])
def test_the_first_screen_fits_and_says_how_many_options_there_are(name, width, monkeypatch):
    screen = shown(name, monkeypatch, everything=False, width=width)
    assert max(map(len, screen)) <= width
    assert len(screen) <= 24
    assert f" {len(on_line(CLASSES[name]))} options" in screen[-1]


def test_the_list_of_commands_fits_80_columns(capsys):
    assert main.main(["--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", ["train", "compare"])
def test_the_examples_parse(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in CLASSES[name].EXAMPLES:
        for run in re.findall(r"runs/\S+", words):
            (tmp_path / run).mkdir(parents=True, exist_ok=True)
            (tmp_path / run / "config.json").touch()
        parse(CLASSES[name], words.split(), prog=name)


@pytest.mark.parametrize("words", [["train", "-h"], ["predict", "--help"], ["compare", "--help-all"]])
def test_help_goes_to_standard_output_with_exit_code_0(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(words)
    assert not stop.value.code
    assert capsys.readouterr().out.startswith(f"usage: {PROGRAM}")


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not here")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("tr", "train"), ("train --weight", "--weight-decay --weights"), ("check --no", "--no-near")],
)
def test_a_shell_completes_commands_and_options(typed, completed, capsys):
    assert main.main(["--completion"]) == 0
    words = ["vit-train", *typed.split()]
    ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _vit_train; echo ${{COMPREPLY[@]}}"
    shell = ["bash", "-c", f"{capsys.readouterr().out}\n{ask}"]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.strip() == completed


@EACH
def test_a_shell_is_offered_what_the_command_understands_and_nothing_else(name, capsys):
    assert main.main(["--completion"]) == 0
    offered = re.search(rf'^ +{name}\) words="(.*)" ;;$', capsys.readouterr().out, re.MULTILINE)[1].split()
    assert set(offered) == {*named_options(CLASSES[name]), "-h", "--help", "--help-all", "--debug"}
    for option in named_options(CLASSES[name]):
        with pytest.raises(UsageError, match="unknown option --no-such"):
            parse(CLASSES[name], [option, "--no-such"], prog="x")


def test_explain_lists_the_methods_that_there_are():
    from commands.explain import Options
    from commands.parser import text_of
    from trainers.reporting.explanations.methods import BEST_FIRST, METHODS

    text = next(text_of(option, everything=True) for option in on_line(Options) if option.flag == "--method")
    listed = text.partition(": ")[2].partition(" [")[0].replace(" or ", " ")
    assert re.findall(r"[a-z]+(?:-[a-z]+)*", listed) == ["auto", *METHODS]
    assert set(re.findall(r"[a-z-]+", Options.__doc__)) >= set(BEST_FIRST)
