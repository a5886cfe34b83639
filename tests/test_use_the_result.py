"""A run of the oldest format that is read opens in this version, and the page about using a result tells the truth."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import labelled_photos, make_run

import main
from commands.arguments import options_of
from datasets.transforms import Pipeline
from trainers.storage.finished_run import load

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "data" / "format_2"
PAGE = (ROOT / "docs" / "use-the-result.md").read_text(encoding="utf-8")


def frozen_pixels() -> np.ndarray:
    return (np.arange(256, dtype=np.uint32).reshape(4, 1, 8, 8) * 37 % 256).astype(np.uint8)


def test_a_checkpoint_of_the_oldest_format_opens_and_computes_the_same():
    expected = json.loads((FROZEN / "expected.json").read_text())
    model, spec, class_names = load(FROZEN)
    assert list(class_names) == expected["class_names"]
    with torch.inference_mode():
        logits = model(Pipeline(spec).normalise(torch.from_numpy(frozen_pixels())))
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), atol=1e-5, rtol=0)


def test_every_command_takes_the_oldest_format(capsys, tmp_path):
    run = Path(shutil.copytree(FROZEN, tmp_path / "run"))
    data = labelled_photos(tmp_path / "data", classes=("3", "7"), n=2)
    for argv in (
        ["predict", run, data],
        ["evaluate", run, "--data", data],
        ["explain", run, data / "3" / "0.png"],
        ["export", run],
        ["train", "--weights", run, "--model", "vit_micro_2", "--image-size", "8", "--data", data, "--epochs", "1",
         "--device", "cpu", "--output-dir", tmp_path / "runs", "--workers", "0", "--val-fraction", "0.5",
         "--test-fraction", "0", "--tb", "scalars"],
    ):  # fmt: skip
        assert main.main([str(word) for word in argv]) == 0, capsys.readouterr().err


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
