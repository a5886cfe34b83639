"""The networks that a plan trains after its first answer, to be mixed into it, and how much of the time each has.

The embedded ViT and EfficientNet-Lite0. If not both get the passes from which they pay, the one with the better frozen
accuracy is trained, if it fits by itself. Left-over time goes to them in the same order, up to the passes after which
each gains no more.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainers.budget.candidates import GOOD, Candidate, fine_tuned, may_do_better
from trainers.budget.local_weights import Ranked
from trainers.budget.pace import Pace
from trainers.reporting import console

LITE0 = "efficientnet_lite0"
LITE0_PASSES = (5.0, 10.0)
"""Passes over the images from which EfficientNet-Lite0, all of it trained, pays, and after which it gains no more."""
LITE0_IMAGES = 1_000
"""Training images from which it was measured."""
LITE0_SIDES = (96, 128)
"""Side of its input in pixels for images of at most `SMALL`, and for others."""
SMALL = 48
PAYS = 10.0
"""Passes from which the ViT pays where another network is trained, too."""
SHARED = 60.0
"""Seconds below which one network has all of the time."""
IDLE = 20.0
"""Seconds that may be left at the end without a word."""


@dataclass(frozen=True)
class Member:
    """A network that a plan trains: the ways to train it, as a plan chooses of them, and from when it pays."""

    kind: str
    """Ends the name of its run, where a person gave one."""
    candidates: Sequence[Candidate]
    pays: float
    """Passes over the images."""
    frozen: float = 0.0
    """Accuracy of the network as it is, under a head on its features."""

    @property
    def model(self) -> str:
        return str(self.candidates[0].options["model"]["name"])

    @property
    def name(self) -> str:
        return self.candidates[0].name.partition(",")[0]

    @property
    def most(self) -> float:
        return self.candidates[0].most


def members(rows: Sequence[Ranked], *, images: int, side: float) -> list[Member]:
    """The networks that may be trained on so many images of this shorter side, the most promising first; `rows`: what
    each is worth frozen."""
    found = []
    if small := fine_tuned(rows, images=images, side=side):
        found.append(Member("trained", small, PAYS))
    if images >= LITE0_IMAGES:
        found += [Member("lite0", [each], LITE0_PASSES[0]) for each in lite0(rows, side=side)]
    frozen = {row.options["model"]["name"]: row.accuracy for row in rows}
    return [replace(member, frozen=frozen[member.model]) for member in found]


def lite0(rows: Sequence[Ranked], *, side: float) -> Iterator[Candidate]:
    """All of EfficientNet-Lite0 trained, where it is at hand and something is left to gain."""
    best = max((row.accuracy for row in rows), default=0.0)
    row = next((row for row in rows if row.options["model"]["name"] == LITE0), None)
    if row is not None and may_do_better(row.accuracy, best):
        model = row.options["model"] | {"trainable": "all", "image_size": LITE0_SIDES[side > SMALL]}
        train = {"schedule": "cooldown", "label_smoothing": 0.1, "lr": 1e-3, "start_head": "plain"}
        options = {"model": model, "data": {"augment": "light"}, "train": train}
        yield Candidate(f"{LITE0}, all of it trained,", options, weights=row.name, most=LITE0_PASSES[1])


@dataclass(frozen=True)
class Cost:
    """Cost of training a member and mixing it: the seconds of its features of all images."""

    pace: Pace
    mixing: float

    def seconds(self, passes: float) -> float:
        return self.pace.seconds(passes) + self.mixing


def shares(costs: Sequence[Cost], ways: Sequence[Member], seconds: float) -> list[float]:
    """The seconds of each member, its mixing included; 0 for those that are left out; one always has some. They add up
    to `seconds` unless all members gain no more in less."""
    least = [cost.seconds(member.pays) for cost, member in zip(costs, ways, strict=True)]
    fitting = [place for place, share in enumerate(least) if share <= seconds]
    first = max(fitting, key=lambda place: ways[place].frozen, default=0)
    order = sorted(range(len(ways)), key=lambda place: place != first)
    given = [0.0 for _ in ways]
    for place in order:
        if place == first or sum(given) + least[place] <= seconds:
            given[place] = min(least[place], seconds)
    for place in order:
        if given[place]:
            most = costs[place].seconds(ways[place].most)
            given[place] += min(seconds - sum(given), max(0.0, most - given[place]))
    return given


def in_turn(
    found: Sequence[Member],
    *,
    until: float,
    pace_of: Callable[[Member], Pace],
    mixing: Callable[[Member], float],
) -> Iterator[tuple[Member, float]]:
    """Yield each member that is trained, and its deadline (of `time.monotonic`); by `until` all are mixed, too."""
    left = until - time.monotonic()
    if len(found) < 2 or left < SHARED:
        given = [left, *(0.0 for _ in found)][: len(found)]
    else:
        with console.quiet():
            costs = [Cost(pace_of(member), mixing(member)) for member in found]
        given = shares(costs, found, until - time.monotonic())
    turns = [(member, share) for member, share in zip(found, given, strict=True) if share]
    if len(turns) > 1:
        parts = ", ".join(f"{member.name} {console.duration(share)}" for member, share in turns)
        console.say(f"trained next, and mixed at the end: {parts}", label="plan")
    until -= sum(mixing(member) for member, _ in turns)
    for place, (member, share) in enumerate(turns):
        later = sum(share - mixing(member) for member, share in turns[place + 1 :])
        yield member, until - later


def why_idle(rows: Sequence[Ranked], found: Sequence[Member], seconds: float) -> str:
    """Reason why so many seconds are left over at the end of a plan; empty where that is but a moment."""
    best = max((row.accuracy for row in rows), default=0.0)
    if not rows:
        return "nothing is trained further: there are too few images to tell whether it would help"
    if not found and best >= GOOD:
        return f"nothing is trained further: the frozen networks have {best:.1%} of the training images right already"
    if not found:
        return "nothing is trained further: what could be trained in time is too far behind the best frozen network"
    if seconds > IDLE:
        left = f"about {console.duration(seconds)} are left"
        return f"{left}: what was trained gains no more by seeing the images more often, and nothing else fits"
    return ""
