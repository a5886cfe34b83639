"""Names that are not UTF-8, as a zip of an old Windows leaves them: such a set trains and every later command works."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_sets import class_folders, save
from small_run import call

ROOT = Path(__file__).resolve().parent.parent
CHEESE = os.fsdecode(b"k\xe4se")
TINY = ["--model", "vit_micro_2", "--image-size", 8, "--epochs", 1, "--device", "cpu", "--workers", 0]


@pytest.fixture(scope="module")
def books(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("names") / os.fsdecode(b"B\xfccher")
    return class_folders(root, {CHEESE: 12, "brot": 12})


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Path:
    """Images of the same classes that the run has not been trained on."""
    return class_folders(tmp_path_factory.mktemp("names") / os.fsdecode(b"M\xe4nner"), {CHEESE: 12, "brot": 12})


@pytest.fixture(scope="module")
def run(books, tmp_path_factory) -> Path:
    import main

    runs = tmp_path_factory.mktemp("runs")
    words = ["train", "--data", books, *TINY, "--output-dir", runs, "--run-name", "r", "--tb", "full"]
    assert main.main([str(word) for word in words]) == 0
    return runs / "B_cher" / "r"


def test_what_training_writes_can_be_read_by_other_programs(run, books):
    assert json.loads((run / "config.json").read_text("utf-8"))["data"]["source"] == str(books)
    assert r"k\udce4se" in (run / "data_report.txt").read_text("utf-8")
    with open(run / "split.csv", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {CHEESE, "brot"}
    assert all((books / row["path"]).is_file() for row in rows)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN"],
        ["evaluate", "RUN", "--data", "OTHERS"],
        ["predict", "RUN", "DATA"],
        ["predict", "RUN", "DATA", "--output", "OUT/p.csv", "--grid", "OUT/grid.png"],
        ["explain", "RUN", "DATA/CHEESE/000.png", "--output", "OUT/maps"],
        ["explain", "RUN", "--page", "--output", "OUT/page"],
        ["export", "RUN"],
        ["resume", "RUN"],
        ["resume", "RUN", "--epochs", 2],
        ["compare", "RUN", "RUN", "--output-dir", "OUT/runs"],
        ["rank", "OTHERS", "--models", "RUN", "fashion_mnist", "--output-dir", "OUT/runs"],
        ["train", "--data", "DATA", "--split", "RUN/split.csv", *TINY, "--output-dir", "OUT/runs"],
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_every_command_takes_such_a_run_and_such_images(words, run, books, others, tmp_path, capsys):
    places = {"RUN": str(run), "DATA": str(books), "OTHERS": str(others), "OUT": str(tmp_path), "CHEESE": CHEESE}
    argv = []
    for word in map(str, words):
        for name, place in places.items():
            word = word.replace(name, place)
        argv.append(word)
    code, _, err = call(capsys, *argv)
    assert code == 0, err


def test_check_finds_such_images_and_its_table_leaves_them_out(tmp_path, capsys):
    root = class_folders(tmp_path / os.fsdecode(b"B\xfccher"), {CHEESE: 12, "brot": 12})
    (root / CHEESE / "000.png").write_bytes(b"")
    code, out, _ = call(capsys, "check", root, "--output", tmp_path / "found.csv")
    assert code == 3
    assert all(line.isprintable() for line in out.splitlines())
    words = ["train", "--data", root, "--exclude", tmp_path / "found.csv", *TINY, "--output-dir", tmp_path / "runs"]
    code, out, err = call(capsys, *words)
    assert (code, "1 image left out" in out) == (0, True), err


def test_an_output_folder_that_is_no_utf8_is_one_line(tmp_path, capsys):
    code, _, err = call(capsys, "train", *TINY, "--output-dir", tmp_path / CHEESE)
    assert code == 2
    assert err.endswith(r"k\udce4se is not UTF-8, and TensorBoard opens no other folder" + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("coerced", [True, False], ids=["UTF-8 mode", "ASCII"])
def test_in_the_c_locale_too(tmp_path, coerced):
    root = class_folders(tmp_path / "Bilder ñ", {"größe": 12, "b": 12})
    save(root / "b" / "猫.png", seed=5)
    off = {} if coerced else {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, "LC_ALL": "C", **off}
    environment.pop("PYTHONIOENCODING", None)
    run = tmp_path / "runs" / ("Bilder ñ" if coerced else "Bilder __") / "r"
    for words in (
        ["check", root, "--output", tmp_path / "c.csv"],
        ["train", "--data", root, *TINY, "--output-dir", tmp_path / "runs", "--run-name", "r"],
        ["evaluate", run],
        ["predict", run, root],
    ):
        argv = [sys.executable, str(ROOT / "main.py"), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, env=environment, cwd=tmp_path, timeout=600)
        assert done.returncode == 0, done.stderr
