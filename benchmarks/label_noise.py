"""Measure the planted wrong labels that `clean` finds, and the gain of training without suspects.

    python -m benchmarks.label_noise --data NAME=FOLDER [...] [--seeds 3] [--splits 1]

Each FOLDER is a built-in set's name, or has train/ and test/ with a folder for each class. Of the images outside the
test split 5 and 10 % get a wrong label: any other one (random), or the class that models of the right labels most often
take the image's class for (similar). Everything then happens as in `clean`: folds, probabilities, suspects. Written
after every case: an interrupted run leaves what it has.

- precision: share of planted ones among as many images, with the least probability of their label.
- area: under the curve of that order, planted against not.
- flagged, found: how many suspects there are, and which share of the planted ones is among them.
- test: accuracy of logistic regression on the same features, learnt from the right labels, from the noisy ones, and
  from these without what `clean` proposes to drop; each with the penalty that its own labels suggest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, roc_auc_score

from benchmarks.environment import RESULTS, describe
from datasets.bundle import TEST, Samples
from datasets.config import DataConfig
from datasets.open import split_samples
from inference.labels.clean import CLEAN_COMPONENTS, cross_validate, networks_for, suspects_of
from inference.labels.features import ExtractedFeatures, extract_features
from inference.labels.label_issues import best_penalty, fit_logistic, fold_of_each, out_of_fold
from inference.labels.suspects import DROP

CASES = [(kind, rate) for kind in ("random", "similar") for rate in (0.05, 0.10)]

COLUMNS = ("accuracy", "precision", "area", "found", "flagged", "test_right", "test_noisy", "test_cleaned")


def planted(truth: np.ndarray, pool: np.ndarray, rate: float, seed: int, likely: np.ndarray | None) -> np.ndarray:
    """Return labels of which a share is wrong: any class, or the `likely` one."""
    generator = np.random.default_rng(seed)
    labels, rows = truth.copy(), generator.choice(pool, round(rate * len(pool)), replace=False)
    other = (truth[rows] + generator.integers(1, truth.max() + 1, len(rows))) % (truth.max() + 1)
    labels[rows] = other if likely is None else likely[truth[rows]]
    return labels


def case(samples: Samples, found: ExtractedFeatures, truth: np.ndarray) -> dict[str, Any]:
    """Judge the set as it is labelled, against the true labels."""
    start = time.perf_counter()
    rows = np.flatnonzero(found.readable)
    labels, in_test, features = samples.labels[rows].astype(np.int64), samples.splits[rows] == TEST, found.values[rows]
    probabilities = cross_validate(samples, found, folds=5)
    suspects = suspects_of(samples, found, probabilities, test=False)
    seconds, learns = time.perf_counter() - start, ~in_test
    wrong = (labels != truth)[learns]
    doubt = 1 - probabilities[np.arange(len(labels)), labels][learns]
    paths = np.array([samples.paths[row] for row in rows])
    flagged = np.isin(paths, [suspect.path for suspect in suspects])
    dropped = np.isin(paths, [suspect.path for suspect in suspects if suspect.decision == DROP])
    right = (probabilities.argmax(axis=1) == truth)[learns].mean()

    left_out = fold_of_each(labels, found.groups[rows], folds=5) == 0

    def tested(rows: np.ndarray, given: np.ndarray) -> float:
        penalty = best_penalty(features, given, rows & ~left_out, rows & left_out)
        model = fit_logistic(features[rows], given[rows], penalty)
        return float((model.predict(features[in_test]) == truth[in_test]).mean())

    count = int(wrong.sum())
    return {
        "planted": count, "flagged": int(flagged.sum()), "accuracy": float(right),
        "precision": float(wrong[np.argsort(-doubt, kind="stable")[:count]].mean()) if count else None,
        "area": float(roc_auc_score(wrong, doubt)) if count else None,
        "found": float((flagged[learns] & wrong).sum() / count) if count else None,
        "test_right": tested(learns, truth), "test_noisy": tested(learns, labels),
        "test_cleaned": tested(learns & ~dropped, labels), "seconds": round(seconds, 1),
    }  # fmt: skip


def cases_of(name: str, source: str, options: argparse.Namespace) -> dict[str, Any]:
    samples, start = split_samples(DataConfig(source=source, root=options.data_root)), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = extract_features(samples, networks_for(samples), Path(folder), components=CLEAN_COMPONENTS)
    seconds, rows = round(time.perf_counter() - start, 1), np.flatnonzero(found.readable)
    truth, groups, features = samples.labels[rows].astype(np.int64), found.groups[rows], found.values[rows]
    result = {"images": len(rows), "classes": len(samples.class_names), "features": features.shape[1],
              "seconds_for_features": seconds, "untouched": [], "cases": []}  # fmt: skip
    for split in range(options.splits):
        own = samples.replace(splits=splits_of(samples, rows, groups, split))
        learns = own.splits[rows] != TEST
        pool, fold = np.flatnonzero(learns), fold_of_each(truth, groups, folds=5)
        said = out_of_fold(features, truth, fold, learns)
        confusion = confusion_matrix(truth[pool], said.argmax(axis=1)[pool])
        np.fill_diagonal(confusion, -1)
        untouched = {"split": split, "test_images": len(rows) - len(pool), **case(own, found, truth)}
        result["untouched"].append(untouched)
        for seed, (kind, rate) in product(range(options.seeds), CASES):
            labels = planted(truth, pool, rate, seed, None if kind == "random" else confusion.argmax(axis=1))
            noisy = samples.labels.copy()
            noisy[rows] = labels
            row = case(own.replace(labels=noisy), found, truth)
            result["cases"].append({"split": split, "noise": kind, "rate": rate, "seed": seed, **row})
            print(name, result["cases"][-1], flush=True)
            write(name, result)
    return result


def splits_of(samples: Samples, rows: np.ndarray, groups: np.ndarray, split: int) -> np.ndarray:
    """Yield the set's split, then splits with another fifth as test, copies together."""
    if split == 0:
        return samples.splits
    splits, fold = samples.splits.copy(), fold_of_each(samples.labels[rows].astype(np.int64), groups, folds=5)
    splits[rows] = np.where(fold == split, TEST, 0)
    return splits


def write(name: str, result: dict[str, Any]) -> None:
    path = RESULTS / "label_noise.json"
    everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    everything |= describe("cleanlab", "scikit-learn")
    everything.setdefault("sets", {})[name] = result
    path.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def table(sets: dict[str, Any]) -> None:
    """Print rows for docs/results.md: means over the cases, and their range.

    For the test they say what noise costs, and the points won back with their standard error over the cases."""
    for name, result in sets.items():
        for kind, rate in CASES:
            rows = [row for row in result["cases"] if (row["noise"], row["rate"]) == (kind, rate)]
            cells = [name, kind, f"{rate:.0%}", f"n={len(rows)}"]
            for column in COLUMNS:
                values = [row[column] for row in rows]
                cells.append(f"{column} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
            for text, more, less in (("cost", "right", "noisy"), ("won back", "cleaned", "noisy")):
                values = [100 * (row[f"test_{more}"] - row[f"test_{less}"]) for row in rows]
                error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
                cells.append(f"{text} {mean(values):.2f} ±{error:.2f}")
            print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits=digits"])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=1, help="test splits: the set's own, and others of a fifth")
    options = parser.parse_args()
    for word in options.data:
        name, _, source = word.partition("=")
        write(name, cases_of(name, source, options))
    table(json.loads((RESULTS / "label_noise.json").read_text(encoding="utf-8"))["sets"])


if __name__ == "__main__":
    main()
