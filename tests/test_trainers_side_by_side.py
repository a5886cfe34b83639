"""Runs side by side: the same results, and no process that outlives the first one, however anything ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from child_processes import ROOT, environment, lives, processes_of, wait_until
from killed_runs import assert_same_content, rows_of, run_content
from other_process import do
from small_run import few_digits

from common.errors import Interrupted, OptionError, TrainingError
from trainers.config import RunConfig, TrainConfig
from trainers.multirun import sharing
from trainers.multirun.worker_pool import WorkerPool, one_by_one
from trainers.setup import prepare
from vit.config import ModelConfig


def test_items_are_done_here_or_in_other_processes():
    assert list(one_by_one(do, "abc")) == [(item, (item, os.getpid())) for item in "abc"]
    with WorkerPool(2) as each:
        first, second = list(each(do, "abcdef")), list(each(do, "gh"))
    assert sorted(item for item, _ in first) == list("abcdef")
    assert all(item == back for item, (back, _) in [*first, *second])
    processes = {pid for _, (_, pid) in [*first, *second]}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert not any(map(lives, processes))


def test_a_killed_process_costs_its_item_alone():
    done = []
    with pytest.raises(TrainingError, match="SIGKILL"), WorkerPool(2) as each:
        done.extend(item for item, _ in each(do, ["a", "die", "b", "c", "d"]))
    assert sorted(done) == list("abcd")


def test_processes_share_gpus_processors_and_memory():
    with WorkerPool(3, ("5", "6")) as each:
        shares = dict(each(do, ["share", "share ", "share  "]))
    assert sorted(gpu for (gpu, _), _ in shares.values()) == ["5", "5", "6"]
    assert {share for (_, share), _ in shares.values()} == {max(1, len(os.sched_getaffinity(0)) // 3)}


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ("refuse", OptionError, "an option that cannot work"),
        ("stop", Interrupted, "interrupted by SIGTERM"),
    ],
)
def test_what_ends_one_ends_all_and_arrives_as_it_was(item, error, message):
    with pytest.raises(error) as raised, WorkerPool(2) as each:
        list(each(do, ["a", item, "b"]))
    assert message in str(raised.value)


def test_a_bug_comes_with_the_place_where_it_happened():
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'") as raised, WorkerPool(2) as each:
        list(each(do, ["break"]))
    assert 'raise KeyError("a bug")' in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("device", "cores", "runs", "given", "jobs", "threads", "gpus"),
    [
        ("cpu", 2, 12, {}, 2, 1, ()),
        ("cpu", 2, 12, {"jobs": 1}, 1, 1, ()),  # the same threads, so the same bits
        ("cpu", 8, 2, {}, 2, 4, ()),
        ("cpu", 8, 3, {"jobs": 8}, 3, 2, ()),
        ("cpu", 8, 12, {"threads": 4}, 2, 4, ()),
        ("cuda", 8, 12, {}, 2, 4, ("5", "6")),
        ("cuda", 8, 12, {"jobs": 4}, 4, 4, ("5", "6")),
        ("cuda:1", 8, 12, {}, 1, None, ()),
    ],
)
def test_each_run_has_its_part_of_the_machine(monkeypatch, device, cores, runs, given, jobs, threads, gpus):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(sharing, "cpu_count", lambda: cores)
    assert sharing.sharing(device, runs, **given) == sharing.Sharing(jobs, threads, gpus)


@pytest.mark.parametrize(("given", "threads"), [(None, 1), (3, 3)])
def test_a_run_computes_with_the_threads_it_records(given, threads):
    before = torch.get_num_threads()
    config = RunConfig(ModelConfig("vit_micro_2"), few_digits(), TrainConfig(epochs=1, device="cpu", threads=given))
    try:
        assert prepare(config).config.train.threads == threads  # tests compute with one
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def compare(folder, jobs, *more):
    words = ["--arms", "vit_micro_2", "vit_micro_2,pool=mean", "--data", "digits", "--labels-per-class", "20", "all"]
    words += ["--epochs", "4", "--seeds", "2", "--tune-lr", "off", "--device", "cpu", "--tb", "scalars"]
    return [sys.executable, "main.py", "compare", *words, "--jobs", str(jobs), "--output-dir", str(folder), *more]


def table_of(folder):
    return [row | {"runs": ""} for row in rows_of(folder / "digits" / "compare" / "table.csv")]


@pytest.mark.slow
def test_runs_side_by_side_have_the_bits_of_others(tmp_path):
    for jobs in (1, 2):
        command = compare(tmp_path / str(jobs), jobs)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment())
        assert done.returncode == 0, done.stderr
    runs = sorted(path.parent.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("summary.json"))
    assert len(runs) == 8
    for run in runs:
        assert_same_content(run_content(tmp_path / "1" / run), run_content(tmp_path / "2" / run))
    folder = tmp_path / "killed"
    for signum, runs_done in ((signal.SIGKILL, 1), (signal.SIGTERM, 3), (signal.SIGINT, 5)):
        stopped(folder, signum, runs_done)
    again = subprocess.run(compare(folder, 2), cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment())
    assert again.returncode == 0, again.stderr
    assert table_of(folder) == table_of(tmp_path / "1")


def stopped(folder: Path, signum: int, runs_done: int) -> None:
    """Start a comparison, or go on with it, and stop it in its next run: as a terminal or a scheduler does, with a
    signal to all of its processes; a kill hits the first one alone."""
    with open(folder.parent / "said", "a") as said:
        process = subprocess.Popen(
            compare(folder, 2), cwd=ROOT, stdout=said, stderr=said, env=environment(), start_new_session=True
        )
    wait_until(lambda: sum('"finished"' in path.read_text() for path in folder.rglob("summary.json")) >= runs_done)
    children = processes_of(process.pid)
    (process.kill if signum == signal.SIGKILL else lambda: os.killpg(process.pid, signum))()
    assert process.wait(timeout=60) in (-signum, 128 + signum)
    assert "resource_tracker" not in (folder.parent / "said").read_text()
    wait_until(lambda: not any(map(lives, children)), seconds=5)
