"""The process as a whole: it leaves as it should, and keeps its memory where that is meant."""

import io
import os
import platform
import subprocess
import sys

import pytest
from child_processes import ROOT

from main import COMMANDS
from trainers.system import process


def python(code, **variables):
    ours = ("MALLOC_", *process.WAITING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment | variables,
    )  # fmt: skip


@pytest.mark.parametrize(("processes", "said"), [("2", "said"), ("1", "saidtaken down\n")])
def test_a_process_leaves_none_of_its_own_behind_and_one_of_several_ends_at_once(processes, said):
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


def test_threads_sleep_while_they_wait_but_those_of_training_on_a_quiet_machine_and_where_a_person_has_chosen(
    monkeypatch,
):
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
def test_others_compute_where_they_leave_too_few_processors(monkeypatch, load, processors, ours, computing):
    def opened(*_, **__):
        if load is None:
            raise FileNotFoundError
        return io.StringIO(load)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(ours), raising=False)
    assert process.others_compute() is computing


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_what_a_step_frees_is_there_for_the_next_without_new_pages():
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
def test_a_run_does_not_inherit_the_memory_of_the_one_before():
    code = """
import re
from pathlib import Path
import torch
from trainers.system import process
process.settle()
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
def run():
    kept = [torch.ones(10_000_000) for _ in range(8)]  # 305 MB
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
def test_the_shortcuts_around_torch_leave_out_what_it_would_import_and_nothing_that_is_asked_for(how, imported):
    """Where torch or Ignite no longer import these, a shortcut is worth nothing and goes."""
    done = subprocess.run([sys.executable, "-c", SHORTCUTS, how], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"{imported} torch.distributed.optim.optimizer", done.stderr
