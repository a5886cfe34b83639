"""A program that uses this one as a library keeps its own logging, warnings and variables."""

import io
import json
import logging
import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_runs import set_workers
from small_run import digits_run, make_run, photo, tiny_run

import main
from trainers.multirun import slurm
from trainers.resume import resume
from trainers.run import train
from trainers.system.process_state import restored
from trainers.system.signals import Signals

OF_OTHERS = ("KMP_", "TORCHINDUCTOR_")
"""What variables that scikit-learn and torch set begin with."""
ROOT = Path(__file__).resolve().parent.parent
LOGS = (
    "", "vit", "datasets", "trainers", "ignite", "ignite.engine.engine.Engine", "torch.export", "torch.onnx",
    "huggingface_hub",
)  # fmt: skip


def logging_now() -> dict[str, tuple]:
    return {name: (log.level, log.propagate, tuple(log.handlers)) for name in LOGS if (log := logging.getLogger(name))}


def variables_now() -> set[tuple[str, str]]:
    return {(name, value) for name, value in os.environ.items() if not name.startswith(OF_OTHERS)}


@pytest.mark.slow
def test_imports_change_no_log_and_no_variable():
    program = """if True:
        import importlib, json, logging, os, sys, warnings
        names = json.loads(sys.argv[1])
        import torch, torchvision, ignite.engine, ignite.handlers, PIL.Image, torch.utils.tensorboard, torch.export
        before = dict(os.environ)
        for name in names:
            importlib.import_module(name)
        levels = {name: logging.getLogger(name).level for name in json.loads(sys.argv[2])}
        pillow = [filter for filter in warnings.filters if "PIL" in str(filter[3])]
        print(json.dumps([levels, len(pillow), sorted(set(before.items()) ^ set(os.environ.items()))]))
    """
    rooms = ("common", "datasets", "vit", "trainers", "inference", "comparison", "commands")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    argv = [sys.executable, "-c", program, json.dumps(names), json.dumps(LOGS[1:])]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    levels, pillow, variables = json.loads(done.stdout)
    variables = [name for name, _ in variables if not name.startswith(OF_OTHERS)]
    assert (set(levels.values()), pillow, variables) == ({0}, 0, [])


def test_jobs_find_program_and_keep_pythonpath(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/mine")
    given = {}
    executor = type(
        "Executor", (), {"__init__": lambda *_: None, "update_parameters": lambda _, **all: given.update(all)}
    )
    monkeypatch.setattr(slurm, "import_optional", lambda *_: type("submitit", (), {"SlurmExecutor": executor}))
    home = Path(main.__file__).parents[main.__name__.count(".")]  # the clone, or where the package is installed
    slurm.on_slurm(tmp_path, 1, {})
    assert given["setup"] == [f"export PYTHONPATH={home}{os.pathsep}/of/mine"]
    assert os.environ["PYTHONPATH"] == "/of/mine"


def test_signals_are_handled_after_failed_c_call():
    signals = Signals()
    with signals.handled([signal.SIGTERM]):
        with pytest.raises(RuntimeError), signals.left_to_the_system():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            raise RuntimeError
        assert signal.getsignal(signal.SIGTERM) == signals._receive


def state_of_the_process() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "filling": torch.utils.deterministic.fill_uninitialized_memory,
        "precision": torch.get_float32_matmul_precision(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "filters": list(warnings.filters),
        "streams": (sys.stdout, sys.stderr),
        "logs": logging_now(),
        "variables": variables_now(),
        "draws": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
    }


def test_runs_leave_the_process_as_it_was(tmp_path):
    """The next run then begins like the first."""
    multiprocessing.set_start_method(None, force=True)
    torch.set_num_threads(2)  # the runs compute with one
    logging.getLogger("vit").addHandler(mine := logging.NullHandler())
    plain = digits_run(tmp_path, data={"labels_per_class": 3}, patience=1, device="auto", threads=1)
    before = state_of_the_process()
    try:
        alone = train(plain)
        set_otherwise = train(plain.changed(train={"deterministic": True}, data={"workers": 1}))
        assert state_of_the_process() == before
        set_workers(set_otherwise.run_dir, 0)
        resume(set_otherwise.run_dir, epochs=2)
        assert state_of_the_process() == before
        assert train(plain).val == alone.val
    finally:
        torch.set_num_threads(1)
        logging.getLogger("vit").removeHandler(mine)


def test_a_run_leaves_the_current_gpu(monkeypatch):
    chosen = [1]
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.current_device", lambda: chosen[-1])
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    with restored():
        torch.cuda.set_device(0)
    assert chosen == [1, 0, 1]


class Tee:
    def __init__(self):
        self.written = []
        self.write = self.written.append


@pytest.mark.parametrize("kind", ["absent", "closed", "tee"])
def test_train_takes_any_standard_output(tmp_path, monkeypatch, kind):
    closed = io.StringIO()
    closed.close()
    stream = {"absent": None, "closed": closed, "tee": Tee()}[kind]
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    run_dir = train(tiny_run(tmp_path)).run_dir
    assert main.main(["evaluate", str(run_dir), "--device", "cpu"]) == 0
    assert (sys.stdout, sys.stderr) == (stream, stream)
    assert kind != "tee" or "accuracy" in "".join(stream.written)


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-")), ">&- 2>&-"]
)
def test_a_command_works_with_closed_streams(tmp_path, closed):
    photo(picture := tmp_path / "a.png")
    words = [sys.executable, "main.py", "predict", make_run(tmp_path / "run"), picture, "--output", tmp_path / "c.csv"]
    done = subprocess.run(["sh", "-c", f"{shlex.join(map(str, words))} {closed}"], cwd=ROOT, capture_output=True)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert (tmp_path / "c.csv").read_text().count("\n") == 2
