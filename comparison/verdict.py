"""Sentences of a comparison."""

from common.text import pluralise
from trainers.statistics import LEVEL, PairedDifference, is_claim


def verdict(
    difference: PairedDifference,
    names: tuple[str, str],
    accuracies: tuple[float, float],
    *,
    scored: str = "test",
    adjusted_p: float | None = None,
    claims: int = 1,
) -> str:
    """One plain sentence on two arms (two on one seed). Accuracies and differences are fractions; `scored` says what
    the images are, such as "test"; `adjusted_p` is Holm's, where the report makes several `claims` of this kind."""
    images = images_text(difference.images, difference.groups, scored)
    seeds = pluralise(difference.seeds, "seed")
    if difference.identical:
        return f"No difference: {names[0]} and {names[1]} are right about the same of {images} ({seeds})."
    sign = 1 if difference.mean >= 0 else -1
    low, high = sorted((sign * difference.low, sign * difference.high))
    points = f"{abs(difference.mean) * 100:.1f} points"
    interval = f"95 % interval {low * 100:.1f} to {high * 100:.1f}"
    if is_claim(difference, adjusted_p):
        winner, loser = names[::sign]
        if difference.seeds == 1:
            return (
                f"This run of {winner} beats this run of {loser} by {points} ({interval}, {seeds}, {images}); "
                "one seed says nothing about training noise."
            )
        return f"{winner} beats {loser} by {points} ({interval}, {seeds}, {images})."
    lower, higher = (
        f"{name} ({share * 100:.1f} %)"
        for name, share in sorted(zip(names, accuracies, strict=True), key=lambda pair: pair[1])
    )
    after = ""
    if difference.p <= LEVEL and adjusted_p is not None:
        after = f" once the {claims} comparisons of this report are judged together (Holm's p = {adjusted_p:.2g})"
    return f"{images} and {seeds} cannot tell {lower} from {higher}{after}: difference {points}, {interval}."


def images_text(images: int, groups: float, scored: str) -> str:
    """Describe the images, such as `300 test images`, or `300 test images in 60 groups`."""
    text = pluralise(images, f"{scored} image")
    return text if groups == images else f"{text} in {pluralise(round(groups), 'group')}"
