"""What a command does under torchrun, where each of its processes runs it: the first speaks and writes for all."""

import subprocess
import sys

import pytest
from killed_runs import ROOT
from small_run import call

from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import read_result

SHORT = ["--data", "digits", "--labels-per-class", "4", "--epochs", "1", "--device", "cpu", "--workers", "0"]
SHORT += ["--tb", "scalars", "--model", "vit_micro_2", "--test-fraction", "0.03"]


@pytest.fixture(params=[0, 1], ids=["first", "second"])
def rank(request, monkeypatch):
    """This process as one of two."""
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": str(request.param)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    return request.param


def test_the_card_of_a_recipe_is_printed_by_the_first_process(rank, capsys, monkeypatch):
    monkeypatch.setattr("commands.train.train", lambda *_: 0)
    code, out, _ = call(capsys, "train", *SHORT, "--config", "scratch-small")
    assert (code, "scratch-small" in out) == (0, rank == 0)


def test_the_table_of_several_runs_is_printed_and_written_by_the_first_process(rank, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("WORLD_SIZE")
    assert call(capsys, "train", *SHORT, "--folds", 2, "--output-dir", tmp_path, "--run-name", "r")[0] == 0
    (tmp_path / "digits" / "r_folds.csv").unlink()
    results = [read_result(RunFolder(tmp_path / "digits" / f"r_fold{fold}")) for fold in (1, 2)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("trainers.multirun.seeds_and_folds.train_all", lambda *_, **__: results)
    code, out, _ = call(capsys, "train", *SHORT, "--folds", 2, "--output-dir", tmp_path, "--run-name", "r")
    assert code == 0
    written = (tmp_path / "digits" / "r_folds.csv").exists()
    assert ("2 folds: mean" in out) == written == (rank == 0)


@pytest.mark.slow
def test_torchrun_prints_one_card_and_one_table_of_folds(tmp_path):
    """About every second fold after the first waited for ever: its processes took the addresses of the fold before."""
    words = ["--nproc-per-node", "2", "main.py", "train", *SHORT, "--folds", "4", "--config", "scratch-small"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words, "--output-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("scratch-small:") == done.stdout.count("4 folds: mean") == 1
