"""Whatever ends a run: it is heeded in every phase, and no process is left."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ignite.engine import Events
from killed_runs import ROOT, Crash, crash, demanding_config, stopped_in_validation
from small_images import image_folder

import main
from common.errors import Interrupted
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.engine import engines
from trainers.run import train
from trainers.storage.checkpoint_file import checkpoints
from trainers.storage.run_folder import read_json
from trainers.system.signals import signals
from trainers.tools.dry_run import dry_run
from vit.config import ModelConfig

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
SMALL = ("--labels-per-class", "10", "--epochs", "2", "--device", "cpu", "--run-name", "r")
NO_PICTURES = ("--tb", "scalars")
FEW_IMAGES = ("--val-fraction", "0.03", "--test-fraction", "0.03")
TWO_ARMS = ("--arms", "vit_nano_8", "vit_nano_8,pool=mean", "--seeds", "1", "--tune-lr", "off")


def lives(pid: int) -> bool:
    """Whether a process is there and more than the exit code that its parent has not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def deaf():
    """A signal that nobody heeds is lost: it does not end the tests."""
    before = {signum: signal.signal(signum, lambda *_: None) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def signal_before(monkeypatch, name, signum=signal.SIGTERM):
    """Receive a signal when the function or method `name` is first called; the training steps taken from there on."""
    home, _, attribute = name.rpartition(".")
    try:
        owner = importlib.import_module(home)
    except ModuleNotFoundError:
        module, _, owner_name = home.rpartition(".")
        owner = getattr(importlib.import_module(module), owner_name)
    original, steps = getattr(owner, attribute), []
    take_step = engines.TrainStep.__call__

    def called(*args, **kwargs):
        monkeypatch.setattr(owner, attribute, original)
        monkeypatch.setattr(engines.TrainStep, "__call__", counted)
        signal.raise_signal(signum)
        return original(*args, **kwargs)

    def counted(self, *args):
        steps.append(1)
        return take_step(self, *args)

    monkeypatch.setattr(owner, attribute, called)
    return steps


@pytest.mark.parametrize(
    "phase",
    [
        "datasets.loaders.read_samples",
        "trainers.reporting.tensorboard.write_start",
        "trainers.reporting.pictures.draw_attention",
        "trainers.engine.metrics.expected_calibration_error",
        "trainers.engine.engines.TrainStep.__call__",
        "trainers.run_engines.write_metrics_csv",
        "trainers.checkpointing.write_checkpoint",
        "trainers.run.load_best_weights",
        "trainers.run.score_split",
        "trainers.reporting.pictures.draw_best",
        "commands.train.report",
    ],
)
def test_a_signal_in_any_phase_of_a_run_ends_it(tmp_path, capsys, monkeypatch, phase):
    steps = signal_before(monkeypatch, phase)
    pictures = () if "pictures" in phase else NO_PICTURES
    code = main.main(["train", "--data", "digits", *SMALL, *FEW_IMAGES, *pictures, "--output-dir", str(tmp_path)])
    err = capsys.readouterr().err
    assert (code, len(steps) <= 1) == (143, True), err
    assert err.startswith("error: interrupted by SIGTERM")
    finished = phase == "commands.train.report"
    assert ("resume with" in err) == (not finished and any(tmp_path.glob("digits/r/checkpoints/step_*")))


@pytest.mark.parametrize(
    ("words", "phase", "hint"),
    [
        (["compare", *TWO_ARMS], "comparison.plan.shared_split", "give the same command again: it goes on"),
        (["compare", *TWO_ARMS], "trainers.run.write_results", "give the same command again: it goes on"),
        (["compare", *TWO_ARMS], "comparison.report.write_report", "give the same command again: it goes on"),
        (["train", "--folds", "3"], "trainers.run.write_results", "with --auto-resume"),
        (
            ["train", "--folds", "3"],
            "trainers.multirun.seeds_and_folds.process.give_back_freed_memory",
            "with --auto-resume",
        ),
    ],
)
def test_a_signal_while_one_of_several_runs_concludes_ends_them_all(tmp_path, capsys, monkeypatch, words, phase, hint):
    steps = signal_before(monkeypatch, phase)
    assert (
        main.main([*words, "--data", "digits", *SMALL, *FEW_IMAGES, *NO_PICTURES, "--output-dir", str(tmp_path)]) == 143
    )
    assert hint in capsys.readouterr().err
    assert not steps


def test_a_signal_while_features_are_cached_ends_the_run(tmp_path, capsys, monkeypatch):
    steps = signal_before(monkeypatch, "trainers.features.require_memory")
    words = [
        "train",
        "--data",
        "digits",
        *SMALL,
        "--trainable",
        "head",
        "--weights",
        "fashion_mnist",
        "--augment",
        "none",
    ]
    assert main.main([*words, "--model", "vit_nano_8", "--output-dir", str(tmp_path)]) == 143, capsys.readouterr()
    assert not steps


def test_an_import_that_a_signal_broke_ends_as_interrupted():
    with pytest.raises(Interrupted, match="SIGTERM"), signals.heeded():
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:  # libraries look in this way for what they can do without
            raise AttributeError("module 'numpy' has no attribute 'matrix'") from None


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_any_signal_saves_and_says_how_to_go_on(tmp_path, monkeypatch, signum):
    signal_before(monkeypatch, "trainers.engine.engines.TrainStep.__call__", signum)
    with pytest.raises(Interrupted, match=f"{signum.name}; resume with: python main.py resume") as stop:
        train(demanding_config(tmp_path))
    assert stop.value.exit_code == 128 + signum
    assert checkpoints(tmp_path / "digits" / "r" / "checkpoints", "step")[0].stem == "step_1"


def test_a_dry_run_leaves_no_loader_process(tmp_path):
    config = RunConfig(
        model=ModelConfig(name="vit_micro_4", image_size=16),
        data=DataConfig(source=str(image_folder(tmp_path / "pets")), batch_size=4, workers=1),
        train=TrainConfig(epochs=2, device="cpu"),
        output=OutputConfig(output_dir=tmp_path, tb="scalars"),
    )
    earlier = set(multiprocessing.active_children())
    dry_run(config)
    assert not set(multiprocessing.active_children()) - earlier


def test_a_run_stopped_in_its_validation_leaves_no_loader_process(tmp_path):
    earlier = set(multiprocessing.active_children())
    with pytest.raises(Crash), stopped_in_validation(4, crash):
        train(demanding_config(tmp_path, workers=2))
    assert not set(multiprocessing.active_children()) - earlier


def processes_of(parent):
    """Ids of the processes that a process has started."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_until(condition, *, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def environment(**more):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"OMP_NUM_THREADS": "1", "PATH": path} | more


LONG = ("train", "--data", "digits", "--epochs", "300", "--device", "cpu", "--run-name", "r", "--output-dir")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM])
def test_ranks_save_and_end_with_torchrun_whatever_ends_it(tmp_path, signum):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "main.py"]
    with open(tmp_path / "said", "w") as said:
        agent = subprocess.Popen([*command, *LONG, tmp_path], cwd=ROOT, stdout=said, stderr=said, env=environment())
    run_dir = tmp_path / "digits" / "r"
    wait_until((run_dir / "metrics.csv").is_file)
    ranks = processes_of(agent.pid)
    agent.send_signal(signum)
    agent.wait(timeout=60)
    wait_until(lambda: not any(map(lives, ranks)), seconds=20)
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"


WAITING = """
from trainers.system import process
from trainers.system.distributed import joined
from trainers.system.signals import signals
process.settle()
with signals.heeded():
    print("ready", flush=True)
    with joined("cpu"):
        pass
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_rank_that_still_waits_for_the_others_ends_with_torchrun():
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1"}
    place |= {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITING!r}])"
    agent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment(**place),
    )  # fmt: skip
    assert agent.stdout.readline() == b"ready\n"
    (rank,) = processes_of(agent.pid)
    time.sleep(2)
    assert lives(rank)
    agent.kill()
    try:
        wait_until(lambda: not lives(rank), seconds=5)
    finally:
        if lives(rank):
            os.kill(rank, signal.SIGKILL)
        agent.communicate()


HALF_A_HANDSHAKE = """
import os, sys, time
from multiprocessing import get_context, resource_sharer
from datasets.processes import leave_signals_to_parent

def lend():
    leave_signals_to_parent()
    ends.send(resource_sharer.DupFd(0)._id)
    time.sleep(1)

import socket
mine, ends = get_context("fork").Pipe()
loader = get_context("fork").Process(target=lend)
loader.start()
address, _key = mine.recv()
with socket.socket(socket.AF_UNIX) as caller:  # connects, and is gone before it has answered
    caller.connect(address)
loader.join()
"""


TWICE = """
import os, signal, sys, time
from trainers.system import signals as module
from common.errors import Interrupted
from trainers.system.signals import signals

module.ONE_REQUEST = float(sys.argv[1])
try:
    with signals.heeded(), signals.held_back():  # as in a step
        for _ in range(2):
            os.kill(os.getpid(), signal.Signals[sys.argv[2]])
            time.sleep(0.05)
        print("the step is done")
except Interrupted as stop:
    sys.exit(stop.exit_code)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
@pytest.mark.parametrize(
    ("name", "seconds", "code", "said"),
    [
        ("SIGINT", 10.0, 130, "the step is done\n"),  # to the process and to its group
        ("SIGINT", 0.01, -2, ""),  # an impatient person
        ("SIGTERM", 0.01, 143, "the step is done\n"),  # from each thread of torchrun that ends
    ],
)
def test_only_a_second_ctrl_c_after_a_while_ends_a_process_before_its_step_is_done(name, seconds, code, said):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(seconds), name], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, said)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets of files")
def test_a_loader_says_nothing_of_a_main_process_that_breaks_off():
    done = subprocess.run(
        [sys.executable, "-c", HALF_A_HANDSHAKE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")
def test_loader_processes_end_with_a_run_that_is_killed(tmp_path):
    data = image_folder(tmp_path / "pets")
    words = ["--model", "vit_micro_4", "--image-size", "16", "--batch-size", "4", "--workers", "2"]
    long = [data if word == "digits" else word for word in LONG]
    command = [sys.executable, "main.py", *long, tmp_path, *words]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    wait_until((tmp_path / "pets" / "r" / "metrics.csv").is_file)
    loaders = processes_of(run.pid)
    assert loaders
    run.kill()
    run.wait()
    wait_until(lambda: not any(map(lives, loaders)), seconds=2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Slurm runs on Linux")
def test_the_script_for_slurm_saves_in_time_and_goes_on(tmp_path):
    requeue = tmp_path / "bin" / "scontrol"
    requeue.parent.mkdir()
    requeue.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path / "requeued"}\n')
    requeue.chmod(0o755)
    names = environment(SLURM_JOB_ID="7")
    names["PATH"] = f"{requeue.parent}{os.pathsep}{names['PATH']}"
    options = ["--data", "digits", "--epochs", "12", "--device", "cpu", "--output-dir", tmp_path]
    command = ["bash", "docs/examples/slurm.sh", *options]
    run_dir = tmp_path / "digits" / "job_7"
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=names)
    wait_until((run_dir / "metrics.csv").is_file)
    first.send_signal(signal.SIGUSR1)  # as `--signal=B:` says: the shell alone
    assert "resume with" in first.communicate(timeout=60)[1]
    assert first.returncode == 128 + signal.SIGUSR1
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, env=names, timeout=300)
    assert read_json(run_dir / "summary.json")["status"] == "finished"
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows cannot halt a process")
def test_a_time_limit_counts_the_time_in_which_a_step_was_halted(tmp_path):
    def halt():
        subprocess.run(f"(sleep 5; kill -CONT {os.getpid()}) &", shell=True, check=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    config = demanding_config(tmp_path)
    config = replace(config, train=replace(config.train, epochs=200, max_minutes=4 / 60))
    result = train(config, handlers=[lambda trainer: trainer.add_event_handler(Events.ITERATION_STARTED(once=3), halt)])
    assert result.epochs[-1]["step"] <= 3  # fewer on a machine so busy that a step takes seconds
