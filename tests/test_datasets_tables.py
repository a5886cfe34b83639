"""Tables as pandas reads and gives them, where names and numbers are odd."""

import math

import numpy as np
import pandas as pd
import pytest
from small_comparison import arm_of

from comparison.analysis.results import analyse
from comparison.analysis.runs import Comparison, Condition
from comparison.reporting.table import table_csv, table_frame
from datasets.errors import DataError
from datasets.sources.csv_table import read_table
from datasets.split_reading import read_split
from datasets.tables import csv_lines, frame_of, frame_text
from datasets.tables import read_table as read_own
from trainers.storage.run_folder import read_json, write_json
from trainers.storage.run_result import RunResult

CELLS = ["a,b", 'say "hi"', "two\nlines", "a\rb", "=1+1", "'=x", "-1", "é\udcff", "", " x "]
ODD = "\udcff"


def test_a_frame_and_a_stream_of_rows_make_the_same_text_which_reads_back_to_the_last_bit(tmp_path):
    numbers = np.random.default_rng(0).standard_normal(len(CELLS)).tolist()
    header, rows = ("path", "=n", "number"), [(cell, 3, x) for cell, x in zip(CELLS, numbers, strict=True)]
    text = frame_text(frame_of(header, rows))
    assert text == "".join(csv_lines(header, rows))
    (tmp_path / "t.csv").write_text(text, errors="surrogateescape", newline="")
    read = read_own(tmp_path / "t.csv", ("path", "number"))
    assert read["path"].tolist() == CELLS
    assert read["number"].map(float).tolist() == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no table that can be read"),
        ("path,label\na,b,c\n", "is no table that can be read"),
        ("path,label\na,b\nc,d,e,f\n", "is no table that can be read.*line 3"),
        ('path,label\n"a,b\n', "is no table that can be read"),
        ("path,name\na,b\n", "has the columns path, name; a split needs label"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said) as error:
        read_own(tmp_path / "t.csv", ("path", "label"), what="split")
    assert "\n" not in str(error.value)


def test_a_split_of_windows_has_slashes_and_an_image_comes_once(tmp_path):
    path = tmp_path / "split.csv"
    path.write_text("path;label;split\ncat\\1.png;cat;train\ncat\\2.png;cat;val\n")
    assert [row.path for row in read_split(path)] == ["cat/1.png", "cat/2.png"]
    path.write_text("path,label,split\na,cat,train\na,cat,val\n")
    with pytest.raises(DataError, match="'a' appears more than once"):
        read_split(path)


def test_lines_of_a_persons_table_are_counted_as_an_editor_does(tmp_path):
    (tmp_path / "a.png").touch()
    table = tmp_path / "t.csv"
    table.write_text('path,label\n\n"no\nsuch",cat\na.png,cat,dog\n  ,\na.png,cat\ngone.png,dog\n')
    found = {(problem.kind, problem.detail.rpartition(" ")[2]) for problem in read_table(table).problems}
    assert {("missing_file", "8"), ("ragged_row", "5")} <= found


def test_a_comparison_of_odd_names_has_its_table(tmp_path):
    """pyarrow, where it is installed, holds no such text: the comparison would end in a traceback."""
    classes = ("zebra", f"ant{ODD}")
    arms = tuple(
        arm_of(tmp_path, name, np.array([[True, right, True, False]]), [0, 1, 0, 1], classes=classes)
        for name, right in (("a", True), ("b", False))
    )
    comparison = Comparison(data=ODD, conditions=(Condition(None, arms),), protocol=(), warnings=(), command="")
    frame = table_frame(comparison, analyse(comparison))
    assert frame["accuracy"].tolist() == [0.75, 0.5]
    assert frame["worst_class"].tolist() == [f"ant{ODD}"] * 2
    assert frame["arm"].tolist() == ["a", "b"]
    assert np.isnan(frame["difference"][0])
    assert frame["seeds"].dtype == np.int64
    assert f"{ODD},,a,test," in table_csv(comparison, analyse(comparison))


def test_predictions_of_odd_names_are_a_frame(tmp_path):
    run = arm_of(tmp_path, "a", np.array([[True, False]]), [0, 1]).runs[0].run_dir
    meta = read_json(run / "meta.json")
    write_json(run / "meta.json", meta | {"class_names": ["zebra", f"ant{ODD}", "bee"]})
    table = run / "eval" / "test_predictions.csv"
    content = "path,label,predicted,probabilities\nx\udcff.png,zebra,ant\udcff,0.25 0.5 0.25\n"
    table.write_text(content, errors="surrogateescape")
    scores = {"accuracy": 0.5, "loss": 1.0}
    frame = RunResult(run, 0, scores, None, []).predictions("test")
    assert frame.loc[0].tolist() == [f"x{ODD}.png", "zebra", f"ant{ODD}", 0.25, 0.5, 0.25]
    assert frame[f"p(ant{ODD})"].dtype == np.float64


def test_a_history_is_numbers_alone(tmp_path):
    rows = [{"epoch": 0, "loss": None, "memory_mb": None}, {"epoch": 1, "loss": math.pi, "memory_mb": None}]
    history = RunResult(tmp_path, 1, {}, None, rows).history
    assert history["epoch"].dtype == np.int64
    assert history["loss"].tolist()[1] == math.pi
    assert history["memory_mb"].isna().all()
    assert pd.api.types.is_float_dtype(history["memory_mb"])
