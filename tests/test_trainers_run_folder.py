"""A run's folder: each file is read once and judged there, whoever asks; a new look reads anew."""

import json
from collections import Counter
from pathlib import Path

import pytest
from small_run import META, SUMMARY, call, tiny_run

from common.errors import CheckpointError
from trainers.run import train
from trainers.storage.run_folder import RunFolder, write_json

OF_A_RUN = ("config.json", "meta.json", "summary.json")
SCORES = {"accuracy": 0.5, "loss": 1.0, "macro_f1": 0.5, "ece": 0.1}


@pytest.fixture
def run(tmp_path):
    write_json(tmp_path / "meta.json", META)
    write_json(tmp_path / "summary.json", SUMMARY)
    return RunFolder(tmp_path)


def test_a_file_is_read_once_and_anew_by_a_new_object(run):
    assert run.is_finished is False  # no config.json
    assert (run.progress, run.about) == (SUMMARY, META)
    for name in ("summary", "meta"):
        (run.path / f"{name}.json").unlink()
    assert (run.summary, run.meta, run.progress["status"], run.moment) == (SUMMARY, META, "finished", META["started"])
    again = RunFolder(run.path)
    assert (again.about, again.progress, again.unfinished) == ({}, {"status": "running", "epochs": 0}, "")
    with pytest.raises(FileNotFoundError, match="no summary.json"):
        _ = again.summary


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(("meta", {name: None}) for name in META),
        *(("meta", change) for change in ({"class_names": []}, {"class_names": ["a", 3]}, {"directory": 3})),
        *(("summary", {name: "x"}) for name in ("epochs", "seconds", "best", "parameters", "images_seen", "images")),
        *(("summary", {"test": test}) for test in ({}, {"n": 3}, SCORES | {"loss": float("nan")}, [1])),
        ("summary", {"best": {"epoch": "1"}}),
        ("summary", {"test": SCORES}),  # whose images are not counted
    ],
    ids=str,
)
def test_what_a_file_has_to_say_is_judged_where_it_is_opened(run, name, changes):
    path = run.path / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=rf"{name}.json is damaged: {next(iter(changes))} is |images is "):
        getattr(run, name)
    assert (run.about == {}) is (name == "meta")
    assert (run.progress["status"] == "running") is (name == "summary")


def test_a_run_that_is_not_finished_has_no_results_yet(run):
    write_json(run.path / "summary.json", {"status": "interrupted", "epochs": 2, "seconds": 1.0, "best": None})
    assert run.progress["epochs"] == 2
    assert "was interrupted after epoch 2" in run.unfinished


@pytest.fixture
def read(monkeypatch):
    """Count how often each JSON file of a run is read."""
    counts, original = Counter(), Path.read_text

    def counted(path, *args, **options):
        if path.name in OF_A_RUN:
            counts[path.name] += 1
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    return counts


def test_a_command_reads_what_a_run_says_of_itself_once(tmp_path, capsys, read):
    run = train(tiny_run(tmp_path)).run_dir
    assert read == {"meta.json": 1}
    read.clear()
    assert call(capsys, "evaluate", run, "--device", "cpu")[0] == 0
    assert read == dict.fromkeys(OF_A_RUN, 1)
