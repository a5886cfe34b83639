"""Describe the machine for every benchmark, and write the figures to a file."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from trainers.run_record import git_state, processor_name

RESULTS = Path(__file__).resolve().parent / "results"


def describe(*packages: str) -> dict[str, Any]:
    """Return command, commit, processor, cores, and the versions of Python, torch, Ignite and `packages`."""
    names = ("torch", "torchvision", "pytorch-ignite", *packages)
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "git": git_state(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in names},
    }


def write_result(name: str, result: dict[str, Any]) -> None:
    """Print a result and keep it as benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
