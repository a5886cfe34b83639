"""Weak slices of each arm, among those that are known: as `evaluate` finds them for one run, for a comparison's
report."""

from typing import Any, NamedTuple

from comparison.analysis.results import ConditionResult
from comparison.reporting.images import scored_samples
from comparison.reporting.table import Table
from datasets.bundle import Samples
from datasets.errors import DataError
from inference.known_slices import weaknesses


class _Scored(NamedTuple):
    """Scored images, as a data set has them."""

    samples: Samples
    indices: list[int]


class WeakSlices(NamedTuple):
    """The slices in which arms are surely weaker than on other images of the same classes."""

    table: Table
    note: str
    """Result for the slices, or why there is none."""


def weak_slices(result: ConditionResult) -> WeakSlices | None:
    """The weak slices of the first seed of each arm; None where no slices are known, or the feature was taken out."""
    header, lines = ["arm", "where", "images", "accuracy %", "of others in the same mix of classes %"], []
    arms = result.condition.arms
    try:
        run = arms[0].runs[0]
        scored = _Scored(*scored_samples(run, range(len(run.paths))))
        found: list[Any] = weaknesses(scored, [arm.runs[0].correct for arm in arms])
    except (DataError, OSError, ValueError) as error:
        return WeakSlices((header, []), f"Not looked at: {error}")
    if not found or not found[0].looked_at:
        return None
    for arm, weakness in zip(arms, found, strict=True):
        for one in weakness.weak:
            numbers = (f"{one.images:,}", f"{100 * one.accuracy:.1f}", f"{100 * one.others:.1f}")
            lines.append([arm.name, f"{one.fact}: {one.name}", *numbers])
    looked_at = f"{found[0].looked_at} slices were looked at, by {', '.join(found[0].facts)}"
    surely = "surely less accurate than on other images of the same classes"
    start = f"Here an arm is {surely}" if lines else f"In no slice is an arm {surely}"
    return WeakSlices(
        (header, lines), f"{start}. {looked_at}; the first seed of each arm; Holm's correction, 5%, by arm."
    )
