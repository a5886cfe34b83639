"""The numbers of a comparison, computed once: per arm its scores and costs, per pair of arms the judgement."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import exit_code
from comparison.analysis.improving import improvement_at_end
from comparison.analysis.power import seeds_or_images_needed
from comparison.analysis.runs import Arm, Comparison, Condition, FinishedRun
from comparison.verdict import verdict
from trainers.config import from_dict
from trainers.coverage import answered as share_answered
from trainers.engine.metrics import confidence_bins, expected_calibration_error, macro_f1
from trainers.reporting.console import say
from trainers.statistics import (
    LEVEL,
    Clusters,
    PairedDifference,
    design_of,
    estimate,
    holm,
    is_claim,
    minus,
    paired_difference,
    sign_flip,
)
from trainers.storage.finished_run import untrusted_run
from vit.config import ModelConfig
from vit.factory import build_model
from vit.summary import summarise


@dataclass(frozen=True)
class Pair:
    """Two arms under one condition, the later minus the earlier."""

    difference: PairedDifference
    adjusted_p: float | None
    """Holm's, where the report judges several pairs, under one condition or under several."""
    significant_seeds: int
    """Number of seeds at which McNemar's exact test finds the two runs different."""
    sentence: str

    @property
    def interval(self) -> tuple[float, float, float]:
        """The difference between the ends of its interval."""
        return self.difference.low, self.difference.mean, self.difference.high

    @property
    def mark(self) -> str:
        """same, unclear, better or worse: the later arm beside the earlier."""
        if self.difference.identical:
            return "same"
        if not is_claim(self.difference, self.adjusted_p):
            return "unclear"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True)
class ArmResult:
    arm: Arm
    scores: dict[str, Any]
    """Scores, and below them the costs: by the columns of table.csv."""
    costs: dict[str, Any]
    against_first: Pair | None
    """None of the first arm itself."""


@dataclass(frozen=True)
class ConditionResult:
    condition: Condition
    arms: tuple[ArmResult, ...]
    pairs: tuple[Pair, ...]


def analyse(comparison: Comparison) -> tuple[ConditionResult, ...]:
    """Score every arm under each condition, and judge every pair of arms together."""
    judged = compare_pairs(comparison.conditions, scored=comparison.scored_images)
    results = []
    for condition, pairs in zip(comparison.conditions, judged, strict=True):
        against_first = (None, *pairs)  # the pairs with the first arm come first
        rows = zip(condition.arms, against_first)  # noqa: B905
        arms = [ArmResult(arm, score(arm, condition.clusters), costs(arm), pair) for arm, pair in rows]
        results.append(ConditionResult(condition, tuple(arms), pairs))
    return tuple(results)


def compare_pairs(conditions: Sequence[Condition], *, scored: str) -> list[tuple[Pair, ...]]:
    """Judge the pairs of arms of each condition, those with the first arm first.

    All pairs of a report, under all its conditions, share one level of 5 % by Holm's correction: a reader takes any
    winner for one, and judged alone, six conditions of equal arms name one in an eighth of the reports.
    """
    pairs = [[*combinations(condition.arms, 2)] for condition in conditions]
    differences = [
        paired_difference(second.correct, first.correct, condition.clusters)
        for condition, of_one in zip(conditions, pairs, strict=True)
        for first, second in of_one
    ]
    several = len(differences) > 1
    adjusted = holm([difference.p for difference in differences]) if several else [None] * len(differences)
    found = zip(differences, adjusted, strict=True)
    return [
        tuple(
            compare_pair(pair, condition.clusters, *next(found), claims=len(differences), scored=scored)
            for pair in of_one
        )
        for condition, of_one in zip(conditions, pairs, strict=True)
    ]


def compare_pair(
    pair: tuple[Arm, Arm],
    clusters: Clusters,
    difference: PairedDifference,
    adjusted_p: float | None,
    *,
    claims: int,
    scored: str,
) -> Pair:
    """The verdict on two arms, as one of so many `claims` of a report."""
    first, second = pair
    names, accuracies = (second.name, first.name), (second.accuracies.mean(), first.accuracies.mean())
    sentence = verdict(difference, names, accuracies, scored=scored, adjusted_p=adjusted_p, claims=claims)
    if not is_claim(difference, adjusted_p) and difference.mean and difference.seeds > 1:
        needed = seeds_or_images_needed(estimate(minus(second.correct, first.correct), clusters), claims=claims)
        sentence = f"{sentence.removesuffix('.')}; {needed}."
    seen = [images_seen(arm) for arm in (second, first)]
    if seen[0] != seen[1]:
        unequal = f"{second.name} saw {seen[0]:,} training images, {first.name} {seen[1]:,}"
        sentence = f"{sentence.removesuffix('.')}; but {unequal}."
    sentence += still_improving((first, second))
    of_seeds = sum(sign_flip(row, clusters) <= LEVEL for row in minus(second.correct, first.correct)[:, None])
    return Pair(difference, adjusted_p, of_seeds, sentence)


def still_improving(arms: Sequence[Arm]) -> str:
    """Sentence that names the arms that had not converged, and the option that trains them longer."""
    rises = {
        arm.name: value for arm in arms if (value := improvement_at_end([run.history for run in arm.runs])) is not None
    }
    if not rises:
        return ""
    gains = " and ".join(f"{name} gained {100 * value:.1f} points" for name, value in rises.items())
    more = 2 * max(images_seen(arm) for arm in arms)
    return f" Not converged: {gains} in the last fifth of the training; --images-seen {more} trains longer."


def score(arm: Arm, clusters: Clusters) -> dict[str, Any]:
    """Scores of an arm over its runs, as columns of table.csv: shares as fractions."""
    runs, accuracies, design = arm.runs, arm.accuracies, design_of(arm.correct, clusters)
    of_runs = (design_of(run.correct, clusters).interval(run.accuracy) for run in runs)
    lows, highs = zip(*of_runs, strict=True)
    errors = [expected_calibration_error(calibration_bins(run.probabilities, run.labels)) for run in runs]
    confusion = np.sum([run.confusion for run in runs], axis=0) / len(runs)
    sizes = confusion.sum(axis=1)
    recalls = np.divide(confusion.diagonal(), sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    worst = int(recalls.argmin())
    of_worst = runs[0].labels == worst
    groups_of_worst = design_of(arm.correct[:, of_worst], clusters[of_worst])
    worst_low, worst_high = groups_of_worst.interval(round(confusion[worst, worst]) / int(sizes[worst]))
    return {
        "images": len(runs[0].labels),
        "groups": design.groups,  # an image that stands alone is one
        "effective_images": design.worth,
        "seeds": len(runs),
        "accuracy": float(accuracies.mean()),
        "accuracy_sd": float(accuracies.std(ddof=1)) if len(runs) > 1 else None,
        "wilson_low": min(lows),  # of each run's interval the lowest end
        "wilson_high": max(highs),
        "macro_f1": float(np.mean([macro_f1(torch.from_numpy(run.confusion)) for run in runs])),
        "ece": float(np.mean(errors)),
        "answered_95": answered(arm),
        "worst_class": runs[0].class_names[worst],
        "worst_recall": float(recalls[worst]),
        "worst_low": worst_low,  # of the interval on the class's images, for one run of that recall
        "worst_high": worst_high,
        "improvement": improvement_at_end([run.history for run in runs]),
    }


def calibration_bins(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Tensor:
    """The sums of `trainers.engine.metrics.confidence_bins` (3, 15), of probabilities (N, C)."""
    right = probabilities.argmax(axis=1) == labels
    return confidence_bins(torch.from_numpy(probabilities.max(axis=1)), torch.from_numpy(right))


def answered(arm: Arm) -> float:
    """The largest share of the scored images, those that a run is surest of, on which 95 % of its answers are right:
    the mean over runs."""
    return float(np.mean([share_answered(run.probabilities.max(axis=1), run.correct) for run in arm.runs]))


def images_seen(arm: Arm) -> int:
    """Training images of all steps, each as often as it was seen: the median over seeds."""
    return int(np.median([run.summary["images_seen"] for run in arm.runs]))


def costs(arm: Arm) -> dict[str, Any]:
    """Return what an arm costs, as columns of table.csv: medians over its runs."""
    summaries, first = [run.summary for run in arm.runs], arm.runs[0]
    memory = [value for run in arm.runs if (value := run.history[-1].get("memory_mb")) is not None]
    epochs = sorted(summary["best"]["epoch"] for summary in summaries)
    return {
        "parameters": first.summary["parameters"],
        "trainable": first.summary["trainable"],
        "gflops_per_image": gflops(first),
        "images_seen": images_seen(arm),
        "seconds": float(np.median([summary["seconds"] for summary in summaries])),
        "memory_mb": float(np.median(memory)) if memory else None,
        "lr": first.config["train"]["lr"],
        "best_epoch": f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]}-{epochs[-1]}",
    }


def gflops(run: FinishedRun) -> float | None:
    """Count the GFLOPs of one image's forward pass: 2 per multiply-add (see vit/summary.py). Returns None, and prints a
    note, for a model that cannot be built here: of another version, or of a package or a program that is not
    installed."""
    bare = {"weights": "none", "weights_source": None, "trainable": "all"}
    try:
        return _flops(from_dict(ModelConfig, run.config["model"] | bare), len(run.class_names)) / 1e9
    except Exception as error:
        if exit_code(error) == 1:  # a bug
            raise
        _say_once(f"note: no GFLOPs of {run.config['model']['name']}: {error}")
        return None


_say_once = lru_cache(say)  # the arms of one condition are those of the next


@lru_cache
def _flops(config: ModelConfig, num_classes: int) -> int:
    with untrusted_run(), torch.device("meta"):  # shapes without numbers
        model = build_model(config, num_classes=num_classes)
    assert config.image_size is not None  # config.json holds resolved options
    return summarise(model, in_channels=config.in_channels, image_size=config.image_size).flops
