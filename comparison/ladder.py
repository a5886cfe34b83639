"""The ladder of fine-tuning: from a new head to every parameter of one pretrained model, and which rung pays."""

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


def sentence(result: ConditionResult) -> str:
    """Which rung pays at this number of labels; where none is surely better than the first, the quickest that is not
    surely worse."""
    first, best = result.arms[0], max(result.arms, key=lambda row: row.scores["accuracy"])
    pair = best.against_first
    if pair is not None and pair.mark == "better":
        low, mean, high = (100 * value for value in pair.interval)
        text = f"{best.arm.name} pays: {mean:+.1f} points ({low:+.1f} to {high:+.1f}) over {first.arm.name}"
    else:
        like_it = [row for row in result.arms if row.against_first is None or row.against_first.mark != "worse"]
        least = min(like_it, key=lambda row: row.costs["seconds"])
        text = f"no rung is surely better than {first.arm.name}"
        if least is not first:
            text += f"; not surely worse, and quicker: {least.arm.name} ({duration(least.costs['seconds'])} a run)"
    return f"ladder, {result.condition.title}: {text}"
