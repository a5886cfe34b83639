"""Stop or starve small commands at each system call that changes the file system; repeat them; compare the bits.

python -m benchmarks.faults [--only train compare folds export] [--faults KILL ENOSPC EIO] [--part 1/9]

How it is done: tests/disturbed_commands.py. Each try is a line of --output, to which later sweeps add; how many ended
in which way goes to benchmarks/results/faults.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment
from tests.disturbed_commands import COMMANDS, FAULTS, sweep

VERDICTS = ("recovered", "said", "lost", "traceback", "hangs", "not reached")


def counts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outcomes of the tries of each command and fault."""
    of: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of[row["command"], row["fault"]].append(row)
    return [
        {"command": command, "fault": fault, "moments": len(tries)}
        | {name: sum(row["verdict"] == name for row in tries) for name in VERDICTS}
        | {"with leftovers": sum(bool(row["left"]) for row in tries)}
        for (command, fault), tries in of.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--faults", nargs="+", default=list(FAULTS))
    parser.add_argument("--part", default="1/1", metavar="I/N", help="each N-th moment only, from the I-th on")
    parser.add_argument("--output", type=Path, default=Path("faults.jsonl"), help="where each try is added as a line")
    options = parser.parse_args()

    def note(row: dict[str, Any]) -> None:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    sweep(options.only, note, faults=options.faults, part=options.part)
    rows = [json.loads(line) for line in options.output.read_text(encoding="utf-8").splitlines()]
    rest = [row for row in rows if row["verdict"] not in ("recovered", "not reached")]
    environment.write_result("faults", environment.describe() | {"counts": counts(rows), "not recovered": rest})


if __name__ == "__main__":
    main()
