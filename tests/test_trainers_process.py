"""The process as a whole and its device: how it leaves, its memory, and a GPU's run without a GPU."""

import io
import os
import platform
import shutil
import subprocess
import sys

import pytest
import torch
from child_processes import ROOT
from PIL import Image
from small_run import call, tiny_run

from common.errors import OptionError
from main import COMMANDS
from trainers.options import defaults
from trainers.run import train
from trainers.storage.run_folder import read_json, write_json
from trainers.system import process
from trainers.system.process_state import precision_to_use


def python(code, **variables):
    ours = ("MALLOC_", *process.WAITING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment | variables,
    )  # fmt: skip


@pytest.mark.parametrize(("processes", "said"), [("2", "said"), ("1", "saidtaken down\n")])
def test_a_process_that_leaves_takes_its_own_along(processes, said):
    """Loader processes ignore the signals that end a run. Where a thread of a process group still held a tensor while
    the interpreter was taken down, that ended in SIGABRT about once in a hundred times."""
    code = """
import atexit, multiprocessing, signal, time
from trainers.system import process
def stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
multiprocessing.get_context("fork").Process(target=stay, daemon=True).start()
print("said", end="")
atexit.register(print, "taken down")
process.leave(3)
"""
    done = python(code, WORLD_SIZE=processes)  # times out while anybody holds its pipes
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


def waiting(monkeypatch, command, *, others, **variables):
    """The wait policy that a command line sets, beside other processes or not; None: it leaves it to OpenMP."""
    with monkeypatch.context() as patch:
        for name in process.WAITING:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(process, "others_compute", lambda: others)
        process.choose_waiting(command.split())
        return os.environ.pop("OMP_WAIT_POLICY", None)


def test_threads_sleep_but_in_training_or_by_choice(monkeypatch):
    for command in [*COMMANDS, "--debug predict", "--debug train", ""]:
        trains = command in {"train", "resume", "compare", "--debug train", ""}  # alone the program compares
        assert waiting(monkeypatch, command, others=False) == (None if trains else "passive"), command
        assert waiting(monkeypatch, command, others=True) == "passive", command
    for variable in process.WAITING:
        assert waiting(monkeypatch, "predict", others=True, **{variable: "0"}) in (None, "0"), variable


@pytest.mark.parametrize(
    ("load", "processors", "ours", "computing"),
    [
        ("0.05 0.10 0.09 1/161 1", 2, 2, False),  # this process alone
        ("1.40 1.00 0.90 2/161 1", 2, 2, True),  # another one beside it
        ("3.00 3.00 3.00 4/900 1", 64, 2, False),  # on processors that this one does not use
        (None, 2, 2, False),  # no Linux
    ],
)
def test_others_compute_where_few_processors_are_left(monkeypatch, load, processors, ours, computing):
    def opened(*_, **__):
        if load is None:
            raise FileNotFoundError
        return io.StringIO(load)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(ours), raising=False)
    assert process.others_compute() is computing


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_freed_memory_serves_the_next_step():
    code = """
import resource
from trainers.system import process
process.settle()
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * 40_000_000 for _ in range(3)]  # 3 x 9,766 pages, from the malloc that tensors come from too
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*[step() for _ in range(8)])
"""
    first, *_, last = map(int, python(code).stdout.split())
    assert first > 10 * last  # the heap has found its size after a few steps


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_a_run_does_not_inherit_memory():
    code = """
import re
from pathlib import Path
from trainers.system import process
process.settle()
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
def run():
    kept = [b"x" * 40_000_000 for _ in range(8)]  # 305 MB, from the malloc that tensors come from too
    kept.append(kept)  # as engines and their handlers do
before = resident()
run()
held = resident()
process.give_back_freed_memory()
print(held - before, resident() - before)
"""
    held, left = map(int, python(code).stdout.split())
    assert held > 250
    assert left < 30


SHORTCUTS = """
import sys
from trainers.system import process
from trainers.engine import optim
if sys.argv[1] == "without":
    process.leave_out_zero_redundancy = optim.leave_out_the_compiler = lambda: None
process.settle()
import torch, ignite.handlers, ignite.distributed
print("sympy" in sys.modules, end=" ")
optim.build_optimizer([{"params": [torch.nn.Parameter(torch.zeros(1))]}], name="adamw", lr=1.0)
print("torch._dynamo" in sys.modules, end=" ")
from torch.distributed.optim import DistributedOptimizer
print(DistributedOptimizer.__module__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "imported"), [("with", "False False"), ("without", "True True")])
def test_shortcuts_around_torch_leave_imports_out(how, imported):
    """Where torch or Ignite no longer import these, a shortcut is worth nothing and goes."""
    done = subprocess.run([sys.executable, "-c", SHORTCUTS, how], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"{imported} torch.distributed.optim.optimizer", done.stderr


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return train(tiny_run(tmp_path_factory.mktemp("runs"))).run_dir


@pytest.fixture
def of_a_gpu(begun, tmp_path, monkeypatch):
    """A copy of a run as one of a GPU leaves it, on a machine without one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    run = shutil.copytree(begun, tmp_path / "digits" / "r")
    config, meta = read_json(run / "config.json"), read_json(run / "meta.json")
    config["train"] |= {"device": "cuda", "amp": "off"}
    write_json(run / "config.json", config)
    write_json(run / "meta.json", meta | {"device": "NVIDIA H100 80GB HBM3", "cuda": "13.0", "cudnn": 91002})
    return run


@pytest.mark.parametrize("words", [["evaluate"], ["resume", "--epochs", "3"], ["predict"], ["export"]])
def test_a_run_of_a_gpu_is_used_without_one(capsys, of_a_gpu, tmp_path, words):
    command, *options = words
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    files = [tmp_path / "picture.png"] if command == "predict" else []
    code, out, err = call(capsys, command, of_a_gpu, *files, *options)
    assert code == 0, err
    if command in ("evaluate", "resume"):
        assert "NVIDIA H100 80GB HBM3 to cpu" in out + err


def test_a_device_that_is_not_there_is_refused(capsys, of_a_gpu):
    for words in (["evaluate", of_a_gpu], ["resume", of_a_gpu, "--epochs", "3"]):
        assert call(capsys, *words, "--device", "cpu")[0] == 0
        code, _, err = call(capsys, *words, "--device", "cuda")
        assert (code, "'cuda'" in err) == (2, True)


@pytest.mark.parametrize("name", ["cpu:", "cpu:0", "mps:0", "cuda:", "cuda:01", "cuda:\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_device_by_an_odd_name_is_unknown(name):
    with pytest.raises(OptionError, match="unknown device"):
        defaults.resolve_device(name)


@pytest.mark.parametrize(("device", "name"), [("cpu", "g++"), ("cuda", "gcc")])
def test_a_model_is_compiled_only_with_a_compiler(monkeypatch, device, name):
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(OptionError, match=f"--compile needs a compiler .*{name.replace('+', '.')}"):
        defaults.require_compiler(device)
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}" if program == name else None)
    defaults.require_compiler(device)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(OptionError, match="headers of Python"):
        defaults.require_compiler(device)


def test_determinism_is_asked_for_before_cuda_starts(monkeypatch, tmp_path):
    asked = []
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr("torch.are_deterministic_algorithms_enabled", lambda: False)  # whatever another test left
    monkeypatch.setattr("torch.use_deterministic_algorithms", lambda mode, **_: asked.append(mode))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(
        defaults, "resolve_device", lambda name, **_: asked.append(os.environ["CUBLAS_WORKSPACE_CONFIG"]) or "cpu"
    )
    config = tiny_run(tmp_path).changed(train={"deterministic": True, "epochs": 1})
    assert read_json(train(config).run_dir / "config.json")["train"]["deterministic"] is True
    assert asked == [True, ":4096:8", False]


def test_the_precision_of_a_gpu_is_set_there_alone(monkeypatch):
    chosen = []
    monkeypatch.setattr("torch.set_float32_matmul_precision", chosen.append)
    monkeypatch.setattr(torch.backends, "cudnn", type("cudnn", (), {"allow_tf32": True}))
    assert precision_to_use(torch.device("cpu"), "bf16") is None
    assert chosen == []
    assert precision_to_use(torch.device("cuda"), "bf16") is torch.bfloat16
    assert precision_to_use(torch.device("cuda"), "off") is None
    assert chosen == ["high", "highest"]
    assert not torch.backends.cudnn.allow_tf32
