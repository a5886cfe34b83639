"""Commands that are printed can be pasted: the shell gives back the very words."""

import os
import subprocess
from pathlib import Path

import pytest

from common.shell import PROGRAM, broken, command, quoted, typed
from common.text import wrapped

ODD = [
    "plain", "two words", "quo'te", 'dou"ble', "größe 猫", "$HOME", "a;b", "*", "~", "back\\slash", "new\nline", "\t",
    "zero\u200bwidth", os.fsdecode(b"k\xe4se"), "", "'\n", "#x", "!x",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_the_shell_reads_a_quoted_word_back_as_it_was(name):
    line = typed("printf", "%s", name)
    assert line.isprintable()
    said = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert os.fsdecode(said.stdout) == name


def test_a_path_that_begins_like_an_option_is_none():
    assert command("check", Path("-rf")) == "python main.py check ./-rf"
    assert command("train", "--data", Path("my photos")) == "python main.py train --data 'my photos'"


@pytest.mark.parametrize(
    ("word", "shown"),
    [("C:\\x\\y", "C:\\x\\y"), ("my photos", '"my photos"'), ("a&b", '"a&b"'), ("größe", "größe"), ("", '""')],
)
def test_windows_has_double_quotes(word, shown, monkeypatch):
    monkeypatch.setattr("os.name", "nt")
    assert quoted(word) == shown


@pytest.mark.parametrize("width", [30, 45, 80])
def test_a_shell_joins_a_broken_command_again_and_no_line_is_wider_than_it_has_to_be(width):
    words = [*ODD, *(f"{name} and more" for name in ODD)]
    line = typed("printf", "%s\\0", *words)
    shown = broken(line, width)
    said = subprocess.run(
        ["bash", "-c", shown], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert [os.fsdecode(word) for word in said.stdout.split(b"\0")[:-1]] == words
    assert all(len(row) <= max(width, 4 + max(map(len, map(quoted, words))) + 2) for row in shown.splitlines())
    assert len(shown.splitlines()) < len(words), "as many words on a line as fit"


def test_on_a_terminal_a_command_is_broken_so_that_it_can_be_pasted(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    line = f"      use  {PROGRAM} predict 'my runs/pets/vit_nano_8_s0' path/to/images"
    assert wrapped(line, indent=11) == line  # into a pipe
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    first, second, third = wrapped(line, indent=11).splitlines()
    assert first == f"      use  {PROGRAM} predict \\"
    assert (second, third) == ("           'my runs/pets/vit_nano_8_s0' \\", "           path/to/images")
    monkeypatch.setattr("os.name", "nt")
    assert wrapped(line, indent=11) == line
