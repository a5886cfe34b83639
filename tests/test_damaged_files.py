"""A file that is damaged, or says what cannot be, is one line and exit code 2 or 3, whichever command opens it."""

import csv
import io
import json
import shutil

import pytest
import torch
from mutated_files import outcomes
from one_layer import one_layer
from small_run import CLASSES, labelled_photos, make_run

import main
from common.errors import DataError
from common.tables import csv_text, read_rows
from datasets.split_csv import read_split
from inference.classifier import open_classifier
from inference.export import export
from trainers.storage.checkpoint_file import best_of, read_checkpoint, write_checkpoint
from trainers.storage.run_folder import write_json
from vit.export import describe

DEEP = "[" * 100_000
BAD_JSON = [
    "",
    "[]",
    '{"model": ',
    "7",
    DEEP,
    '{"train": {"epochs": 1e400}}',
    '{"status": {}}',
    '{"status": "finished"}',
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return labelled_photos(tmp_path_factory.mktemp("photos"), n=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("whole") / "run", name="vit_micro_2")
    write_json(folder / "meta.json", {"data_fingerprint": "0", "threads": 1, "versions": {"torch": "2"}})
    write_json(folder / "summary.json", {"status": "finished", "epochs": 1, "best": {"epoch": 1}, "test": None})
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of a run."""
    return shutil.copytree(whole, tmp_path / "run")


def refused(capsys, *words):
    """The one line that a command says; there is no traceback."""
    assert main.main([str(word) for word in words]) in (2, 3)
    *_, line = capsys.readouterr().err.splitlines() or [""]
    assert line.startswith("error: ")
    assert len(line) < 600
    return line


@pytest.mark.parametrize("content", BAD_JSON)
@pytest.mark.parametrize("name", ["config", "meta", "summary"])
def test_a_damaged_json_of_a_run_is_one_line(run, photos, tmp_path, capsys, name, content):
    (run / f"{name}.json").write_text(content)
    picture = shutil.copy(photos / CLASSES[0] / "0.png", tmp_path)
    for words in (["evaluate", run], ["resume", run], ["compare", run, run], ["predict", run, picture]):
        code = main.main([str(word) for word in words])
        err = capsys.readouterr().err
        assert code in (0, 2, 3), err
        assert "Traceback" not in err
        assert len(err.splitlines()) == (code > 0), err


def with_facts(run, **facts):
    content = read_checkpoint(best_of(run))
    del content["sha256"]
    for name, value in facts.items():
        *parents, last = name.split("__")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    write_checkpoint(best_of(run), content)


@pytest.mark.parametrize(
    "facts",
    [
        {"class_names": []}, {"class_names": 7}, {"class_names": "abc"}, {"class_names": [1, None, {}]},
        {"class_names": ["a", "b"]}, {"class_names": None}, {"format_version": "1"}, {"format_version": None},
        {"image_spec": None}, {"image_spec": {"image_size": 10**9}}, {"image_spec": {"image_size": -1}},
        {"image_spec": {"mean": [float("nan")] * 3}}, {"image_spec": {"image_size": "x"}}, {"image_spec": []},
        {"image_spec__std": [0.0, 0.0, 0.0]}, {"image_spec__image_size": 10**400},
        {"config": None}, {"config": {}}, {"config__model": 3}, {"config__model__name": 3},
        {"config__model__name": "no such"}, {"config__model__image_size": 10**6}, {"config__model__image_size": 64},
        {"config__model__in_channels": 10**7}, {"config__model__in_channels": 1},
        {"config__model__representation_size": 10**9}, {"config__model__trainable": f"last:{'9' * 5000}"},
        {"config__model__name": "resnet18"}, {"config__model__name": "own:Thing"}, {"config__model__name": "auto"},
        {"model": {}}, {"model": {"a": torch.zeros(1)}}, {"model": [1]}, {"model__pos": "text"}, {"model": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_says_what_cannot_be_is_one_line(run, photos, capsys, facts):
    with_facts(run, **facts)
    refused(capsys, "predict", run, photos)


@pytest.mark.parametrize("kind", ["one_layer", pytest.param("onnx", marks=pytest.mark.slow)])
def test_an_export_whose_bytes_changed_is_one_line(run, photos, tmp_path, capsys, kind):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    classifier = open_classifier(str(run), device="cpu")
    if kind == "one_layer":
        weights = one_layer(path, describe(classifier.spec, classifier.class_names, {})).numpy().tobytes()
    else:
        export(classifier, kind, path)
        weights = next(iter(classifier.model.state_dict().values())).numpy().tobytes()
    assert main.main(["predict", str(path), str(photos)]) == 0
    capsys.readouterr()
    whole = path.read_bytes()
    place = whole.index(weights[:36]) + 30
    for start, end, new in ((place, place + 1, bytes([whole[place] ^ 64])), (len(whole) // 2, None, b"")):
        path.write_bytes(whole[:start] + new + (whole[end:] if end else b""))
        refused(capsys, "predict", path, photos)


def test_a_table_that_is_none_is_one_line(tmp_path):
    path = tmp_path / "split.csv"
    for content in ("path,label,split\n" + "x" * 5_000_000, "", "\0", 'path,label,split\n"a', "path,label,split\n1"):
        path.write_text(content)
        with pytest.raises(DataError):
            read_split(path)


@pytest.mark.slow
def test_no_mutated_file_ends_in_a_traceback_a_hang_or_another_content():
    allowed, found = {"refused", "loaded, equal", "loaded, other"}, list(outcomes(range(3600)))
    assert [row for row in found if row[2] not in allowed] == []
    assert {outcome for _, _, outcome, _ in found} == allowed


HOSTILE = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "'=x", "''=x", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0", "-a.png"]
HARMLESS = ["-1", "+1.5", "-1e-05", "a=b", "'quoted'", "", "é\udcff", "-", "x\ny"]


def test_what_a_spreadsheet_would_run_is_written_as_text_and_read_back_unchanged(tmp_path):
    path = tmp_path / "t.csv"
    cells = HOSTILE + HARMLESS
    path.write_text(csv_text(("a", "b"), [(cell, 1) for cell in cells]), errors="surrogateescape", newline="")
    written = [
        row[0] for row in csv.reader(io.StringIO(path.read_bytes().decode(errors="surrogateescape"), newline=""))
    ][1:]
    assert not [cell for cell in written if cell.startswith(("=", "@", "\t", "\r", "\n"))]
    assert [row["a"] for row in read_rows(path, ("a", "b"))] == cells


def test_names_in_tables_and_on_a_terminal_are_harmless(tmp_path, capsys):
    classes = ("=1+1", "\x1b[2Jgone", CLASSES[0])
    run = make_run(tmp_path / "run", classes=classes)
    data = labelled_photos(tmp_path / "data", n=1)
    (data / "ant").rename(data / "=1+1")
    (data / "bee").rename(data / "\x1b[2Jgone")
    assert main.main(["predict", str(run), *map(str, data.rglob("*.png")), "--top", "3"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert {cell[:1] for row in csv.reader(io.StringIO(out)) for cell in row} <= {*"pl/'\\a01", ""}
    assert main.main(["evaluate", str(run), "--data", "\x1b]0;title\x07", "--device", "cpu"]) in (2, 3)
    assert "\x1b" not in "".join(capsys.readouterr())
    assert json.loads(json.dumps(classes)) == list(open_classifier(str(run)).class_names)
