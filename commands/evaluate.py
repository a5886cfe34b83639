"""`evaluate RUN`: score a run's best weights again, and hold them against what training logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from commands import arguments


@dataclass(frozen=True)
class Options:
    """Score a run's best weights on one of its splits."""

    run: Annotated[str, tyro.conf.Positional]
    """A run directory, or `latest`."""
    split: Literal["val", "test"] = "val"
    """Which split to score."""
    output_dir: Path = Path("runs")
    """Where `latest` is looked for."""


def parse(argv: Sequence[str], prog: str) -> Options:
    options: Options = arguments.parse(Options, argv, prog=prog)
    return options


def main(options: Options) -> int:
    from trainers.reevaluate import evaluate_run
    from trainers.run_directory import find_run

    result = evaluate_run(find_run(options.run, options.output_dir), split=options.split)
    print(f"{result.run_dir}: best weights (epoch {result.epoch}) on {result.n} {options.split} images")
    for name, value in result.metrics.items():
        logged = result.logged.get(name)
        remark = "" if logged is None else ("  as logged" if logged == value else f"  logged: {logged!r}")
        print(f"{name:>14}  {value!r}{remark}")
    print(f"{'predictions':>14}  {result.predictions}")
    return 0
