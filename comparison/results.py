"""The numbers of a comparison, computed once: the scores and costs of each arm, the judgement on each pair of arms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comparison.runs import Arm, Comparison, Condition, FinishedRun
from trainers.calibration import answered
from trainers.engine.metrics import class_scores, confidence_bins, expected_calibration_error, mean_of
from trainers.statistics import (
    Clusters,
    PairedDifference,
    design_of,
    holm,
    is_claim,
    paired_difference,
)

LAST = 0.2
"""Share of the learning, in steps times learning rate, over which a rise is measured: the second half of the steps of a
cosine that ends at zero, whose last steps change nothing."""
LEAST = 0.01
"""Rise of accuracy that counts."""
FITTED = 0.98
"""Training accuracy from which an arm has converged."""
FEWEST = 8
"""Epochs below which convergence is not judged."""
CONVERGENCE = (
    "in the last fifth of the training (steps times learning rate), by over a point and twice its noise, with training "
    "accuracy below 98%"
)


@dataclass(frozen=True)
class Pair:
    """Two arms under one condition: the second minus the first."""

    first: Arm
    second: Arm
    difference: PairedDifference
    adjusted_p: float | None
    """Holm's p value if the report judges several pairs."""
    claims: int
    """Pairs that the report judges together."""

    @property
    def interval(self) -> tuple[float, float, float]:
        """The difference between the ends of its interval."""
        return self.difference.low, self.difference.mean, self.difference.high

    @property
    def mark(self) -> str:
        """The second arm is `better`, `worse`, the `same`, or `unclear`."""
        if self.difference.identical:
            return "same"
        if not is_claim(self.difference, self.adjusted_p):
            return "unclear"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True)
class ArmResult:
    """An arm under one condition, by the columns of table.csv."""

    arm: Arm
    scores: dict[str, Any]
    costs: dict[str, Any]
    against_first: Pair | None
    """None for the first arm."""


@dataclass(frozen=True)
class ConditionResult:
    condition: Condition
    arms: tuple[ArmResult, ...]
    pairs: tuple[Pair, ...]
    """The pairs with the first arm come first."""


def analyse(comparison: Comparison) -> tuple[ConditionResult, ...]:
    """Score every arm under each condition, and judge every pair of arms."""
    results = []
    for condition, pairs in zip(comparison.conditions, judge(comparison.conditions), strict=True):
        rows = zip(condition.arms, (None, *pairs))  # noqa: B905
        arms = [ArmResult(arm, score(arm, condition.clusters), costs(arm), pair) for arm, pair in rows]
        results.append(ConditionResult(condition, tuple(arms), pairs))
    return tuple(results)


def judge(conditions: Sequence[Condition]) -> list[tuple[Pair, ...]]:
    """Judge the pairs of arms of each condition, those with the first arm first.

    All pairs of a report, under all its conditions, share one level of 5 % by Holm's correction: judged alone, six
    conditions of equal arms name a winner in an eighth of the reports.
    """
    pairs = [(condition, *pair) for condition in conditions for pair in combinations(condition.arms, 2)]
    differences = [paired_difference(b.correct, a.correct, condition.clusters) for condition, a, b in pairs]
    several = len(pairs) > 1
    adjusted = holm([difference.p for difference in differences]) if several else [None] * len(pairs)
    judged = iter(
        Pair(a, b, difference, p, claims=len(pairs))
        for (_, a, b), difference, p in zip(pairs, differences, adjusted, strict=True)
    )
    return [tuple(islice(judged, math.comb(len(condition.arms), 2))) for condition in conditions]


def macro_f1(run: FinishedRun) -> float:
    labels, predicted = torch.from_numpy(run.labels), torch.from_numpy(run.predicted)
    return mean_of(class_scores(labels, predicted, len(run.class_names)).f1)


def score(arm: Arm, clusters: Clusters) -> dict[str, Any]:
    """Compute the scores of an arm over its runs; shares are fractions."""
    runs, accuracies, design = arm.runs, arm.accuracies, design_of(arm.correct, clusters)
    intervals = (design_of(run.correct, clusters).interval(run.accuracy) for run in runs)
    lows, highs = zip(*intervals, strict=True)
    errors = [expected_calibration_error(calibration_bins(run)) for run in runs]
    of_each = np.bincount(runs[0].labels, minlength=len(runs[0].class_names)) * len(runs)
    hits = np.sum([run.confusion.diagonal() for run in runs], axis=0)
    recalls = np.divide(hits, of_each, out=np.full(len(hits), np.inf), where=of_each > 0)
    worst = int(recalls.argmin())
    of_worst = runs[0].labels == worst
    groups_of_worst = design_of(arm.correct[:, of_worst], clusters[of_worst])
    worst_low, worst_high = groups_of_worst.interval(float(recalls[worst]))
    return {
        "images": len(runs[0].labels),
        "groups": design.groups,  # an image that stands alone is one
        "effective_images": design.effective,
        "seeds": len(runs),
        "accuracy": float(accuracies.mean()),
        "accuracy_sd": float(accuracies.std(ddof=1)) if len(runs) > 1 else None,
        "wilson_low": min(lows),  # of each run's interval the lowest end
        "wilson_high": max(highs),
        "macro_f1": float(np.mean([macro_f1(run) for run in runs])),
        "ece": float(np.mean(errors)),
        "answered_95": float(np.mean([answered(run.probabilities.max(axis=1), run.correct) for run in runs])),
        "worst_class": runs[0].class_names[worst],
        "worst_recall": float(recalls[worst]),
        "worst_low": worst_low,  # of the interval on the class's images, for one run of that recall
        "worst_high": worst_high,
        "improvement": improvement_at_end([run.history for run in runs]),
    }


def calibration_bins(run: FinishedRun) -> Tensor:
    """Sum the images, confidences and right answers of a run in 15 bins of confidence: (3, 15)."""
    confidence: NDArray[np.float64] = run.probabilities.max(axis=1)
    right = run.probabilities.argmax(axis=1) == run.labels
    return confidence_bins(torch.from_numpy(confidence), torch.from_numpy(right))


def improvement_at_end(histories: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """Return how much the validation accuracy of an arm's runs rose in the last fifth of their learning.

    None: by less than a point or twice its noise, or the training images are fitted. `histories`: rows of metrics.csv
    of each run; the first is the untrained model.
    """
    rises, noises = [], []
    for history in histories:
        rows = history[1:]
        if len(rows) < FEWEST or any(row.get(name) is None for row in rows for name in ("lr", "val_accuracy")):
            return None
        steps = np.diff([row["step"] for row in history])
        learnt = np.cumsum(steps * [row["lr"] for row in rows])
        width = max(1, len(rows) // 10)
        start = max(0, int(np.searchsorted(learnt, (1 - LAST) * learnt[-1])) - width // 2)
        accuracy = np.array([row["val_accuracy"] for row in rows])
        rises.append(accuracy[-width:].mean() - accuracy[start : start + width].mean())
        noises.append(np.diff(accuracy[start // 2 :]).var() / width)  # of a difference of two means of `width` epochs
    on_training = [history[-1].get("train_accuracy") or 0.0 for history in histories]
    mean, noise = float(np.mean(rises)), float(np.mean(noises) / len(noises)) ** 0.5
    return mean if mean > max(LEAST, 2 * noise) and np.mean(on_training) < FITTED else None


def images_seen(arm: Arm) -> int:
    """Count the training images of all steps, each as often as it was seen: the median over seeds."""
    return int(np.median([run.summary["images_seen"] for run in arm.runs]))


def costs(arm: Arm) -> dict[str, Any]:
    """Return the costs of an arm, medians over its runs."""
    summaries, first = [run.summary for run in arm.runs], arm.runs[0]
    memory = [value for run in arm.runs if (value := run.history[-1].get("memory_mb")) is not None]
    epochs = sorted(summary["best"]["epoch"] for summary in summaries)
    return {
        "parameters": first.summary["parameters"],
        "trainable": first.summary["trainable"],
        "images_seen": images_seen(arm),
        "seconds": float(np.median([summary["seconds"] for summary in summaries])),
        "memory_mb": float(np.median(memory)) if memory else None,
        "lr": first.config["train"]["lr"],
        "best_epoch": f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]}-{epochs[-1]}",
    }
