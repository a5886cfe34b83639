"""The process as a whole: it leaves as it should, and keeps its memory where that is meant."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | variables
    )


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the malloc of other C libraries is left alone")
def test_what_a_step_frees_is_there_for_the_next_without_new_pages():
    code = """
import resource
import torch
from trainers import process
process.settle()
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(10_000_000) for _ in range(3)]  # 3 x 9,766 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*[step() for _ in range(8)])
"""
    first, *_, last = map(int, python(code).stdout.split())
    assert first > 10 * last  # the heap has found its size after a few steps
    chosen = map(int, python(code, MALLOC_MMAP_THRESHOLD_="131072").stdout.split())
    assert min(chosen) > first / 2  # whoever set a variable of malloc has chosen
