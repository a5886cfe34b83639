"""Sets of classes by the cut on the probability, which is built in, against APS and RAPS: mean size at equal cover.

    python -m benchmarks.set_sizes MODEL SIZE --keep FOLDER SET... [--splits 100]

Logits are those of a linear head on kept features (benchmarks.unknown_classes); a temperature is fitted to them. The
validation and test images together are cut anew into 360 for calibration and the rest. APS (Romano, Sesia and Candes
2020, arXiv:2006.02544) and RAPS (Angelopoulos et al. 2021, arXiv:2009.14193) without random numbers, as predictions
have to be the same twice, and with; RAPS with the best of nine penalties, chosen by the mean size on the images that it
is measured on, which favours it. All take the plain conformal quantile at the level, so that covers are equal.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import softmax

from benchmarks.environment import describe
from benchmarks.unknown_classes import TEST, VAL, Known, kept_features, parts_of
from trainers.engine.temperature import sharpness

LEVELS = (0.9, 0.95)
CALIBRATION = 360
PENALTIES = tuple(product((0.01, 0.1, 1.0), (1, 2, 5)))
"""RAPS: lambda and k."""


def cumulated(shares: np.ndarray, weight: float = 0.0, free: int = 0, draws: np.ndarray | None = None) -> np.ndarray:
    """Scores (N, C) of APS, and with a weight of RAPS: of each class the probabilities of those likelier than it and
    its own, or with draws (N,) from 0 to 1 that part of its own; and the penalty on its rank."""
    order = np.argsort(-shares, axis=1, kind="stable")
    ranked = np.take_along_axis(shares, order, axis=1)
    total = np.cumsum(ranked, axis=1) - (0 if draws is None else ranked * (1 - draws[:, None]))
    total = total + weight * np.maximum(np.arange(1, shares.shape[1] + 1) - free, 0)
    scores = np.empty_like(shares)
    np.put_along_axis(scores, order, total, axis=1)
    return scores


def sizes(scores: np.ndarray, labels: np.ndarray, order: np.ndarray, level: float) -> tuple[float, float]:
    """Mean size of a set and cover, on all but the first images in an order, on which the cut is made; each set holds
    the best class."""
    own, rest = order[:CALIBRATION], order[CALIBRATION:]
    place = int(np.ceil(level * (CALIBRATION + 1))) - 1
    cut = np.sort(scores[own, labels[own]])[min(place, CALIBRATION - 1)]
    sets = scores[rest] <= cut
    sets[np.arange(len(rest)), scores[rest].argmin(axis=1)] = True
    return float(sets.sum(axis=1).mean()), float(sets[np.arange(len(rest)), labels[rest]].mean())


def calibrated(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities at the fitted temperature."""
    return softmax(sharpness(logits, labels) * logits, axis=1)


def measured(shares: np.ndarray, labels: np.ndarray, splits: int) -> list[dict[str, float | str]]:
    rng, rows = np.random.default_rng(0), []
    orders = [rng.permutation(len(labels)) for _ in range(splits)]
    draws = rng.random(len(labels))
    ways = {"probability": [1 - shares], "APS": [cumulated(shares)], "APS, random": [cumulated(shares, draws=draws)]}
    ways["RAPS"] = [cumulated(shares, *penalty) for penalty in PENALTIES]
    ways["RAPS, random"] = [cumulated(shares, *penalty, draws=draws) for penalty in PENALTIES]
    for level in LEVELS:
        for name, each in ways.items():
            found = [np.mean([sizes(scores, labels, order, level) for order in orders], axis=0) for scores in each]
            size, cover = min(found, key=lambda pair: pair[0])
            rows.append({"level": level, "sets": name, "size": round(float(size), 3), "cover": round(float(cover), 4)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("size", type=int)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=100)
    args = parser.parse_args()
    found = {}
    for folder in args.sets:
        kept = kept_features(args.model, args.size, folder, args.keep)
        known = Known(kept, kept["labels"] >= 0, tolerance=1e-6)
        rows = np.flatnonzero((kept["splits"] == VAL) | (kept["splits"] == TEST))
        logits, labels = known.logits(parts_of(kept, rows)).numpy(), kept["labels"][rows]
        accuracy = float((logits.argmax(axis=1) == labels).mean())
        found[folder.name] = {
            "classes": len(kept["classes"]), "images": len(rows), "accuracy": accuracy,
            "rows": measured(calibrated(logits, labels), labels, args.splits),
        }  # fmt: skip
    about = {"model": args.model, "size": args.size, "splits": args.splits, "found": found}
    print(json.dumps({"environment": describe("numpy", "scikit-learn")} | about, indent=1))


if __name__ == "__main__":
    main()
