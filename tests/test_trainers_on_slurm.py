"""Runs as jobs of a real Slurm: whatever befalls them, the table is the local one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from child_processes import ROOT, wait_until
from killed_runs import Crash, rows_of
from slurm_node import slurm_node, why_not
from small_run import call

from common.errors import TrainingError
from trainers.multirun import slurm
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.system import folder_lock

needs_slurm = pytest.mark.skipif(bool(why_not()), reason=why_not())
ARMS = ("vit_micro_2", "vit_micro_2,dropout=0.1", "vit_micro_2,dropout=0.2")
COMPARE = ["compare", "--data", "digits", "--labels-per-class", "10", "--arms", *ARMS, "--seeds", "1"]
COMPARE += ["--epochs", "24", "--tune-lr", "off", "--device", "cpu", "--workers", "0"]


@pytest.fixture
def node():
    pytest.importorskip("submitit", reason="submitit is an extra")
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm_node(Path(folder), cpus=4) as environment:
        yield environment


TRAIN = ["train", "--data", "digits", "--labels-per-class", "10", "--model", "vit_micro_2", "--epochs", "2"]
TRAIN += ["--device", "cpu", "--workers", "0"]
FOLDS = [*TRAIN, "--folds", "2", "--run-name", "cv"]


def start(environment, output, *more, command=COMPARE):
    options = Path(output).with_suffix(".toml")
    options.write_text("threads = 1")
    command = [*command, "--config", str(options)]
    return subprocess.Popen(
        [sys.executable, "main.py", *command, "--output-dir", str(output), *more],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def epochs_done(run_dir):
    path = run_dir / "metrics.csv"
    return path.read_text().count("\n") - 2 if path.exists() else 0


def what_counts(folder):
    """The rows of the table, but for times, memory and places, and the best weights of each run."""
    rows = [row | {"runs": ""} for row in rows_of(folder / "table.csv")]
    states = [read_checkpoint(best_of(run.parent))["model"] for run in sorted(folder.glob("*/*/*/checkpoints"))]
    return rows, [{name: tensor.tolist() for name, tensor in state.items()} for state in states]


@pytest.mark.slow
@needs_slurm
def test_disturbed_jobs_end_in_the_local_table(tmp_path, node):
    local = start(node, tmp_path / "local", "--jobs", "1")
    distant = start(node, tmp_path / "slurm", "--on", "slurm", "time=20", "comment=test", "--jobs", "3")
    folder = tmp_path / "slurm" / "digits" / "compare"
    wait_until((folder / "jobs" / "jobs.json").is_file, seconds=180)
    jobs = {Path(key): number for key, number in json.loads((folder / "jobs" / "jobs.json").read_text()).items()}
    runs = [folder.parent / key for key in jobs]
    wait_until(lambda: all(epochs_done(run) >= 2 for run in runs), seconds=180)  # side by side
    numbers = list(jobs.values())
    subprocess.run(["scontrol", "requeue", numbers[0]], env=node, check=True)
    subprocess.run(["scancel", "--signal=USR1", numbers[1]], env=node, check=True)
    pid = re.match(r"process (\d+) ", folder_lock.path_of(runs[2]).read_text())
    os.kill(int(pid[1]), signal.SIGKILL)
    _, error = distant.communicate(timeout=400)
    assert distant.returncode == 4, error
    assert f"job {numbers[2]}, " in error
    again = start(node, tmp_path / "slurm", "--on", "slurm", "--jobs", "3")
    assert "jobs submitted" in again.communicate(timeout=400)[0]
    assert again.returncode == 0
    local.communicate(timeout=400)
    assert local.returncode == 0
    assert what_counts(folder) == what_counts(tmp_path / "local" / "digits" / "compare")
    assert len(what_counts(folder)[1]) == 3
    assert not subprocess.run(["squeue", "-h"], env=node, capture_output=True).stdout


@pytest.mark.slow
@needs_slurm
def test_script_for_nodes_equals_one_process(tmp_path, node):
    (tmp_path / "two.toml").write_text("threads = 1")
    words = [*TRAIN[1:], "--epochs", "24", "--batch-size", "48"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        options = {"PROCESSES": "1", "PORT": str(free.getsockname()[1])}
    options["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{node['PATH']}"
    script = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--gres=none", f"--output={tmp_path}/out"]
    script += ["docs/examples/slurm_nodes.sh", *words, "--output-dir", str(tmp_path / "two")]
    script += ["--config", str(tmp_path / "two.toml")]
    done = subprocess.run(
        ["sbatch", "--parsable", *script], cwd=ROOT, env=node | options, check=True, capture_output=True, text=True
    )
    number = done.stdout.strip()
    run = tmp_path / "two" / "digits" / f"job_{number}"
    wait_until(lambda: epochs_done(run) >= 2, seconds=180)
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], env=node, check=True)
    wait_until(lambda: not subprocess.run(["squeue", "-h"], env=node, capture_output=True).stdout, seconds=400)
    assert f"resuming {run}" in (tmp_path / "out").read_text()
    one = start(node, tmp_path / "one", "--accumulate", "2", "--run-name", "r", command=["train", *words])
    assert one.communicate(timeout=400)[0]
    weights = [read_checkpoint(best_of(folder))["model"] for folder in (run, tmp_path / "one" / "digits" / "r")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


@pytest.mark.slow
@needs_slurm
def test_ctrl_c_leaves_jobs_for_the_same_command(tmp_path, node):
    first = start(node, tmp_path, "--on", "slurm", "--jobs", "2")
    folder = tmp_path / "digits" / "compare"
    wait_until((folder / "jobs" / "jobs.json").is_file, seconds=180)
    first.send_signal(signal.SIGINT)
    out, error = first.communicate(timeout=60)
    assert first.returncode == 130
    assert re.search(r"scancel \d+_0 \d+_1 \d+_2", out)
    queue = subprocess.run(["squeue", "-h", "-r", "-o", "%t"], env=node, capture_output=True, text=True).stdout.split()
    assert len(queue) == 3
    assert queue.count("R") <= 2
    again = start(node, tmp_path, "--on", "slurm", "--jobs", "2")
    out, error = again.communicate(timeout=400)
    assert again.returncode == 0, error
    assert re.search(r"0 jobs submitted, [1-3] taken up", out)


@pytest.mark.slow
@needs_slurm
def test_folds_are_jobs_that_are_read_again(tmp_path, node):
    tables = []
    for folder, more in (("local", ["--jobs", "2"]), ("slurm", ["--on", "slurm"]), ("slurm", ["--on", "slurm"])):
        out, error = (process := start(node, tmp_path / folder, *more, command=FOLDS)).communicate(timeout=400)
        assert process.returncode == 0, error
        tables.append((tmp_path / folder / "digits" / "cv_folds.csv").read_text())
        assert ("2 jobs submitted, 0 taken up" in out) == (len(tables) == 2)
    assert tables == 3 * tables[:1]


def test_missing_slurm_is_said_before_training(tmp_path, capsys, monkeypatch):
    pytest.importorskip("submitit", reason="submitit is an extra")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, error = call(capsys, *COMPARE, "--output-dir", tmp_path, "--on", "slurm")
    assert (code, "sbatch" in error) == (2, True)
    monkeypatch.setitem(sys.modules, "submitit", None)
    code, _, error = call(capsys, *COMPARE, "--output-dir", tmp_path, "--on", "slurm")
    assert (code, "submitit" in error) == (2, True)


@pytest.mark.parametrize("answer", [None, {"7"}])
def test_silent_squeue_submits_no_job_again(tmp_path, monkeypatch, answer):
    """An outage of a moment had the jobs of an earlier command run twice, side by side in the same folders."""
    executor = SimpleNamespace(folder=tmp_path, map_array=lambda *_: pytest.fail("submitted twice"))
    (tmp_path / "jobs.json").write_text(json.dumps({str(tmp_path / "run"): "7"}))
    monkeypatch.setattr(slurm, "in_queue", lambda: answer)
    monkeypatch.setattr(slurm, "as_they_end", lambda _, waiting: iter(waiting.values()))
    item = SimpleNamespace(run_dir=tmp_path / "run", outcome=lambda: "done")
    if answer:
        assert [*slurm.as_jobs(executor, None, [item])] == [(item, "done")]
    else:
        with pytest.raises(TrainingError, match="squeue"):
            [*slurm.as_jobs(executor, None, [item])]


def test_late_result_of_a_job_is_not_lost(tmp_path, monkeypatch):
    """Other machines see a file of a shared disk late; one that never shows is named."""
    looks = []

    def gone(shows: int) -> set[str]:
        looks.append(1)
        if len(looks) == shows:
            (tmp_path / "7.json").write_text(json.dumps({"error": None}))
        return set()

    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_LOOKS", 0)
    for shows in (10, 0):
        monkeypatch.setattr(slurm, "in_queue", lambda shows=shows: gone(shows))
        with nullcontext() if shows else pytest.raises(TrainingError, match="job 7, run, ended without a result"):
            assert [*slurm.as_they_end(SimpleNamespace(folder=tmp_path), {"7": "run"})] == ["run"]
        (tmp_path / "7.json").unlink(missing_ok=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a login node without a GPU is pretended by one")
@pytest.mark.parametrize("command", [FOLDS, COMPARE], ids=["folds", "compare"])
def test_device_of_the_queue_need_not_be_here(capsys, tmp_path, monkeypatch, command):
    words, sent = [*command, "--output-dir", tmp_path, "--on", "slurm", "gres=gpu:1"], []
    words[words.index("cpu")] = "cuda"

    def queue(_, runs):
        sent.extend(runs)
        raise Crash

    monkeypatch.setattr("trainers.multirun.runs.runner", lambda *_: nullcontext(queue))
    with pytest.raises(Crash):
        call(capsys, *words)
    assert {run.config.train.device for run in sent} == {"cuda"}
    assert all(run.config.output.auto_resume for run in sent)
