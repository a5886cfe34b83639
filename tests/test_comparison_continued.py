"""A comparison that goes on says how long the runs take that are left, and nothing where all are there."""

import shutil

import pytest
from small_run import call

from comparison.request import timing
from trainers.budget.pace import Pace
from trainers.storage.run_folder import read_json, write_json

WORDS = "compare --data digits --labels-per-class 3 --arms vit_micro_2 vit_micro_2,pool=mean --seeds 2 --epochs 1"
WORDS += " --val-fraction 0.03 --test-fraction 0.03 --device cpu --workers 0 --threads 1 --jobs 1 --tb scalars"
WORDS += " --tune-lr on --lr-grid 0.001 0.003 --output-dir"


@pytest.fixture
def finished(tmp_path, capsys, monkeypatch):
    """The folder of a comparison of six runs, all of which are there; only its report may be missing."""
    monkeypatch.setattr("comparison.reporting.report.draw", lambda *_: [])  # tests/test_comparison_report.py draws
    code, _, err = call(capsys, *WORDS.split(), tmp_path)
    assert code == 0, err
    return tmp_path / "digits" / "compare"


def continued(finished, capsys) -> str:
    """What the same command says where the comparison was stopped before its end."""
    known = read_json(finished / "compare.json")
    settled = {"epochs": [1], "threads": 1}
    write_json(finished / "compare.json", known | {"status": "running", **settled})
    code, out, err = call(capsys, *WORDS.split(), finished.parent.parent)
    assert code == 0, err
    assert "(continued)" in out
    return out


def test_only_what_is_left_is_measured_and_announced(finished, capsys, monkeypatch):
    measured = []
    pace = Pace(step=30.0, steps_per_epoch=1, validation=0.0, decoding=0.0, conclusion=0.0)
    monkeypatch.setattr(timing, "WORTH_MEASURING", 0)
    monkeypatch.setattr(timing, "measure", lambda setup: measured.append(setup) or pace)
    monkeypatch.setattr("trainers.budget.pace.PICTURES_AND_FILES", 30.0)
    assert "time  about" not in continued(finished, capsys)
    assert measured == []
    (trial,) = (finished.parent.parent / "tuning").rglob("compare/pool_mean/3/s0_lr*")
    for run in (finished / "pool_mean" / "3" / "s1", trial):
        shutil.rmtree(run)
    assert "time  about 2 min for the 2 of 6 runs that are left" in continued(finished, capsys)
    assert len(measured) == 2
    assert "time  about" not in continued(finished, capsys), "they are there again"
