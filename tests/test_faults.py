"""A sample of what `python -m benchmarks.faults` tries: a kill or a failing disk at any system call loses nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from disturbed_commands import Moment, moments, thinned
from killed_runs import ROOT

pytestmark = pytest.mark.drawn


def test_the_moments_are_the_calls_that_change_something_in_the_folder(tmp_path):
    trace = f"""\
7 openat(AT_FDCWD</code>, "{tmp_path}/a", O_RDONLY) = 3
7 openat(AT_FDCWD</code>, "{tmp_path}/a", O_WRONLY|O_CREAT, 0666) = 3<{tmp_path}/a>
7 write(1</dev/pts/0>, "hello", 5) = 5
9 openat(AT_FDCWD</code>, "{tmp_path}/events", O_WRONLY|O_APPEND) = 4<{tmp_path}/events>
7 write(3<{tmp_path}/a>, "1", 1) = 1
7 rename("{tmp_path}/a", "{tmp_path}/b") = 0
7 unlink("/elsewhere/{tmp_path.name}") = 0
"""
    assert moments(trace, tmp_path) == [
        Moment("openat", 2),
        Moment("write", 2),
        Moment("rename", 1),
    ]
    assert thinned([*range(9)]) == [0, 1, 4, 8]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
def test_ten_moments_at_which_a_run_is_killed_or_its_disk_fails_lose_nothing(tmp_path):
    program = "import json, sys; from tests.disturbed_commands import sweep; tries = [];"
    program += 'sweep(["train"], tries.append, part="1/64"); json.dump(tries, open(sys.argv[1], "w"))'
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "tries.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if "strace cannot attach here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    verdicts = Counter(row["verdict"] for row in json.loads((tmp_path / "tries.json").read_text()))
    assert verdicts["recovered"] >= 5
    assert set(verdicts) <= {"recovered", "not reached"}
