"""Commands that are printed can be pasted: the shell gives back the very words."""

import os
import subprocess
from pathlib import Path

import pytest

from datasets.shell import command, quoted, typed

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
