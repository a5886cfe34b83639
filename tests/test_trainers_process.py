"""The process as a whole: it leaves as it should, and keeps its memory where that is meant."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(code, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment | variables,
    )  # fmt: skip


@pytest.mark.parametrize(("processes", "said"), [("2", "said"), ("1", "saidtaken down\n")])
def test_one_of_several_processes_leaves_without_taking_the_interpreter_down(processes, said):
    """Where a thread of its process group still held a tensor, that ended in SIGABRT about once in a hundred times."""
    code = """
import atexit
from trainers import process
print("said", end="")
atexit.register(print, "taken down")
process.leave(3)
"""
    done = python(code, WORLD_SIZE=processes)
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_process_leaves_none_of_its_own_behind(processes):
    """Loader processes ignore the signals that end a run, and look for their parent every few seconds only."""
    code = """
import multiprocessing, signal, time
from trainers import process
def stay():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
child = multiprocessing.get_context("fork").Process(target=stay, daemon=True)
child.start()
process.leave(0)
"""
    done = python(code, WORLD_SIZE=processes)  # times out while anybody holds its pipes
    assert done.returncode == 0, done.stderr


def test_the_program_settles_first_and_leaves_last():
    code = """
import runpy, sys
from trainers import process
process.settle = lambda: print("settled")
process.leave = lambda code: print("left with", code)
sys.argv = ["main.py", "--help"]
runpy.run_path("main.py", run_name="__main__")
"""
    first, *_, last = python(code).stdout.splitlines()
    assert (first, last) == ("settled", "left with 0")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_what_a_step_frees_is_there_for_the_next_without_new_pages():
    code = """
import resource
from trainers import process
process.settle()
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"x" * 40_000_000 for _ in range(3)]  # 3 x 9,766 pages, from the malloc that tensors come from too
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*[step() for _ in range(8)])
"""
    first, *_, last = map(int, python(code).stdout.split())
    assert first > 10 * last  # the heap has found its size after a few steps
    chosen = map(int, python(code, MALLOC_MMAP_THRESHOLD_="131072").stdout.split())
    assert min(chosen) > first / 2  # whoever set a variable of malloc has chosen


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_a_run_does_not_inherit_the_memory_of_the_one_before():
    code = """
import re
from pathlib import Path
import torch
from trainers import process
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
