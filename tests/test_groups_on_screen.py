"""Copies among the test images: what a person reads counts pictures, from the end of a training to a comparison."""

from __future__ import annotations

import json
import re

import pytest
from fake_sets import save
from small_run import call

from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import read_result

PICTURES, COPIES = 6, 4
TINY = (
    "--model", "vit_micro_4", "--weights", "none", "--image-size", "32", "--epochs", "1", "--batch-size", "8",
    "--augment", "none", "--workers", "0", "--device", "cpu", "--tb", "scalars",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two classes; each picture of the test split lies there four times."""
    root = tmp_path_factory.mktemp("bursts")
    for number, name in enumerate(("ant", "bee")):
        for i in range(6):
            save(root / "train" / name / f"{i}.png", seed=100 * number + i)
            save(root / "val" / name / f"{i}.png", seed=100 * number + 20 + i)
        for i in range(PICTURES // 2):
            for copy in range(COPIES):
                save(root / "test" / name / f"{i}_{copy}.png", seed=100 * number + 40 + i)
    return root


def test_every_score_of_copies_is_said_to_be_worth_the_pictures(data, tmp_path, capsys):
    runs, said = [], []
    for run in (0, 1):
        words = ("--output-dir", tmp_path, "--run-name", f"r{run}", "--lr", 0.001 * (1 + run))
        code, out, err = call(capsys, "train", "--data", data, *TINY, *words)
        assert code == 0, err
        said.append(out)
        runs.append(tmp_path / data.name / f"r{run}")
    worth = f"test  {PICTURES * COPIES} images in {PICTURES} groups, effectively about {PICTURES}; 95% interval "
    assert all(worth in out for out in said)
    assert "val  " not in said[0].rpartition("ECE")[2].partition("test  ")[2]  # those all stand alone
    found = json.loads((runs[0] / "summary.json").read_text())["groups"]
    assert found["test"]["groups"] == PICTURES
    assert read_result(RunFolder(runs[0])).designs["test"].effect == pytest.approx(COPIES, rel=0.01)

    _, out, _ = call(capsys, "evaluate", runs[0], "--split", "test")
    assert worth.replace("test  ", "scored  ") in out
    _, out_json, _ = call(capsys, "evaluate", runs[0], "--split", "test", "--json")
    scored = json.loads(out_json)["scored"]
    assert (scored["images"], scored["design"]["groups"]) == (PICTURES * COPIES, PICTURES)
    assert scored["interval"][0] <= scored["metrics"]["accuracy"] <= scored["interval"][1]
    _, elsewhere, _ = call(capsys, "evaluate", runs[0], "--data", data / "test", "--output", tmp_path / "eval")
    assert f"{PICTURES * COPIES} images in {PICTURES} groups, effectively about {PICTURES}; " in elsewhere
    of_train, of_evaluate = (re.findall("95% interval (.*)", text) for text in (said[0], out))
    assert of_train == of_evaluate

    code, out, err = call(capsys, "compare", *runs, "--output-dir", tmp_path)
    assert code == 0, err
    assert f"{PICTURES * COPIES} test images in {PICTURES} groups" in out
    (report,) = tmp_path.rglob("report.html")
    assert f"come in {PICTURES} groups, effectively about {PICTURES} that" in report.read_text(encoding="utf-8")


def test_the_power_before_a_comparison_counts_groups(data, tmp_path, capsys):
    arms = ("--arms", *(f"vit_micro_4,weights=none,lr={lr}" for lr in (0.001, 0.01)), "--seeds", "1")
    rest = ("--image-size", "32", "--epochs", "1", "--jobs", "1", "--tb", "scalars", "--tune-lr", "off")
    code, out, err = call(capsys, "compare", "--data", data, *arms, *rest, "--output-dir", tmp_path)
    assert code == 0, err
    (line,) = [line for line in (out + err).splitlines() if line.lstrip().startswith("power")]
    assert f"{PICTURES * COPIES} test images in {PICTURES} groups, 1 seed" in line
