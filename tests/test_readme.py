"""The commands of the README run, and so does the Python of the page about using a result."""

import importlib
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from killed_runs import Crash
from small_comparison import arm_of, comparison_of
from small_images import image_folder
from small_run import labelled_photos, make_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import main
from commands.parser import parse
from common.image_spec import ImageSpec
from comparison.verdict import last_screen
from datasets import build_dataloaders

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_table_is_complete():
    rows = [line for line in README.splitlines() if line.startswith("| ")]
    assert set(main.COMMANDS) <= set(re.findall(r"`(\w+)`", "\n".join(rows)))


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if "main.py" in line]


def test_the_readme_has_commands_that_are_understood():
    assert len(commands()) >= 4
    for line in commands():
        name, *words = shlex.split(line.partition("main.py")[2]) or ["compare"]
        parse(importlib.import_module(f"commands.{name}").Options, words, prog="main.py")


# Checkpoints of vit_b_16 have 343 MB. tests/test_commands_ensemble.py plans minutes, tests/test_commands_compare.py
# compares.
COSTLY = ("vit_b_16", "--minutes", "compare")
LINES = [
    pytest.param(line, marks=pytest.mark.slow) if any(word in line for word in COSTLY) else line for line in commands()
]


@pytest.mark.parametrize("line", LINES)
def test_commands_of_the_readme_run(line, tmp_path, monkeypatch, capsys):
    """Each one runs on a small folder; training is cut short by options that the command line accepts after its own."""
    data = image_folder(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.replace("path/to/images", str(data)).partition("main.py")[2])
    if "vit_b_16" in line:
        words += ["--weights", "none", "--image-size", "32"]
    if words[0] in {"train", "compare"}:
        length = ["--minutes", "0.01"] if "--minutes" in words else ["--epochs", "1"]
        words += [*length, "--image-size", "32", "--device", "cpu", "--workers", "0", "--tb", "scalars"]
    if words[0] == "compare":
        words += ["--seeds", "1", "--tune-lr", "off"]
        monkeypatch.setattr("comparison.report.draw", lambda *_: [])  # tests/test_comparison_report.py draws them
    if words[0] in {"evaluate", "predict"}:
        small = ["--model", "vit_micro_4", "--epochs", "1", "--workers", "0", "--tb", "scalars"]
        main.main(["train", "--data", str(data), *small])
    assert main.main(words) == 0, capsys.readouterr().err


SCREEN = re.search(r"```text\n(labels  .*?)\n```", README, re.DOTALL)[1]
"""Last screen of the bare command."""


def test_the_last_screen_of_the_bare_command_is_shown(tmp_path):
    """But for its numbers, and where its lines end: of models that still improved, with few labels both."""
    labels = [row % 3 for row in range(60)]
    start = [{"step": 0, "lr": None, "val_accuracy": 0.1, "train_accuracy": None}]
    rising = start + [
        {"step": epoch, "lr": 1.0, "val_accuracy": 0.03 * epoch, "train_accuracy": 0.5} for epoch in range(1, 21)
    ]
    conditions = []
    for count in (10, None):
        right = {"vit_nano_8 from scratch": np.arange(60) < 20, "vit_nano_8 pretrained": np.arange(60) < 57}
        arms = [arm_of(tmp_path / str(count), name, np.array(3 * [each]), labels) for name, each in right.items()]
        for place in range(2 if count else 1):
            arms[place] = [replace(run, history=rising) for run in arms[place]]
        conditions.append((count, arms))

    def without_numbers(text):
        return " ".join(re.sub(r"[\d.,]*\d", "#", text).split())

    assert without_numbers(SCREEN) == without_numbers("\n".join(last_screen(comparison_of(*conditions))))


@pytest.mark.slow
def test_the_bare_command_ends_with_table_and_12_runs(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "main.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    rows = done.stdout[done.stdout.index("\nlabels ") :].splitlines()[1:]
    assert [re.findall("[a-z]+", row) for row in rows[:4]] == [
        re.findall("[a-z]+", row) for row in SCREEN.splitlines()[:4]
    ]
    compared = tmp_path / "runs" / "digits" / "compare"
    assert (compared / "report.html").stat().st_size > 10_000
    folders = [*compared.glob("*/*/s?")]
    assert len(folders) == 2 * 2 * 3
    for folder in folders:
        events = EventAccumulator(str(folder / "tb" / "val")).Reload()
        (accuracy,) = [tag for tag in events.Tags()["scalars"] if tag.endswith("/accuracy")]
        assert len(events.Scalars(accuracy)) > 2


def test_the_bare_command_makes_the_readmes_table(monkeypatch, capsys):
    asked = []

    def compare_arms(request, **_):
        asked.append(request)
        raise Crash

    monkeypatch.setattr("comparison.compare.compare_arms", compare_arms)
    with pytest.raises(Crash):
        main.main([])
    (request,) = asked
    head, *rows = SCREEN.splitlines()
    end = next(place for place, line in enumerate(rows) if line.startswith("accuracy in %"))
    rows, note = rows[:end], rows[end]
    tested, seeds = map(int, re.findall(r"of (\d+) test images, (\d+) seeds", note)[0])
    assert request.seeds == seeds
    assert ["all" if labels is None else str(labels) for labels in request.labels] == [row.split()[0] for row in rows]
    starts = ["from scratch" if arm.model.weights == "none" else "pretrained" for arm in request.arms]
    assert re.split("  +", head)[1:3] == starts
    assert len({arm.model.name for arm in request.arms}) == 1
    shown = re.findall(r"\(([\d,]+) images shown\)", README)
    assert [*request.images_seen] == [int(number.replace(",", "")) for number in shown]
    assert build_dataloaders(request.base.data, ImageSpec(image_size=8))[2]["test"] == tested


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
    name, *words = command.replace("...", "").split()
    parse(importlib.import_module(f"commands.{name}").Options, words, prog="main.py")
