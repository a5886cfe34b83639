"""Names from other people do nothing: not in a spreadsheet that opens a table, and not on a terminal."""

import csv
import io

import pytest
from small_run import CLASSES, call, labelled_photos, make_run

from common.tables import csv_text, read_rows
from inference.classifier import open_classifier

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


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", classes=(FORMULA, ESCAPE, CLASSES[0]))


@pytest.fixture
def data(tmp_path):
    return labelled_photos(tmp_path / "data", classes=(FORMULA, ESCAPE, CLASSES[2]), n=1)


def test_a_run_keeps_its_class_names(run):
    assert open_classifier(str(run)).class_names == (FORMULA, ESCAPE, CLASSES[0])


def test_predictions_are_a_table_of_text(run, data, capsys):
    code, out, err = call(capsys, "predict", run, *data.rglob("*.png"), "--top", "3")
    assert (code, "\x1b" in out + err) == (0, False)
    assert {cell[:1] for row in csv.reader(io.StringIO(out)) for cell in row} <= {*"pl/'\\a01", ""}


@pytest.mark.parametrize(
    "words",
    [
        "explain RUN PICTURE --output FOLDER/maps",
        "explain RUN PICTURE --target \x1b[2Jnone --output FOLDER/maps",
        "export RUN --format safetensors --output FOLDER/m.safetensors",
        "evaluate RUN --data DATA --output FOLDER/eval",
        "evaluate RUN --data \x1b]0;title\x07 --device cpu",
        "check DATA --output FOLDER/check.csv",
        "summary --model \x1b[2Jnone",
        "pack DATA FOLDER/shards",
        "train DATA --model vit_micro_2 --epochs 1 --output-dir FOLDER/runs",
    ],
)
def test_no_command_prints_an_escape(run, data, tmp_path, capsys, words):
    places = {"RUN": run, "DATA": data, "FOLDER": tmp_path, "PICTURE": next(data.rglob("*.png"))}
    for name, place in places.items():
        words = words.replace(name, str(place))
    code, out, err = call(capsys, *words.split(" "))
    assert code in (0, 2, 3)
    assert "\x1b" not in out + err


def test_the_tables_of_an_evaluation_are_text(run, tmp_path, capsys):
    photos = labelled_photos(tmp_path / "photos", classes=(FORMULA, ESCAPE, CLASSES[0]), n=1)
    assert call(capsys, "evaluate", run, "--data", photos, "--output", tmp_path / "eval")[0] == 0
    held = {}
    for table in (tmp_path / "eval").rglob("*.csv"):
        with table.open(errors="surrogateescape", newline="") as file:
            held[table.name] = {cell for row in csv.reader(file) for cell in row}
    assert len(held) >= 3
    assert not [name for name, cells in held.items() if FORMULA in cells]
    assert len([name for name, cells in held.items() if f"'{FORMULA}" in cells]) >= 2
