"""The ladder of fine-tuning: from a new head to every parameter of one pretrained model, and which rung pays."""

from itertools import combinations

from comparison.results import ConditionResult
from trainers.console import duration

RUNGS = (
    "trainable=all",
    "trainable=head",
    "trainable=norms",
    "trainable=lora:8",
    "trainable=last:4",
    "trainable=all,start_head=probe",
)
"""What everybody does comes first: the others are judged against it."""


def rungs(model: str) -> tuple[str, ...]:
    """One arm for each rung of a model, as the command line names it."""
    return tuple(f"{model},{rung}" for rung in RUNGS)


def sentence(result: ConditionResult) -> str | None:
    """Which way to train one pretrained model pays, and which costs least of those that cannot be told from it; None
    where the arms are no rungs of one ladder."""
    models = [row.arm.runs[0].config["model"] for row in result.arms]
    starts, parts = {(model["name"], model["weights"]) for model in models}, [model["trainable"] for model in models]
    if len(starts) > 1 or len({*parts}) < 3 or parts[0] != "all":
        return None
    first, best = result.arms[0], max(result.arms, key=lambda row: row.scores.accuracy)
    pair = best.against_first
    if pair is None:
        text = f"no rung is above {first.arm.name}"
    elif pair.mark == "better":
        low, mean, high = (100 * value for value in pair.interval)
        text = f"{best.arm.name} pays: {mean:+.1f} points ({low:+.1f} to {high:+.1f}) over {first.arm.name}"
    else:
        text = f"none is surely better than {first.arm.name}; {best.arm.name} is highest"
    couples = zip(combinations(result.arms, 2), result.pairs, strict=True)
    apart = [couple for couple, judged in couples if judged.mark in ("better", "worse")]
    like_it = [row for row in result.arms if (row, best) not in apart and (best, row) not in apart]
    least = min(like_it, key=lambda row: row.costs.seconds)
    if least is not best:
        text += f"; not told apart from it and quickest: {least.arm.name} ({duration(least.costs.seconds)} a run)"
    return f"ladder, {result.condition.title}: {text}"
