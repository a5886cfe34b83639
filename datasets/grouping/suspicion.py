"""Groups that the names of files suggest, where a split tears them."""

from typing import NamedTuple

from datasets.bundle import Samples
from datasets.grouping.evidence import Thumbnails
from datasets.grouping.guess import Guess, guessed
from datasets.grouping.option import with_groups
from datasets.grouping.torn import torn


class Suspicion(NamedTuple):
    """Groups that names suggest, and that the split tears apart or would tear apart."""

    guess: Guess
    torn: str
    """Consequence for them, in words."""

    def __str__(self) -> str:
        return f"{self.guess.sentence}; {self.torn}, and the score would be too good. If they belong together"


def suspicion(samples: Samples, thumbnails: Thumbnails, *, drawn: bool) -> Suspicion | None:
    """The groups that a set seems to have, where its split is `drawn` at random, or tears them."""
    guess = guessed(samples, thumbnails)
    if guess is None:
        return None
    if drawn:
        return Suspicion(guess, "a random split tears them apart")
    count = len(torn(with_groups(samples, guess.option)))
    return Suspicion(guess, f"the split that is given tears {count:,} of them apart") if count else None
