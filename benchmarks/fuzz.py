"""Give damaged files to every reader: one line refuses each, or it loads unchanged.

python -m benchmarks.fuzz --inputs 10000       fixed seeds; a table that is there is gone on with

What is damaged, how, and by what it is read: benchmarks/mutated_files.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from benchmarks.environment import RESULTS, describe, write_result
from benchmarks.mutated_files import FAULTS, outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--name", default="fuzz")
    options = parser.parse_args()
    start, place = time.perf_counter(), RESULTS / f"{options.name}.json"
    table = json.loads(place.read_text())["table"] if place.is_file() else {}
    begun = sum(sum(row.values()) for row in table.values())
    for number, kind, outcome, detail in outcomes(range(begun, options.inputs)):
        table.setdefault(kind, {}).setdefault(outcome, 0)
        table[kind][outcome] += 1
        if outcome in FAULTS:
            print(f"{number} {kind}: {outcome}: {detail}", flush=True)
        if number % 48 == 47 or number == options.inputs - 1:
            total = sum((Counter(row) for row in table.values()), Counter())
            write_result(options.name, {"inputs": number + 1, "total": total, "table": table} | describe("pillow"))
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
