"""The numbers of a comparison, computed once: per arm its scores and costs, per pair of arms the judgement."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch

from comparison.runs import Arm, Comparison, Condition, Run
from comparison.statistics import (
    LEVEL,
    PairedDifference,
    ece,
    holm,
    is_claim,
    macro_f1,
    mcnemar,
    paired_difference,
    verdict,
    wilson,
)
from trainers.config import from_dict
from vit.config import ModelConfig
from vit.factory import build_model
from vit.summary import summarise


@dataclass(frozen=True)
class ArmScores:
    """One arm under one condition. K runs; shares as fractions, costs as medians over the runs."""

    arm: Arm
    accuracies: np.ndarray  # (K,)
    low: float
    """Wilson's intervals of the runs reach from here"""
    high: float
    """to here."""
    macro_f1: float
    ece: float
    parameters: int
    trainable: int
    gflops: float | None
    images_seen: int
    seconds: float
    memory_mb: float | None
    lr: float
    best_epoch: str

    @property
    def accuracy(self) -> float:
        return float(self.accuracies.mean())

    @property
    def sd(self) -> float | None:
        """Over seeds; None of one."""
        return float(self.accuracies.std(ddof=1)) if len(self.accuracies) > 1 else None


@dataclass(frozen=True)
class Pair:
    """Two arms under one condition, the later minus the earlier."""

    first: Arm
    second: Arm
    difference: PairedDifference
    """Of `second` minus `first`."""
    adjusted_p: float | None
    """Holm's, where there are more than two arms."""
    mcnemar: tuple[float, ...]
    """Exact p of every seed's two runs."""
    sentence: str

    @property
    def significant_seeds(self) -> int:
        return sum(p <= LEVEL for p in self.mcnemar)

    @property
    def mark(self) -> str:
        """better, worse or unclear, of `second` beside `first`."""
        if self.difference.identical:
            return "same"
        if not is_claim(self.difference, self.adjusted_p):
            return "unclear"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True)
class ConditionResult:
    condition: Condition
    scores: tuple[ArmScores, ...]
    pairs: tuple[Pair, ...]

    def against_first(self, index: int) -> Pair | None:
        """The pair of arm `index` and the first one; None for the first itself."""
        return self.pairs[index - 1] if index else None


def analyse(comparison: Comparison) -> tuple[ConditionResult, ...]:
    """Score every arm and judge every pair of arms, each condition by itself."""
    return tuple(
        ConditionResult(condition, tuple(map(score, condition.arms)), judge(condition, scored=comparison.scored_images))
        for condition in comparison.conditions
    )


def judge(condition: Condition, *, scored: str = "test") -> tuple[Pair, ...]:
    """All pairs of arms, those with the first arm first; of more than two arms with Holm's correction."""
    couples = list(combinations(condition.arms, 2))
    differences = [paired_difference(second.correct, first.correct) for first, second in couples]
    adjusted: list[float | None] = [None] * len(couples)
    if len(couples) > 1:
        adjusted = [*holm([difference.p for difference in differences])]
    return tuple(
        Pair(
            first, second, difference, p,
            tuple(mcnemar(a, b) for a, b in zip(first.correct, second.correct, strict=True)),
            verdict(
                difference, (second.name, first.name), (second.accuracies.mean(), first.accuracies.mean()),
                scored=scored, adjusted_p=p, pairs=len(couples),
            ),
        )
        for (first, second), difference, p in zip(couples, differences, adjusted, strict=True)
    )  # fmt: skip


def score(arm: Arm) -> ArmScores:
    runs = arm.runs
    memory = [value for run in runs if (value := run.history[-1].get("memory_mb")) is not None]
    epochs = sorted(run.summary["best"]["epoch"] for run in runs)
    lows, highs = zip(*(wilson(int(run.correct.sum()), len(run.labels)) for run in runs), strict=True)
    return ArmScores(
        arm=arm,
        accuracies=arm.accuracies,
        low=min(lows),
        high=max(highs),
        macro_f1=float(np.mean([macro_f1(run.labels, run.predicted) for run in runs])),
        ece=float(np.mean([ece(run.probabilities, run.labels) for run in runs])),
        parameters=runs[0].summary["parameters"],
        trainable=runs[0].summary["trainable"],
        gflops=gflops(runs[0]),
        images_seen=int(np.median([run.summary["images_seen"] for run in runs])),
        seconds=float(np.median([run.summary["seconds"] for run in runs])),
        memory_mb=float(np.median(memory)) if memory else None,
        lr=runs[0].config["train"]["lr"],
        best_epoch=f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]}-{epochs[-1]}",
    )


def gflops(run: Run) -> float | None:
    """Of one image's forward pass: 2 per multiply-add (see vit/summary.py). None for a model of another version."""
    return _gflops(json.dumps(run.config["model"], sort_keys=True), len(run.class_names))


@lru_cache(maxsize=64)
def _gflops(model: str, num_classes: int) -> float | None:
    values: dict[str, Any] = json.loads(model) | {"weights": "none", "weights_source": None}
    try:
        config = from_dict(ModelConfig, values)
        with torch.device("meta"):  # shapes without numbers
            module = build_model(config, num_classes=num_classes)
    except (ValueError, ImportError, OSError):
        return None
    assert config.image_size is not None  # config.json holds resolved options
    return summarise(module, in_channels=config.in_channels, image_size=config.image_size).flops / 1e9
