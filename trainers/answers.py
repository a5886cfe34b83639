"""The one hook of `uncertainty/`, which says how sure an answer is: without that folder no answer does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from uncertainty.answers import Answers

try:
    from uncertainty.answers import Judge, read_answers
    from uncertainty.exports import answers_in, ending, metadata_of, with_outputs
    from uncertainty.features import recorded
    from uncertainty.report import report
    from uncertainty.risk import answered
except ModuleNotFoundError as error:
    if "uncertainty" not in str(error.name).split("."):
        raise
    available = False

    @contextmanager
    def recorded(model: nn.Module) -> Iterator[list[tuple[Tensor, ...]]]:
        yield []

    def answers_in(metadata: Mapping[str, Any], source: object) -> "Answers | None":
        return None

    def read_answers(folder: Path, weights: str) -> "Answers | None":
        return None
else:
    available = True


__all__ = [
    "Judge", "answered", "answers_in", "available", "ending", "metadata_of", "read_answers",
    "recorded", "report", "with_outputs",
]  # fmt: skip
