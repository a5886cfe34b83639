"""Names from other people do nothing, in a spreadsheet or on a terminal; those that are not UTF-8, as a zip of an old
Windows leaves them, train, and every later command works."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_sets import class_folders, save
from small_run import CLASSES, call, labelled_photos, make_run

from common.tables import csv_text, read_rows
from inference.classifier import open_classifier

ROOT = Path(__file__).resolve().parent.parent
CHEESE = os.fsdecode(b"k\xe4se")
TINY = ["--model", "vit_micro_2", "--image-size", 8, "--epochs", 1, "--device", "cpu", "--workers", 0]
HOSTILE = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "'=x", "''=x", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0", "-a.png"]
HARMLESS = ["-1", "+1.5", "-1e-05", "a=b", "'quoted'", "", "é\udcff", "-", "x\ny"]


def test_a_formula_is_written_as_text_and_read_back(tmp_path):
    path, cells = tmp_path / "t.csv", HOSTILE + HARMLESS
    path.write_text(csv_text(("a", "b"), [(cell, 1) for cell in cells]), errors="surrogateescape", newline="")
    with path.open(errors="surrogateescape", newline="") as file:
        _, *written = [row[0] for row in csv.reader(file)]
    assert [cell for cell in written if cell.startswith("'")] == [f"'{cell}" for cell in HOSTILE] + ["'quoted'"]
    assert [row["a"] for row in read_rows(path, ("a", "b"))] == cells


FORMULA, ESCAPE = "=1+1", "\x1b[2Jgone"


def placed(words: list[str], places: dict[str, object]) -> list[str]:
    """A command line with places in place of their names."""
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    return words


@pytest.fixture
def hostile(tmp_path):
    return make_run(tmp_path / "run", classes=(FORMULA, ESCAPE, CLASSES[0]))


@pytest.fixture
def pictures(tmp_path):
    return labelled_photos(tmp_path / "data", classes=(FORMULA, ESCAPE, CLASSES[0]), n=1)


def test_a_run_keeps_its_class_names(hostile):
    assert open_classifier(str(hostile)).class_names == (FORMULA, ESCAPE, CLASSES[0])


def test_predictions_are_a_table_of_text(hostile, pictures, capsys):
    code, out, err = call(capsys, "predict", hostile, *pictures.rglob("*.png"), "--top", "3")
    assert (code, "\x1b" in out + err) == (0, False)
    assert {cell[:1] for row in csv.reader(io.StringIO(out)) for cell in row} <= {*"pl/'\\a01", ""}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("explain RUN PICTURE --output FOLDER/maps", 0),
        ("explain RUN PICTURE --target \x1b[2Jnone --output FOLDER/maps", 2),
        ("export RUN --format safetensors --output FOLDER/m.safetensors", 0),
        ("evaluate RUN --data DATA --output FOLDER/eval", 0),
        ("evaluate RUN --data \x1b]0;title\x07 --device cpu", 2),
        ("check DATA --output FOLDER/check.csv", 3),
        ("summary --model \x1b[2Jnone", 2),
        ("pack DATA FOLDER/shards", 0),
        ("train DATA --model vit_micro_2 --epochs 1 --output-dir FOLDER/runs", 3),
    ],
)
def test_no_command_prints_an_escape(hostile, pictures, tmp_path, capsys, words, expected):
    places = {"RUN": hostile, "DATA": pictures, "FOLDER": tmp_path, "PICTURE": next(pictures.rglob("*.png"))}
    code, out, err = call(capsys, *placed(words.split(" "), places))
    assert (code, "\x1b" in out + err) == (expected, False), err


def test_tables_of_an_evaluation_are_text(hostile, tmp_path, capsys):
    photos = labelled_photos(tmp_path / "photos", classes=(FORMULA, ESCAPE, CLASSES[0]), n=1)
    assert call(capsys, "evaluate", hostile, "--data", photos, "--output", tmp_path / "eval")[0] == 0
    held = {}
    for table in (tmp_path / "eval").rglob("*.csv"):
        with table.open(errors="surrogateescape", newline="") as file:
            held[table.name] = {cell for row in csv.reader(file) for cell in row}
    assert len(held) >= 3
    assert not [name for name, cells in held.items() if FORMULA in cells]
    assert len([name for name, cells in held.items() if f"'{FORMULA}" in cells]) >= 2


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


def test_other_programs_read_what_training_writes(run, books):
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
def test_every_command_takes_such_runs_and_images(words, run, books, others, tmp_path, capsys):
    places = {"RUN": run, "DATA": books, "OTHERS": others, "OUT": tmp_path, "CHEESE": CHEESE}
    code, _, err = call(capsys, *placed([*map(str, words)], places))
    assert code == 0, err


def test_check_finds_and_leaves_out_such_images(tmp_path, capsys):
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
