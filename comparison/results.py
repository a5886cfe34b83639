"""Hold a comparison as tables: runs, predictions, models, and pairs of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from common.tables import frame_of
from common.text import pluralise
from comparison.runs import FinishedRun
from datasets.copies import merged
from trainers.calibration import answered
from trainers.engine.metrics import class_scores, confidence_bins, expected_calibration_error, mean_of
from trainers.reporting.console import duration
from trainers.statistics import Bools, Clusters, Design, PairedDifference, design_of, holm, is_claim, paired_difference

LAST = 0.2
"""Share of the learning, in steps times learning rate, over which a rise is measured: the second half of the steps of a
cosine that ends at zero, whose last steps change nothing."""
LEAST = 0.01
"""Rise of accuracy that counts."""
FITTED = 0.98
"""Training accuracy from which a model has converged."""
FEWEST = 8
"""Epochs below which nothing is said of convergence."""
ONE_PASS = 0.99
"""Passes over the training images below which a model has not been trained, and nothing is said of who is better."""
CONVERGENCE = (
    "in the last fifth of the training (steps times learning rate), by over a point and twice its noise, with training "
    "accuracy below 98%"
)
LABELS = "labels_per_class"
"""Column of the label budget: the labels of each class that its runs are trained on, or NA for all of them."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models trained on the same images, and the verdict on them.

    Its tables hold one or more label budgets, one after another, and in each the models in the same order.
    """

    data: str
    runs: pd.DataFrame
    """A row per label budget, model and seed: the fields of a FinishedRun, and its accuracy."""
    predictions: pd.DataFrame
    """A row per run and test image: see `runs.scored_images`; `run` is a row of `runs`, and `unit` a number that
    images share which are of one group in any run of the label budget."""
    table: pd.DataFrame
    """A row per label budget and model, as in table.csv: scores with intervals, the difference to the first model,
    costs and runs; shares are fractions, missing numbers NaN."""
    pairs: pd.DataFrame
    """A row per label budget and pair of models, those with the first model first: see `judge`."""
    scored: str = "test"
    """Name of the test images, such as "held-out validation"."""
    protocol: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tuning: tuple[dict[str, Any], ...] = ()
    """Rows with labels_per_class, arm, lr, val_accuracy, val_loss, chosen."""
    folder: Path = Path()
    """Directory of the report."""
    kept: Path | None = None
    """The run that is the result, if the comparison trained it."""

    @property
    def conditions(self) -> list[Comparison]:
        """Take the comparison apart, by the number of labels."""
        tables = (by_condition(table) for table in (self.runs, self.table, self.pairs))
        return [replace(self, runs=a, table=b, pairs=c) for a, b, c in zip(*tables, strict=True)]

    @property
    def arms(self) -> list[str]:
        """Names of the models."""
        return list(dict.fromkeys(self.runs["arm"]))

    def with_names(self, names: Sequence[str]) -> Comparison:
        """Return the comparison with other names of the models, in their order."""
        new = dict(zip(self.arms, names, strict=True))
        runs, table = (frame.assign(arm=[new[name] for name in frame["arm"]]) for frame in (self.runs, self.table))
        pairs = self.pairs.assign(**{end: [new[name] for name in self.pairs[end]] for end in ("first", "second")})
        return replace(self, runs=runs, table=table, pairs=pairs)

    @property
    def labels(self) -> str:
        """Labels per class of the first label budget, for a table and a file's name."""
        labels = first_of(self.runs).labels_per_class
        return "all" if pd.isna(labels) else str(labels)

    @property
    def title(self) -> str:
        return labels_text(first_of(self.runs).labels_per_class)


def labels_text(count: int | None, *, every: str = "all labels") -> str:
    return every if count is None or pd.isna(count) else f"{pluralise(count, 'label')} per class"


def compared(data: str, runs: Sequence[FinishedRun], *, scored: str = "test", **known: Any) -> Comparison:
    """Score every model and judge every pair.

    Runs come by label budget, model and seed; `known`: other fields."""
    of_runs, predictions = tables_of(runs)
    pairs = judge(of_runs, predictions).assign(scored=scored)
    table = table_of(of_runs, predictions, pairs, data=data, scored=scored)
    return Comparison(data, of_runs, predictions, table, pairs, scored=scored, **known)


def tables_of(runs: Sequence[FinishedRun]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `Comparison.runs` and `Comparison.predictions`."""
    names = [field.name for field in fields(FinishedRun) if field.name != "predictions"]
    frame = frame_of(names, ([getattr(run, name) for name in names] for run in runs)).astype({LABELS: "Int64"})
    predictions = [run.predictions.assign(run=number) for number, run in enumerate(runs)]
    for condition in by_condition(frame):
        units = merged(*(predictions[number]["unit"].to_numpy() for number in condition.index))
        for number in condition.index:
            predictions[number]["unit"] = units
    images = pd.concat(predictions, ignore_index=True)
    return frame.assign(accuracy=images.groupby("run")["right"].mean()), images


def by_condition(frame: pd.DataFrame) -> list[pd.DataFrame]:
    return [part for _, part in frame.groupby(LABELS, sort=False, dropna=False)]


def by_arm(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Take runs apart, by label budget and model."""
    # Not by `groupby`: an index of pandas holds only names in Unicode.
    return [part[part["arm"] == arm] for part in by_condition(runs) for arm in dict.fromkeys(part["arm"])]


def of_runs(predictions: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    return predictions[predictions["run"].isin(runs.index)]


def right_of(scored: pd.DataFrame) -> Bools:
    """Return which of K runs is right about which of N images: (K, N)."""
    return scored["right"].to_numpy().reshape(scored["run"].nunique(), -1)


def units_of(scored: pd.DataFrame) -> Clusters:
    """Return the units (N,) of the images of some runs."""
    return scored["unit"].to_numpy()[: right_of(scored).shape[1]]


def design(scored: pd.DataFrame) -> Design:
    return design_of(right_of(scored), units_of(scored))


# Pairs of arms


def judge(runs: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pair of models: their difference, p values and verdict.

    The difference is the second minus the first. The second model is `better`, `worse`, the `same`, or
    `unclear`; where one took less than a pass over the images it is `untrained`. `so_far`: passes of the less accurate
    model, if it `may_improve`. All pairs of a report, under all its label budgets, share one level of 5 % by Holm's
    correction (p_holm): one by one, six label budgets of equal models name a winner in an eighth of the reports.
    """
    rows, found = [], []
    for condition in by_condition(runs):
        arms = [(part, right_of(of_runs(predictions, part))) for part in by_arm(condition)]
        units = units_of(of_runs(predictions, condition))
        for (first, right_first), (second, right_second) in combinations(arms, 2):
            found.append(paired_difference(right_second, right_first, units))
            row = {LABELS: first_of(condition).labels_per_class}
            row |= {"first": first_of(first).arm, "second": first_of(second).arm}
            row |= {"accuracy_first": accuracy(first), "accuracy_second": accuracy(second)}
            row |= {"passes": min(passes(first), passes(second))}
            behind = first if accuracy(first) < accuracy(second) else second
            row |= {"so_far": passes(behind) if may_improve(behind) else None}
            rows.append(row | {"images_seen_first": images_seen(first), "images_seen_second": images_seen(second)})
    adjusted = holm([difference.p for difference in found]) if len(found) > 1 else [None]
    for row, difference, p in zip(rows, found, adjusted, strict=True):
        row |= {"low": difference.low, "difference": difference.mean, "high": difference.high}
        row |= {"p": difference.p, "p_holm": p, "together": len(found)}
        row |= {"verdict": verdict(difference, p, row["passes"])}
    return numeric(rows).assign(estimate=pd.Series([difference.found for difference in found], dtype=object))


def verdict(difference: PairedDifference, adjusted_p: float | None, passes: float) -> str:
    if passes < ONE_PASS:
        return "untrained"
    if difference.identical:
        return "same"
    if not is_claim(difference, adjusted_p):
        return "unclear"
    return "better" if difference.mean > 0 else "worse"


# Arms


class Column(NamedTuple):
    """Columns of table.csv that are computed together, and how the report shows them."""

    names: str
    of: Callable[..., Any]
    """Value of a model from its rows of `runs`, and for a score those of `predictions`; of several names a tuple."""
    heading: str = ""
    """What stands above it in the report, which leaves out those without."""
    text: str | Callable[[Any], str] = ""
    """Cell of the report for a row of the table, or the format of its value."""

    def values(self, *arm: pd.DataFrame) -> dict[str, Any]:
        names, values = self.names.split(), self.of(*arm)
        return dict(zip(names, values if len(names) > 1 else [values], strict=True))

    def cell(self, row: Any) -> str:
        return format(getattr(row, self.names), self.text) if isinstance(self.text, str) else self.text(row)


def table_of(
    runs: pd.DataFrame, predictions: pd.DataFrame, pairs: pd.DataFrame, *, data: str, scored: str
) -> pd.DataFrame:
    """Return `Comparison.table`."""
    rows = []
    for condition, judged in zip(by_condition(runs), by_condition(pairs), strict=True):
        arms = by_arm(condition)
        for arm, pair in zip(arms, [None, *rows_of(judged)][: len(arms)], strict=True):
            images = of_runs(predictions, arm)
            row = {"data": data, LABELS: first_of(arm).labels_per_class, "arm": first_of(arm).arm, "scored": scored}
            for column in SCORES:
                row |= column.values(arm, images)
            row |= {name: getattr(pair, known, None) for name, known in DIFFERENCE.items()}
            for column in COSTS:
                row |= column.values(arm)
            rows.append(row | {"runs": " ".join(map(str, arm["folder"]))})
    return numeric(rows)


def numeric(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a table whose columns without text are numbers, missing ones NaN."""
    frame = frame_of(rows[0], (row.values() for row in rows)).astype({LABELS: "Int64"})
    numbers = [name for name, cells in frame.items() if not any(isinstance(cell, str) for cell in cells)]
    return frame.assign(**frame[numbers].apply(pd.to_numeric))


def rows_of(frame: pd.DataFrame) -> list[Any]:
    """Return the rows of a table, whose cells are attributes."""
    return list(frame.itertuples(index=False))


def first_of(frame: pd.DataFrame) -> Any:
    return rows_of(frame[:1])[0]


def each_run(score: Callable[[pd.DataFrame], float]) -> Callable[[pd.DataFrame, pd.DataFrame], float]:
    """Return the mean over runs of a score of one run's predictions."""
    return lambda _, scored: float(np.mean([score(part) for _, part in scored.groupby("run")]))


def accuracy(runs: pd.DataFrame) -> float:
    return float(runs["accuracy"].to_numpy().mean())


def spread(runs: pd.DataFrame) -> float | None:
    """Return the standard deviation of the accuracy over runs."""
    return float(runs["accuracy"].to_numpy().std(ddof=1)) if len(runs) > 1 else None


def wilson_ends(_: pd.DataFrame, scored: pd.DataFrame) -> tuple[float, float]:
    """Return the lowest and the highest end of the runs' intervals."""
    ends = [design(run).interval(float(run["right"].mean())) for _, run in scored.groupby("run")]
    return min(low for low, _ in ends), max(high for _, high in ends)


def worst_class(runs: pd.DataFrame, scored: pd.DataFrame) -> tuple[str, float, float, float]:
    """Return the class of the lowest recall over all runs, that recall, and its interval.

    The interval is that of one run on the images of the class."""
    recalls = scored.groupby("label")["right"].mean()
    worst, recall = recalls.index[int(recalls.argmin())], float(recalls.min())
    return first_of(runs).class_names[worst], recall, *design(scored[scored["label"] == worst]).interval(recall)


def macro_f1(scored: pd.DataFrame) -> float:
    labels, predicted = (torch.tensor(scored[name].to_numpy()) for name in ("label", "predicted"))
    return mean_of(class_scores(labels, predicted, int(max(labels.max(), predicted.max())) + 1).f1)


def calibration_error(scored: pd.DataFrame) -> float:
    confidence, right = (torch.tensor(scored[name].to_numpy()) for name in ("confidence", "right"))
    return expected_calibration_error(confidence_bins(confidence, right))


def answered_95(scored: pd.DataFrame) -> float:
    return answered(scored["confidence"].to_numpy(), scored["right"].to_numpy())


def improvement_at_end(histories: Sequence[Sequence[Mapping[str, Any]]]) -> float | None:
    """Return how much validation accuracy rose in the last fifth of the learning.

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


def may_improve(runs: pd.DataFrame) -> bool:
    """Return whether a model still improved, or took too few passes to say so.

    One whose head was fitted takes no steps, and cannot."""
    if first_of(runs).config["train"].get("start_head") == "fit":
        return False
    return passes(runs) < FEWEST or improvement_at_end(runs["history"].tolist()) is not None


def median_of(runs: pd.DataFrame, name: str) -> float:
    return float(np.median([summary[name] for summary in runs["summary"]]))


def images_seen(runs: pd.DataFrame) -> int:
    """Count the training images of all steps, with repetitions: the median over seeds."""
    return int(median_of(runs, "images_seen"))


def passes(runs: pd.DataFrame) -> float:
    """Return how often the runs took their training images, the least over seeds."""
    return min(summary["images_seen"] / summary["images"]["train"] for summary in runs["summary"])


def memory(runs: pd.DataFrame) -> float | None:
    known = [value for history in runs["history"] if (value := history[-1].get("memory_mb")) is not None]
    return float(np.median(known)) if known else None


def best_epochs(runs: pd.DataFrame) -> str:
    epochs = sorted(summary["best"]["epoch"] for summary in runs["summary"])
    return f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]}-{epochs[-1]}"


def interval_text(row: Any) -> str:
    return f"{row.wilson_low * 100:.1f} to {row.wilson_high * 100:.1f}"


def worst_text(row: Any) -> str:
    low, high = row.worst_low * 100, row.worst_high * 100
    return f"{row.worst_class}: {row.worst_recall * 100:.1f} ({low:.0f} to {high:.0f})"


def images_seen_text(row: Any) -> str:
    return f"{row.images_seen:,}{' ^' * pd.notna(row.improvement)}"


SCORES = (
    Column("images", lambda _, scored: right_of(scored).shape[1]),
    Column("groups", lambda _, scored: design(scored).groups),  # an image that stands alone is one
    Column("effective_images", lambda _, scored: design(scored).effective),
    Column("seeds", lambda runs, _: len(runs)),
    Column("accuracy", lambda runs, _: accuracy(runs)),
    Column("accuracy_sd", lambda runs, _: spread(runs)),
    Column("wilson_low wilson_high", wilson_ends, "95% interval", interval_text),
    Column("macro_f1", each_run(macro_f1), "macro F1", ".3f"),
    Column("ece", each_run(calibration_error), "ECE", ".3f"),
    Column("answered_95", each_run(answered_95), "95% right on", ".1%"),
    Column("worst_class worst_recall worst_low worst_high", worst_class, "worst class %", worst_text),
    Column("improvement", lambda runs, _: improvement_at_end(runs["history"].tolist())),
)
DIFFERENCE = {
    "difference": "difference", "difference_low": "low", "difference_high": "high", "p": "p", "p_holm": "p_holm",
    "verdict": "verdict", "after_passes": "passes", "so_far": "so_far",
}  # fmt: skip
"""Columns of table.csv that are those of `pairs` for the first model and this one."""
COSTS = (
    Column("parameters", lambda runs: first_of(runs).summary["parameters"], "parameters", ","),
    Column("trainable", lambda runs: first_of(runs).summary["trainable"], "trainable", ","),
    Column("images_seen", images_seen, "images seen", images_seen_text),
    Column("passes", passes, "passes", ".3g"),
    Column("seconds", lambda runs: median_of(runs, "seconds"), "time", lambda row: duration(row.seconds)),
    Column("memory_mb", memory, "memory MB", lambda row: "-" if pd.isna(row.memory_mb) else f"{row.memory_mb:,.0f}"),
    Column("lr", lambda runs: first_of(runs).config["train"]["lr"], "lr", ".3g"),
    Column("best_epoch", best_epochs, "best epoch"),
)
"""With SCORES the one list of what is known of a model: another score or cost is a row here."""
