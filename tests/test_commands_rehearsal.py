"""`--dry-run` with a plan: every run that it may start is tried, not the first alone."""

from __future__ import annotations

import json

import pytest
from fake_sets import class_folders
from small_run import call

from trainers import rehearsal as dry_run
from trainers.budget import plan


def planned(*options):
    """A plan of runs with these options for the head and the rest."""

    def best_in(budget, config, start, **more):
        results = [start(config.changed(**sections), ()) for sections in options]
        return results[-1]

    return best_in


KEPT = {
    "accumulate": 2, "amp": "off", "patience": 3, "select": "loss", "seed": 4,
    "save_every": 2, "log_every": 3, "threads": 1,
}  # fmt: skip
"""Options of training that say nothing of how to train."""


@pytest.mark.slow
def test_a_dry_run_tries_every_run_of_a_plan(tmp_path, capsys, monkeypatch):
    """The frozen networks, the networks that are trained and their mixture, on few batches; options are obeyed."""
    tried, rehearsed = [], dry_run.dry_run
    monkeypatch.setattr(
        dry_run, "dry_run", lambda config, **options: tried.append(config) or rehearsed(config, **options)
    )
    data = class_folders(tmp_path / "pets", {"a": 36, "b": 36})
    (tmp_path / "kept.json").write_text(json.dumps({"train": KEPT}))
    code, out, err = call(
        capsys, "train", data, "--dry-run", "--config", tmp_path / "kept.json", "--fit", "pad",
        "--augment", "light", "--batch-size", "8", "--workers", "0", "--device", "cpu",
        "--output-dir", tmp_path / "runs",
    )  # fmt: skip
    assert code == 0, err
    assert out.count("dry run passed") == len(tried) >= 2
    assert {config.model.trainable for config in tried} == {"head", "all"}
    for config in tried:
        frozen = config.model.trainable == "head"
        options = {name: getattr(config.train, name) for name in KEPT}
        assert options == KEPT | ({} if frozen else {"seed": options["seed"]})
        chosen = config.model.fit, config.data.augment, config.data.batch_size
        assert chosen == ("pad", "none" if frozen else "light", 8)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_takes_steps_for_every_run_of_a_plan(tmp_path, capsys, monkeypatch):
    model = {"name": "vit_micro_2", "image_size": 8}
    runs = [{"model": model | {"trainable": trainable}, "train": {"epochs": 1}} for trainable in ("head", "all")]
    monkeypatch.setattr(plan, "best_in", planned(*runs))
    data = class_folders(tmp_path / "pets", {"a": 12, "b": 12})
    options = "--minutes 1 --device cpu --workers 0 --tb scalars --batch-size 8 --dry-run"
    code, out, err = call(capsys, "train", data, *options.split(), "--output-dir", tmp_path / "runs")
    assert (code, out.count("dry run passed")) == (0, 2), err
    assert not (tmp_path / "runs").exists()
