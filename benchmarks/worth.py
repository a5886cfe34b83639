"""Hide a rung of a ladder of labels and predict it from its neighbours: how often do 90 % intervals hold it?

python -m benchmarks.worth COMPARISON [COMPARISON ...] [--output benchmarks/results/worth.json]

Each COMPARISON is the folder of a finished comparison over several numbers of labels. For every arm and every rung but
the first and the last, the accuracy at that rung, mean over its seeds, is predicted by `comparison.analysis.worth` from
the other rungs, and compared with what was measured on the same images.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.environment import describe
from comparison.analysis.runs import Arm, Condition, read_run
from comparison.analysis.worth import drawn_accuracies, interpolated, label_count


def ladders(folder: Path) -> dict[str, list[tuple[float, np.ndarray]]]:
    """Per arm its rungs: labels per class, and what its runs were right about, bool (K, N)."""
    hidden = {"figures", "verdict", "tb"}
    found = {}
    for arm in sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in hidden):
        rungs = []
        for path in (path for path in arm.iterdir() if path.name == "all" or path.name.isdigit()):
            runs = Arm(arm.name, tuple(read_run(run) for run in sorted(path.glob("s[0-9]*"))))
            count = None if path.name == "all" else int(path.name)
            rungs.append((label_count(Condition(count, (runs,))), runs.correct))
        found[arm.name] = sorted(rungs, key=lambda rung: rung[0])
    return found


def predicted(rungs: list[tuple[float, np.ndarray]], hidden: int) -> tuple[float, float, float]:
    """Low end, middle and high end of the hidden rung's accuracy, as its seeds and its neighbours may lie."""
    generator = np.random.default_rng(0)
    labels = np.array([count for count, _ in rungs])
    draws = drawn_accuracies([correct for _, correct in rungs], generator)
    kept = np.arange(len(rungs)) != hidden
    curve = interpolated(labels[kept], draws[:, kept], labels[hidden : hidden + 1], generator)[:, 0]
    noise = draws[:, hidden] - rungs[hidden][1].mean()  # on the images that all rungs share
    low, middle, high = np.percentile(curve - noise, (5, 50, 95))
    return float(low), float(middle), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparisons", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/worth.json"))
    options = parser.parse_args()
    rows = []
    for folder in options.comparisons:
        for arm, rungs in ladders(folder).items():
            for hidden in range(1, len(rungs) - 1):
                low, middle, high = predicted(rungs, hidden)
                truth = float(rungs[hidden][1].mean())
                rows.append(
                    {"comparison": folder.name, "arm": arm, "labels": rungs[hidden][0], "seeds": len(rungs[hidden][1]),
                     "accuracy": truth, "low": low, "middle": middle, "high": high, "held": low <= truth <= high}
                )  # fmt: skip
                print(
                    {name: round(value, 3) if isinstance(value, float) else value for name, value in rows[-1].items()}
                )
    widths = [row["high"] - row["low"] for row in rows]
    summary = {
        "points": len(rows), "held": sum(row["held"] for row in rows) / len(rows),
        "median_width": float(np.median(widths)),
        "median_error": float(np.median([abs(row["middle"] - row["accuracy"]) for row in rows])),
    }  # fmt: skip
    print(summary)
    options.output.write_text(json.dumps({**summary, "rows": rows, **describe()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
