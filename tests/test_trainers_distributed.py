"""Several processes train as one: the same bits as one process with micro-batches, and they end together."""

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from child_processes import ROOT, environment, wait_until
from distributed_run import config
from killed_runs import assert_same_content, bits, rows_of, run_content
from PIL import Image
from small_images import image_folder
from small_run import call
from torch.distributed.constants import default_pg_timeout

import main
from common.errors import OptionError
from inference.evaluate import evaluate_run
from trainers.run import train
from trainers.storage.checkpoint_file import read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json
from trainers.storage.run_result import read_result
from trainers.system import distributed


def meeting_place(processes):
    """What torchrun tells each of so many processes about all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in place.items()}


def start(processes, *argv, **environment):
    """One process per rank, as torchrun would start them, but with exit codes of their own."""
    return start_ranks(range(processes), meeting_place(processes) | environment, *argv)


def start_ranks(ranks, place, *argv, cwd=ROOT):
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed_run", *map(str, argv)],
            cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank), PYTHONPATH=str(ROOT)),
        )
        for rank in ranks
    ]  # fmt: skip


def finish(processes, *, timeout=120):
    """(exit code, stdout, stderr) of each; none is left, whatever happens."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, outputs, strict=True)]


def train_as_first(place, config):
    """Train as rank 0, here: a process of its own would import everything anew."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**place, "RANK": "0", "LOCAL_RANK": "0"}.items():
            patch.setenv(name, value)
        patch.setattr(distributed, "STEP_TIMEOUT", timedelta(minutes=1))
        train(config)


IN_SLURM = {"JOB_ID": 7, "PROCID": 1, "LOCALID": 1, "NTASKS": 2, "JOB_NUM_NODES": 2, "JOB_NODELIST": "a,b"}
"""As srun tells torchrun, whose processes are others: of two machines, or tasks, this is the second."""


def test_two_processes_equal_one_with_micro_batches(tmp_path, capsys):
    place = meeting_place(2) | {f"SLURM_{name}": str(value) for name, value in IN_SLURM.items()}
    second = start_ranks([1], place, tmp_path / "two")
    try:
        train_as_first(place, config(tmp_path / "two"))
    finally:
        ((code, out, err),) = finish(second)
        sys.stderr.write(err)
    first = capsys.readouterr().out
    assert code == 0
    two = tmp_path / "two" / "digits" / "r"
    one = train(config(tmp_path / "one", accumulate=2)).run_dir
    assert read_json(two / "meta.json")["processes"] == 2
    ours, theirs = (read_checkpoint(RunFolder(run_dir).checkpoints("step")[0]) for run_dir in (two, one))
    assert ours["trainer"]["iteration"] == theirs["trainer"]["iteration"]
    for name in ("model", "ema", "optimizer"):
        assert bits(ours[name]) == bits(theirs[name])
    assert [path.name.count("tfevents") for path in two.glob("tb/*/*")].count(1) == 2, "only one process writes"
    assert rows_of(two / "metrics.csv") == rows_of(one / "metrics.csv")
    assert read_json(two / "summary.json")["best"] == read_json(one / "summary.json")["best"]
    assert read_json(two / "summary.json")["test"] == read_json(one / "summary.json")["test"]
    for split in ("val", "test"):
        assert rows_of(two / f"eval/{split}_predictions.csv") == rows_of(one / f"eval/{split}_predictions.csv")
    # The first process alone speaks and writes.
    assert "epoch 2/2" in first
    assert "epoch" not in out


@pytest.mark.slow
def test_processes_with_different_images_are_refused(tmp_path):
    """The class folders of the second are exchanged, as on a machine with an old copy."""
    for rank, names in enumerate(("ab", "ba")):
        for name, grey in zip(names, (40, 200), strict=True):
            for number in range(8):
                picture = tmp_path / str(rank) / "photos" / name / f"{number}.png"
                picture.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (grey, number, 0)).save(picture)
    place, words = meeting_place(2), ["train", "photos", "--model", "vit_micro_2", "--image-size", 8, "--epochs", 1]
    words = [*words, "--device", "cpu", "--batch-size", 4]
    ranks = [start_ranks([rank], place, "main", *words, cwd=tmp_path / str(rank)) for rank in range(2)]
    for code, _out, err in finish([process for (process,) in ranks]):
        assert code == 3
        assert "photos" in err.splitlines()[-1]
    assert not [*tmp_path.glob("*/runs/*/*")]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "two"}, "two"),
        ({"WORLD_SIZE": "0"}, "0"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK"),
        ({"LOCAL_WORLD_SIZE": "-1"}, "-1"),
        ({"MASTER_PORT": "port"}, "port"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
    ],
)
def test_broken_launcher_variables_are_named(tmp_path, monkeypatch, capsys, said, fault):
    whole = {**meeting_place(2), "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in said.items() if "WORLD_SIZE" in said else (whole | said).items():
        monkeypatch.setenv(name, value)
    for words in (["train", "digits", "--epochs", "1"], ["compare", "--data", "digits", "--epochs", "1"]):
        assert main.main([*words, "--device", "cpu", "--output-dir", str(tmp_path / "runs")]) == 2
        assert fault in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_processes_wait_as_long_as_those_of_torch():
    """Which are 10 minutes with NCCL and 30 with gloo."""
    assert default_pg_timeout / 6 < distributed.STEP_TIMEOUT <= default_pg_timeout


def test_a_process_that_waits_for_others_says_for_whom(monkeypatch, capsys):
    monkeypatch.setattr(distributed, "SILENT", 0.01)
    for name, value in {**meeting_place(2), "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with distributed.slowness_said():
        time.sleep(0.2)
    assert f"2 processes at 127.0.0.1:{os.environ['MASTER_PORT']}" in capsys.readouterr().err


ON_A_MACHINE_WITH_A_GPU = """
import os, time
from datetime import timedelta
from unittest import mock
import ignite.distributed as idist
import torch
from trainers.system import distributed

def touched(*_):
    raise RuntimeError("CUDA error: invalid device ordinal")

def prepare():
    time.sleep(1.5 if distributed.is_main_process() else 0)
    return distributed.rank()

distributed.STEP_TIMEOUT = timedelta(seconds=1)
gpu = dict(is_available=lambda: True, device_count=lambda: 1, set_device=touched, current_device=touched)
with mock.patch.multiple(torch.cuda, **gpu), distributed.joined("cpu"):
    prepared = distributed.main_process_first(prepare)
    weights = distributed.broadcast(lambda: {"weights": torch.ones(2)})["weights"].tolist()
    print(idist.get_local_rank(), distributed.all_gather(prepared), weights, distributed.look_together(1.0 + prepared))
"""


@pytest.mark.slow
def test_cpu_ranks_touch_no_gpu_and_wait():
    """Ignite's gloo took the GPU of each process, and in a job of Slurm the local rank of its task."""
    place = os.environ | meeting_place(2) | {f"SLURM_{name}": str(value) for name, value in IN_SLURM.items()}
    results = finish(
        [
            subprocess.Popen(
                [sys.executable, "-c", ON_A_MACHINE_WITH_A_GPU],
                cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
    )  # fmt: skip
    assert [(code, out) for code, out, _ in results] == [(0, f"{rank} [0, 1] [1.0, 1.0] 2.0\n") for rank in range(2)], (
        results
    )


@pytest.mark.parametrize("device", ["mps", "auto"])
def test_several_processes_on_a_mac_are_refused(monkeypatch, device):
    for name, value in (meeting_place(2) | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    with pytest.raises(OptionError, match="--device cpu"), distributed.joined(device):
        pass


def uneven_folder(root):
    """13 validation images; 27 to train on, so that the last batch of 3 is cut unevenly."""
    return image_folder(root, train=(14, 13), val=(7, 6))


def main_arguments(data, folder, *more):
    return (
        "main", "train", "--data", data, "--output-dir", folder, "--run-name", "r", "--model", "vit_micro_4",
        "--image-size", 16, "--epochs", 2, "--batch-size", 8, "--workers", 0, "--device", "cpu", *more,
    )  # fmt: skip


@pytest.mark.slow
def test_uneven_validation_scores_as_on_one_process(tmp_path):
    data = uneven_folder(tmp_path / "pets")
    pair = start(2, *main_arguments(data, tmp_path / "two", "--batch-size", 16))
    (single,) = start(1, *main_arguments(data, tmp_path / "one", "--accumulate", 2, "--batch-size", 16))
    assert [code for code, *_ in finish([*pair, single])] == [0, 0, 0]
    assert rows_of(tmp_path / "two" / "pets" / "r" / "metrics.csv") == rows_of(
        tmp_path / "one" / "pets" / "r" / "metrics.csv"
    )
    assert len({row["path"] for row in rows_of(tmp_path / "two/pets/r/eval/val_predictions.csv")}) == 13


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "ema-decay = 0.9"])
def test_batch_norm_score_is_that_of_saved_weights(tmp_path, more):
    data, options = uneven_folder(tmp_path / "images" / "pets"), tmp_path / "options.toml"
    options.write_text(f"patch-embedding = 'stem_bn'\n{more}\n")
    results = finish(start(2, *main_arguments(data, tmp_path, "--config", options)), timeout=400)
    assert [code for code, *_ in results] == [0, 0], results
    evaluation = evaluate_run(RunFolder(tmp_path / "pets" / "r"), split="val")
    assert evaluation.metrics["loss"] == pytest.approx(evaluation.logged["loss"], rel=1e-5)


@pytest.mark.slow
def test_stop_of_one_process_stops_all(tmp_path):
    whole = finish(start(2, tmp_path / "whole"))
    assert [code for code, *_ in whole] == [0, 0], whole
    processes = start(2, tmp_path / "stopped")
    wait_until((tmp_path / "stopped" / "digits" / "r" / "metrics.csv").exists)  # both are in their steps
    processes[1].send_signal(signal.SIGTERM)
    results = finish(processes)
    assert [code for code, *_ in results] == [143, 143], results
    run_dir = tmp_path / "stopped" / "digits" / "r"
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"
    refused = finish(start(1, tmp_path / "stopped"))
    assert refused[0][0] == 2
    assert "torchrun --nproc-per-node 2" in refused[0][2]
    resumed = finish(start(2, tmp_path / "stopped"))
    assert [code for code, *_ in resumed] == [0, 0], resumed
    assert_same_content(run_content(tmp_path / "whole" / "digits" / "r"), run_content(run_dir))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_signal_in_a_shared_validation_is_heeded(tmp_path, signum):
    processes = start(2, tmp_path, SLOW_VALIDATION="yes")
    wait_until((tmp_path / "digits" / "validating").exists)
    begin = time.monotonic()
    processes[1].send_signal(signum)
    results = finish(processes)
    assert time.monotonic() - begin < 10  # the validation takes three seconds, all steps more than these
    assert [code for code, *_ in results] == [128 + signum] * 2, results
    assert not (tmp_path / "digits" / "r" / "metrics.csv").exists(), "the validation went on to its end"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows cannot halt a process")
def test_halted_process_is_not_waited_for_long(tmp_path):
    processes = start(2, tmp_path, WAITS="8")
    wait_until((tmp_path / "digits" / "r" / "metrics.csv").exists)
    begin = time.monotonic()
    processes[1].send_signal(signal.SIGSTOP)
    try:
        _, error = processes[0].communicate(timeout=60)
    finally:
        processes[1].kill()
        processes[1].communicate()
    assert time.monotonic() - begin < 30
    assert processes[0].returncode == 4, error
    assert "another process" in error.splitlines()[-1]
    assert "main.py resume" in error.splitlines()[-1]


SHORT = ["--data", "digits", "--labels-per-class", "4", "--epochs", "1", "--device", "cpu", "--workers", "0"]
SHORT += ["--tb", "scalars", "--model", "vit_micro_2", "--test-fraction", "0.03"]


def test_first_process_alone_prints_card_and_table(capsys, monkeypatch, tmp_path):
    words = ["train", *SHORT, "--config", "scratch-small", "--folds", 2, "--output-dir", tmp_path, "--run-name", "r"]
    assert call(capsys, *words)[0] == 0
    table = tmp_path / "digits" / "r_folds.csv"
    results = [read_result(RunFolder(tmp_path / "digits" / f"r_fold{fold}")) for fold in (1, 2)]
    monkeypatch.setattr("trainers.multirun.seeds_and_folds.train_all", lambda *_, **__: results)
    for rank in (0, 1):
        table.unlink(missing_ok=True)
        place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": str(rank)}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        code, out, _ = call(capsys, *words)
        said = ("scratch-small" in out, "2 folds: mean" in out, table.exists())
        assert (code, said) == (0, (rank == 0,) * 3)


@pytest.mark.slow
def test_torchrun_prints_one_card_and_one_table(tmp_path):
    """About every second fold after the first waited for ever: its processes took the addresses of the fold before."""
    words = ["--nproc-per-node", "2", "main.py", "train", *SHORT, "--folds", "4", "--config", "scratch-small"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words, "--output-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("scratch-small:") == done.stdout.count("4 folds: mean") == 1
