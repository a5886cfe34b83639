"""Time a program from the start of Python to its exit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds_of(*argv: str | Path, env: dict[str, str] | None = None) -> float:
    """Wall-clock seconds of `python argv...`, run from the project's folder.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, argv)], cwd=ROOT, capture_output=True, text=True, env=os.environ | (env or {})
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds
