"""Text for people, for files and for shells."""

import csv
import io
import os
import subprocess
from pathlib import Path

import pytest

from common.shell import PROGRAM, command, typed
from common.tables import csv_text
from common.text import printable, wrapped


def test_unprintable_text_becomes_its_code():
    assert printable("größe 猫 'a\"") == "größe 猫 'a\""
    assert printable("a\nb\x1b\t\udcff\u200b") == r"a\nb\x1b\t\udcff\u200b"


def test_csv_text_reads_back_with_line_feeds():
    rows = [["a,b", 'say "hi"', "two\nlines"], [1, 0.5, ""]]
    text = csv_text(["x", "y", "z"], iter(rows))
    assert text.startswith("x,y,z\n")
    assert "\r" not in text
    assert list(csv.reader(io.StringIO(text)))[1:] == [[str(cell) for cell in row] for row in rows]


@pytest.mark.parametrize("name", ["plain", "two words", "quo'te", 'dou"ble', "größe 猫", "$HOME;", "new\nline", ""])
def test_shell_reads_a_quoted_word_back(name):
    said = subprocess.run(["bash", "-c", typed("printf", "%s", name)], capture_output=True, check=True)
    assert os.fsdecode(said.stdout) == name


def test_a_path_that_begins_like_an_option_is_none():
    assert command("check", Path("-rf")) == f"{PROGRAM} check ./-rf"
    assert command("train", "--data", Path("my photos")) == f"{PROGRAM} train --data 'my photos'"


def test_narrow_terminal_breaks_sentences_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    sentence = "     note  " + "a word and vit_stem_16-tiny_imagenet.safetensors " * 2
    assert wrapped(sentence) == sentence
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = wrapped(sentence, indent=11).splitlines()
    assert " ".join(lines).split() == sentence.split()
    assert all(line.startswith(" " * 11) for line in lines[1:])
    for kept in ("kind    severity    count    for example    and even more of it", f"  {command('check', 'x' * 60)}"):
        assert wrapped(kept) == kept


def test_terminal_narrower_than_the_indent(monkeypatch):
    monkeypatch.setenv("COLUMNS", "8")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert wrapped("epoch      one two", indent=11).split("\n") == ["epoch      one", " " * 11 + "two"]
