"""Run a program as a process of its own, to time it or to read what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def output_of(*argv: object, env: dict[str, str] | None = None) -> str:
    """Return what `python argv...` prints, run from the project's folder.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    words = [sys.executable, *map(str, argv)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=os.environ | (env or {}))
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[1:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def seconds_of(*argv: object, env: dict[str, str] | None = None) -> float:
    """Return the wall-clock seconds of `python argv...`."""
    start = time.perf_counter()
    output_of(*argv, env=env)
    return time.perf_counter() - start
