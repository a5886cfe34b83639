"""Hold `compare --minutes` to its promise, and its models against `train` alone.

    python -m benchmarks.compare_minutes SET [SET ...] [--minutes 3 10] [--alone] [--busy] [--out FOLDER]

Prints a row for each set and length of `compare --data SET --minutes M`: images, seconds taken of those that were
announced, seeds and learning rates that were kept, passes of each arm, verdict. `--alone`: each arm is trained by
`train` afterwards, with the seeds of the comparison and the time that a run of it took there, and both accuracies are
printed (a frozen network's features are kept between runs: it gets no less than half a minute). `--busy`: a process
computes in one thread all the while.

A folder with train/ and test/ gives both the same test images. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd

from benchmarks.environment import describe, write_result

SHORTEST = 30.0
"""Seconds that `train` gets at least."""
BUSY = "while True: sum(range(10**6))"


def run_command(words: list[str], log: Path) -> float:
    """Run main.py with these words; return its seconds. Raises SystemExit: it failed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run([sys.executable, "main.py", *words], stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        raise SystemExit(f"exit {code}: see {log}")
    return time.monotonic() - started


def compare(folder: Path, minutes: float, out: Path) -> dict[str, Any]:
    """Run one comparison, or read it if it was run; return its row."""
    kept, log = out / "row.json", out.with_suffix(".log")
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    where = ["--minutes", f"{minutes:g}", "--output-dir", str(out)]
    seconds = run_command(["compare", "--data", str(folder), *where], log)
    row = {"set": folder.name, "minutes": minutes, "seconds": round(seconds, 1)} | row_of(out, log.read_text())
    kept.write_text(json.dumps(row))
    return row


def row_of(out: Path, log: str) -> dict[str, Any]:
    """Return what a comparison says of itself, in its table and on the screen."""
    report = next(out.glob("*/compare/table.csv")).parent
    table = pd.read_csv(report / "table.csv")
    columns = ["arm", "passes", "accuracy", "seconds", "runs"]
    return {
        "images": len(pd.read_csv(report / "split.csv")),
        "seeds": int(table["seeds"].max()),
        "tuned": "of the learning rates" in log,
        "given_up": " ".join(re.findall(r"leave none for ([^;]+)", log)).split("\n")[0],
        "arms": [row | {"runs": row["runs"].split()} for row in table[columns].to_dict("records")],
        "verdicts": table["verdict"].dropna().tolist(),
    }


def train_alone(folder: Path, arm: dict[str, Any], out: Path) -> list[float]:
    """Train an arm by `train`, once for each run; return the test accuracies."""
    found = []
    for number, run in enumerate(arm["runs"]):
        config = json.loads((Path(run) / "config.json").read_text())
        minutes = max(SHORTEST, arm["seconds"]) / 60
        model = {name.replace("_", "-"): config["model"][name] for name in ("weights", "trainable", "image_size")}
        words = [word for name, value in model.items() if value is not None for word in (f"--{name}", str(value))]
        words = ["train", str(folder), "--model", config["model"]["name"], *words, "--minutes", f"{minutes:.3f}"]
        place = out / f"{arm['arm'].replace(' ', '_').replace(',', '')}_{number}"
        run_command(
            [*words, "--seed", str(config["train"]["seed"]), "--output-dir", str(place)], place.with_suffix(".log")
        )
        kept = next(run for run in place.glob("*/*/") if "kept" in json.loads((run / "meta.json").read_text()))
        found.append(json.loads((kept / "summary.json").read_text())["test"]["accuracy"])
    return found


def text_of(row: dict[str, Any]) -> str:
    """Return the lines of one comparison."""
    lines = [
        f"{row['set']}, {row['images']:,} images, {row['minutes']:g} min: {row['seconds']:.1f} s, {row['seeds']} seeds,"
        f" {'tuned' if row['tuned'] else 'usual'} rates; given up: {row['given_up'] or 'nothing'}"
    ]
    for arm in row["arms"]:
        line = f"  {arm['arm']:<44} {arm['passes']:>6.1f} passes  {100 * arm['accuracy']:5.1f} %"
        if scores := arm.get("alone"):
            spread = f" (sd {100 * stdev(scores):.1f})" if len(scores) > 1 else ""
            line += f"   alone {100 * mean(scores):5.1f} %{spread}, n = {len(scores)}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, nargs="+", default=[3.0, 10.0])
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/compare_minutes"))
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        if options.busy:
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        for folder in options.sets:
            for minutes in options.minutes:
                out = options.out / f"{folder.name}_{minutes:g}{'_busy' * options.busy}"
                row = compare(folder, minutes, out)
                for arm in row["arms"] if options.alone else []:
                    arm["alone"] = train_alone(folder, arm, out / "alone")
                rows.append(row | {"busy": options.busy})
                print(text_of(row), flush=True)
    write_result("compare_minutes", {"rows": rows, **describe()})


if __name__ == "__main__":
    main()
