"""The headline of a comparison, one sentence: who wins, or which model to use."""

from itertools import combinations

from common.text import pluralise
from comparison.analysis.results import ArmResult, ConditionResult
from comparison.analysis.runs import Comparison


def headline(comparison: Comparison, result: ConditionResult, *, where: str = "") -> str:
    """The verdict in one sentence; `where`, such as " with 10 labels per class", says which condition it is about."""
    if len(result.arms) == 2:
        return which_wins(result, where)
    return which_to_use(result, where, scored=comparison.scored_images)


def which_wins(result: ConditionResult, where: str = "") -> str:
    """The verdict on two arms: a winner and by how much, or that there is none."""
    (pair,) = result.pairs
    better, worse = sorted(result.arms, key=lambda row: -row.scores["accuracy"])
    sign = 1 if pair.difference.mean >= 0 else -1
    low, mean, high = sorted(100 * sign * value for value in pair.interval)
    size = f"{mean:+.1f} points, 95 % interval {low:.1f} to {high:.1f}"
    if pair.difference.identical:
        return f"No difference{where}: {better.arm.name} and {worse.arm.name} are right on the same images."
    if pair.mark in ("better", "worse"):
        once = ", in one run each" if pair.difference.seeds == 1 else ""
        return f"{better.arm.name} wins{where}{once}: {_share(better)} against {_share(worse)} ({size})."
    verdict = "A tie" if pair.mark == "same" else "No clear winner"
    both = f"{better.arm.name} {_share(better)}, {worse.arm.name} {_share(worse)}"
    return f"{verdict}{where}: {both} ({size})."


def which_to_use(result: ConditionResult, where: str = "", *, scored: str) -> str:
    """The arm with the highest accuracy, with those that are as good, or may be."""
    arms = result.arms
    best, second, *_ = sorted(range(len(arms)), key=lambda place: -arms[place].scores["accuracy"])
    beside: dict[str, list[ArmResult]] = {"same": [], "unclear": []}
    for places, pair in zip(combinations(range(len(arms)), 2), result.pairs, strict=True):
        if best in places and pair.mark in beside:
            beside[pair.mark].append(arms[sum(places) - best])
    images = pluralise(arms[best].scores["images"], f"{scored} image")
    text = f"Use {arms[best].arm.name}{where} ({_share(arms[best])} of {images} right)"
    if beside["same"]:
        text += f" or {_listed(beside['same'])}, which {'is' if len(beside['same']) == 1 else 'are'} as good"
    if beside["unclear"]:
        text += f", {'and' if beside['same'] else 'which'} may be no better than {_listed(beside['unclear'])}"
    if not any(beside.values()):
        more = 100 * (arms[best].scores["accuracy"] - arms[second].scores["accuracy"])
        text += f": {more:.1f} points more than {'the next, ' * (len(arms) > 2)}{arms[second].arm.name}"
    return f"{text}."


def _share(row: ArmResult) -> str:
    return f"{100 * row.scores['accuracy']:.1f} %"


def _listed(rows: list[ArmResult]) -> str:
    *others, last = [f"{row.arm.name} ({_share(row)})" for row in rows]
    return f"{', '.join(others)} or {last}" if others else last
