"""Whatever ends a run: it is handled in every phase, and no process is left."""

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
from child_processes import environment, lives, processes_of, wait_until
from killed_runs import ROOT, Crash, crash, demanding_config, stopped_in_validation
from small_images import image_folder

import main
from common.errors import Interrupted
from trainers.engine import engines
from trainers.rehearsal import dry_run
from trainers.run import train
from trainers.storage.run_folder import RunFolder, read_json
from trainers.system.signals import signals

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
SMALL = ("--labels-per-class", "10", "--epochs", "2", "--device", "cpu", "--run-name", "r")
NO_PICTURES = ("--tb", "scalars")
FEW_IMAGES = ("--val-fraction", "0.03", "--test-fraction", "0.03")
TWO_ARMS = ("--arms", "vit_micro_2", "vit_micro_2,pool=mean", "--seeds", "1", "--tune-lr", "off")


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
        "datasets.open.read_samples",
        "trainers.reporting.tensorboard.write_start",
        "trainers.reporting.pictures.draw_attention",
        "trainers.engine.metrics.expected_calibration_error",
        "trainers.engine.engines.TrainStep.__call__",
        "trainers.storage.run_folder.RunFolder.write_history",
        "trainers.run_engines.write_checkpoint",
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
    assert "SIGTERM" in err
    finished = phase == "commands.train.report"
    assert ("resume" in err) == (not finished and any(tmp_path.glob("digits/r/checkpoints/step_*")))


CACHED = "--trainable head --weights fashion_mnist --augment none --model vit_nano_8"


@pytest.mark.parametrize(
    ("words", "phase", "hint"),
    [
        (["compare", *TWO_ARMS], "comparison.planning.shared_split", "same command"),
        (["compare", *TWO_ARMS], "trainers.run.write_results", "same command"),
        (["compare", *TWO_ARMS], "comparison.report.write_report", "same command"),
        (["train", "--folds", "3"], "trainers.run.write_results", "same command"),
        (["train", *CACHED.split()], "trainers.features.require_memory", "SIGTERM"),
    ],
)
def test_signal_ends_all_runs_of_a_command(tmp_path, capsys, monkeypatch, words, phase, hint):
    steps = signal_before(monkeypatch, phase)
    words = [*words, "--data", "digits", *SMALL, *FEW_IMAGES, *NO_PICTURES, "--output-dir", str(tmp_path)]
    assert main.main(words) == 143
    assert hint in capsys.readouterr().err
    assert not steps


def test_an_import_that_a_signal_broke_ends_as_interrupted():
    with pytest.raises(Interrupted, match="SIGTERM"), signals.handled():
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:  # libraries look in this way for what they can do without
            raise AttributeError("module 'numpy' has no attribute 'matrix'") from None


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_any_signal_interrupts(signum):
    with pytest.raises(Interrupted, match=signum.name) as stop, signals.handled():
        signal.raise_signal(signum)
    assert stop.value.exit_code == 128 + signum


def test_signal_in_a_step_saves_and_says_how_to_resume(tmp_path, monkeypatch):
    signal_before(monkeypatch, "trainers.engine.engines.TrainStep.__call__", signal.SIGUSR1)
    with pytest.raises(Interrupted, match="SIGUSR1.*resume"):
        train(demanding_config(tmp_path))
    assert RunFolder(tmp_path / "digits" / "r").checkpoints("step")[0].stem == "step_1"


def dry(folder):
    config = demanding_config(folder)
    source = str(image_folder(folder / "pets"))
    dry_run(config.changed(model={"weights": "none"}, data={"source": source, "labels_per_class": None, "workers": 1}))


def stopped(folder):
    with pytest.raises(Crash), stopped_in_validation(4, crash):
        train(demanding_config(folder, workers=1))


@pytest.mark.parametrize("use", [dry, stopped])
def test_stopped_runs_leave_no_loader_process(tmp_path, use):
    earlier = set(multiprocessing.active_children())
    use(tmp_path)
    wait_until(lambda: not set(multiprocessing.active_children()) - earlier, seconds=20)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM])
def test_ranks_save_and_end_with_torchrun(tmp_path, signum):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "main.py"]
    command += ["train", "--data", "digits", "--epochs", "300", "--device", "cpu", "--run-name", "r", "--output-dir"]
    with open(tmp_path / "said", "w") as said:
        agent = subprocess.Popen([*command, tmp_path], cwd=ROOT, stdout=said, stderr=said, env=environment())
    run_dir = tmp_path / "digits" / "r"
    wait_until((run_dir / "metrics.csv").is_file)
    ranks = processes_of(agent.pid)
    agent.send_signal(signum)
    agent.wait(timeout=60)
    wait_until(lambda: not any(map(lives, ranks)), seconds=20)
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"


TWICE = """
import os, signal, sys, time
from trainers.system import signals as module
from common.errors import Interrupted
from trainers.system.signals import signals

module.ONE_REQUEST = float(sys.argv[1])
try:
    with signals.handled(), signals.deferred():  # as in a step
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
def test_late_second_ctrl_c_ends_a_step(name, seconds, code, said):
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(seconds), name], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, said)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Slurm runs on Linux")
def test_slurm_script_saves_in_time_and_goes_on(tmp_path):
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
    assert "resume" in first.communicate(timeout=60)[1]
    assert first.returncode == 128 + signal.SIGUSR1
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, env=names, timeout=300)
    assert read_json(run_dir / "summary.json")["status"] == "finished"
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
