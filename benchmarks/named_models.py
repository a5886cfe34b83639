"""Train each of some named models for a time, beside its frozen head: accuracy, seconds, and what was kept.

    python -m benchmarks.named_models SET [SET ...] [--models NAME ...] [--minutes 1 5] [--seeds 1] [--out FOLDER]

A set is a folder with train/ and test/. A model is NAME or NAME,WEIGHTS; with WEIGHTS `none` it has no frozen head.
`--options FILE` is a config with further options for the runs that train. Each process is alone with its threads. Runs
that are finished are read, not trained again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import describe, write_result

HEAD = """model.trainable = "head"
data.augment = "none"
train = {start_head = "fit", cache_features = "on"}
"""
"""Options of a fitted head on a frozen network."""
MODELS = ("vit_stem_16,tiny_imagenet", "efficientnet_lite0,imagenet", "resnet18,none", "vit_tiny_16,none")


def trained(words: list[str], out: Path) -> dict[str, Any]:
    """Train by the command, unless it was done; return the seconds, and the scores of the run that it kept."""
    if not (row := out / "row.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        command = [sys.executable, "main.py", "train", *words, "--output-dir", str(out)]
        with (out / "log").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        seconds = time.monotonic() - started
        if code:
            raise SystemExit(f"exit {code}: see {out / 'log'}")
        row.write_text(json.dumps({"seconds": round(seconds, 1), **kept_in(out)}))
    found: dict[str, Any] = json.loads(row.read_text())
    return found


def kept_in(out: Path) -> dict[str, Any]:
    """Read the run that a command kept, or its only run."""
    runs = sorted(path.parent for path in out.glob("*/*/summary.json"))
    marked = [run for run in runs if "kept" in json.loads((run / "meta.json").read_text())]
    run = (marked or runs)[-1]
    summary, config = (json.loads((run / f"{name}.json").read_text()) for name in ("summary", "config"))
    unused = re.findall(r"\S+ \S+ stay unused: .+", (out / "log").read_text())
    return {
        "accuracy": summary["test"]["accuracy"],
        "log_loss": summary["test"]["loss"],
        "trainable": config["model"]["trainable"],
        "epoch": summary["best"]["epoch"],
        "passes": summary["epochs"],
        "unused": unused[-1] if unused else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/named_models"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, head = [], options.out / "head.toml"
    for folder in options.sets:
        for each in options.models:
            name, _, weights = each.partition(",")
            words = [str(folder), "--model", name, *(["--weights", weights] if weights else [])]
            place = options.out / folder.name / each.replace("/", "_")
            if weights != "none":
                head.write_text(HEAD)
                frozen = trained([*words, "--config", str(head)], place / "frozen")
                rows.append({"set": folder.name, "model": each, "minutes": None, **frozen})
                print(rows[-1], flush=True)
            more = ["--config", str(options.options)] if options.options else []
            for minutes in options.minutes:
                for seed in range(options.seeds):
                    length = ["--minutes", f"{minutes:g}", "--seed", str(seed)]
                    label = f"{options.options.stem if options.options else 'minutes'}_{minutes:g}_{seed}"
                    row = trained([*words, *more, *length], place / label)
                    rows.append({"set": folder.name, "model": each, "minutes": minutes, "seed": seed, **row})
                    print(rows[-1], flush=True)
    write_result("named_models", {"options": str(options.options or ""), "rows": rows, **describe()})


if __name__ == "__main__":
    main()
