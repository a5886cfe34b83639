"""The page about using a result tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_run import labelled_photos, make_run

from commands.arguments import options_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "use-the-result.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(tmp_path, capsys):
    data = labelled_photos(tmp_path / "data", n=1)
    names = {"RUN": str(make_run(tmp_path / "run")), "IMAGE": str(data / "bee" / "0.png"), "FOLDER": str(data)}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    out = capsys.readouterr().out
    assert out.splitlines()[0] in names["class_names"]
    assert "torch.Size([8, 8])" in out


@pytest.mark.parametrize("command", re.findall(r"`python main.py (.*?)`", PAGE))
def test_the_commands_of_the_page_parse(command):
    import importlib

    name, *words = command.replace("...", "").split()
    options_of(importlib.import_module(f"commands.{name}"), words, prog="main.py")
