"""`compare --until-sure` on simulated comparisons: how often is a verdict wrong, and how many seeds does it take?

python -m benchmarks.sequential COMPARISON [--trials 2000] [--output benchmarks/results/sequential.json]

COMPARISON is the folder of a finished comparison of two arms. Its images are drawn with replacement, each with the
probabilities by which the runs of either arm were right about it. Their log-odds are moved so that the arms differ by
`difference` in the mean, and moved once more for each run so that the accuracies of one arm's runs have the standard
deviation `spread`; then each run is right or wrong by chance. Cells that the output holds already are kept.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.environment import describe
from comparison.analysis.certainty import FIRST_LOOK, half_width, interim_analysis
from comparison.analysis.runs import Certainty, read_run
from comparison.analysis.statistics import LEVEL, Spread, estimate

DIFFERENCES = (0.0, 0.005, 0.01, 0.03, 0.05)
SPREADS = (0.003, 0.01, 0.03)
SIZES = (150, 1000, 10_000)
CERTAINTY = Certainty()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


def log_odds(folder: Path) -> np.ndarray:
    """float32 (2, N): of either arm's being right about each image, over its runs, with all or with most labels."""
    arms = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in {"figures", "verdict", "tb"})
    rows = []
    for arm in arms:
        labels = sorted(arm.iterdir(), key=lambda path: (path.name == "all", path.name.rjust(9, "0")))[-1]
        runs = [read_run(run, split="test") for run in sorted(labels.glob("s*"))]
        right = np.mean([run.probabilities[np.arange(len(run.labels)), run.labels] for run in runs], axis=0)
        rows.append(np.log((right + 1e-3) / (1 - right + 1e-3)))
    return np.array(rows, np.float32)


def probability(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-odds))


def mean_accuracy(odds: np.ndarray, scale: float) -> float:
    """Over images, and over runs whose log-odds are moved by `scale` times a normal number."""
    return float(probability(odds[:, None] + scale * NODES).mean(axis=0) @ WEIGHTS / WEIGHTS.sum())


def prepared(odds: np.ndarray, difference: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """The log-odds of both arms with such a true difference, and the scale of the seeds' effects on them."""
    first = odds[0]
    scales, moved = [], [first]
    middle = mean_accuracy(first, 0.0)
    moved.append(odds[1] + brentq(lambda shift: mean_accuracy(odds[1] + shift, 0.0) - middle, -20, 20))
    for arm in moved:
        right = probability(arm)
        scales.append(spread / float((right * (1 - right)).mean()))
    start = mean_accuracy(moved[0], scales[0])
    target = min(start + difference, 0.999)
    shift = brentq(lambda shift: mean_accuracy(moved[1] + shift, scales[1]) - target, -20, 20)
    return np.stack([moved[0], moved[1] + shift]), np.array(scales)


def trial(odds: np.ndarray, scales: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Differences int8 (K, N) of one simulated comparison, the second arm's minus the first's."""
    drawn = odds[:, generator.integers(odds.shape[1], size=size)]
    shifts = scales[:, None] * generator.standard_normal((2, CERTAINTY.max_seeds))
    right = [
        generator.random((CERTAINTY.max_seeds, size), dtype=np.float32)
        < probability((drawn[arm] + shifts[arm][:, None]).astype(np.float32))
        for arm in (0, 1)
    ]
    return right[1].astype(np.int8) - right[0].astype(np.int8)


def cell(odds: np.ndarray, difference: float, spread: float, size: int, trials: int) -> dict:
    generator = np.random.default_rng([round(1e4 * difference), round(1e4 * spread), size])
    moved, scales = prepared(odds, difference, spread)
    stops = {"better": np.zeros(CERTAINTY.max_seeds + 1), "same": np.zeros(CERTAINTY.max_seeds + 1)}
    wrong, seeds, fixed, parts = 0, [], 0, []
    for _ in range(trials):
        differences = trial(moved, scales, size, generator)
        for count in range(FIRST_LOOK, CERTAINTY.max_seeds + 1):
            decision = interim_analysis(differences[:count], CERTAINTY)
            if decision.verdict != "undecided":
                stops[decision.verdict][count] += 1
                wrong += decision.verdict == "better" and decision.estimate.centre < 0 and difference > 0
                break
        seeds.append(count)
        whole = estimate(differences)
        fixed += abs(whole.centre) > whole.half_width(LEVEL)
        parts.append((whole.spread.images, whole.spread.runs, whole.spread.seeds))
    shares = {name: np.round(counts.cumsum() / trials, 4).tolist() for name, counts in stops.items()}
    mean, seeds_of_all = Spread(*map(float, np.mean(parts, axis=0))), CERTAINTY.max_seeds
    beyond = half_width(mean, seeds_of_all, size) - abs(difference)
    return {
        "difference": difference, "spread": spread, "images": size, "trials": trials,
        "better_by_look": shares["better"], "same_by_look": shares["same"], "better_the_wrong_way": wrong / trials,
        "mean_seeds": float(np.mean(seeds)), "power": shares["better"][-1], "power_of_fixed_10": fixed / trials,
        "predicted_power_of_fixed_10": float(norm.sf(beyond / mean.error(seeds_of_all, size))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/sequential.json"))
    options = parser.parse_args()
    odds = log_odds(options.comparison)
    rows = json.loads(options.output.read_text())["rows"] if options.output.is_file() else []
    done = {(row["difference"], row["spread"], row["images"]) for row in rows}
    for size, difference, spread in product(options.sizes, DIFFERENCES, SPREADS):
        if (difference, spread, size) not in done:
            rows.append(cell(odds, difference, spread, size, options.trials))
            print({name: value for name, value in rows[-1].items() if "look" not in name}, flush=True)
            options.output.write_text(json.dumps({"rows": rows, **describe()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
