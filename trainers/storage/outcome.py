"""The outcome of a command that trained several runs: one of them is its result, and `latest` opens that one."""

import os
from collections.abc import Iterable
from pathlib import Path

from trainers.storage.run_folder import read_json, write_json
from trainers.storage.run_result import RunResult


def best_of_several(results: Iterable[RunResult], *, select: str) -> RunResult:
    """The run with the best validation score; ties go to the lower loss, then to the first. The runs must share their
    validation images."""
    sign = -1 if select == "loss" else 1
    return max(results, key=lambda result: (sign * result.val[select], -result.val["loss"]))


def record_outcome(kept: Path, others: Iterable[Path]) -> None:
    """Write into summary.json of the kept run which runs lie beside it, and into theirs which one was kept."""
    others = [folder for folder in others if folder != kept]
    note(kept, beside=[from_run(kept, folder) for folder in others])
    for folder in others:
        note(folder, kept=from_run(folder, kept))


def note(run_dir: Path, **values: object) -> None:
    path = run_dir / "summary.json"
    summary = {name: value for name, value in read_json(path).items() if name not in ("beside", "kept")}
    write_json(path, summary | values)


def from_run(run_dir: Path, other: Path) -> str:
    """The path from one run directory to another: it stays true when both are moved."""
    return Path(os.path.relpath(other, run_dir)).as_posix()
