"""`--dry-run` and `--find-lr` with a plan: every run that it may start is tried, not the first alone."""

from __future__ import annotations

import pytest
from fake_sets import class_folders
from small_run import call

from trainers.budget import plan
from trainers.budget.fine_tuning import PlannedRun
from trainers.tools import dry_run


@pytest.fixture
def two_runs(monkeypatch):
    """A plan of a probe and a model that is trained after it; gives what was planned and tried, in its order."""
    done = []
    rehearsed = dry_run.dry_run

    def probe_and_model(config, **words):
        for trainable in ("head", "all"):
            done.append(f"plan {trainable}")
            model = {"name": "vit_micro_2", "image_size": 8, "trainable": trainable}
            yield PlannedRun(config.changed(model=model, train={"epochs": 1}))

    def note(config):
        done.append(f"try {config.model.trainable}")
        return rehearsed(config)

    monkeypatch.setattr(plan, "planned", probe_and_model)
    monkeypatch.setattr(dry_run, "dry_run", note)
    return done


def words_of(tmp_path) -> list[object]:
    data = class_folders(tmp_path / "pets", {"a": 12, "b": 12})
    options = "--minutes 1 --device cpu --workers 0 --tb scalars --batch-size 8"
    return ["train", data, *options.split(), "--output-dir", tmp_path / "runs"]


def test_a_dry_run_tries_every_run_of_a_plan(tmp_path, capsys, two_runs):
    """The probe alone was tried, and `dry run passed` said of the run that is trained, and often kept, after it."""
    code, out, err = call(capsys, *words_of(tmp_path), "--dry-run")
    assert code == 0, err
    assert out.count("dry run passed") == 2
    assert "run 1 of the 2 that the plan starts: vit_micro_2, head trained" in out
    assert "run 2 of the 2 that the plan starts: vit_micro_2, all trained" in out
    assert two_runs == ["plan head", "plan all", "try head", "try all"]  # a rehearsal takes no time of the next run's
    assert not list((tmp_path / "runs").rglob("config.json"))


def test_the_rate_finder_draws_a_curve_for_every_run_of_a_plan(tmp_path, capsys, two_runs, monkeypatch):
    monkeypatch.setattr("trainers.tools.lr_finder.range_test", lambda config: ([1e-4, 1e-3, 1e-2], [2.0, 1.0, 0.5]))
    code, _out, err = call(capsys, *words_of(tmp_path), "--find-lr")
    assert code == 0, err
    names = {path.name for path in (tmp_path / "runs" / "pets").glob("[!.]*")}
    assert names == {"lr_finder.png", "lr_finder_2.png"}
