"""The one hook of `uncertainty/`, which says how sure an answer is: without that folder no answer does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from uncertainty.answers import Answers

try:
    from uncertainty.answers import RECORD, Judge, from_text, read_answers, to_text
    from uncertainty.features import recorded
    from uncertainty.report import report
    from uncertainty.risk import answered
except ModuleNotFoundError as error:
    if "uncertainty" not in str(error.name).split("."):
        raise
    available = False

    @contextmanager
    def recorded(model: nn.Module) -> Iterator[list[Tensor]]:
        yield []

    def read_answers(folder: Path, weights: str) -> "Answers | None":
        return None
else:
    available = True


def coverage_figure(confidence: NDArray, correct: NDArray, *, title: str) -> Any:
    """The picture of `uncertainty.figure`; where there is that folder."""
    from uncertainty.figure import coverage_figure as draw  # matplotlib takes a second to import

    return draw(confidence, correct, title=title)


__all__ = [
    "RECORD", "Judge", "answered", "available", "coverage_figure", "from_text", "read_answers", "recorded", "report",
    "to_text",
]  # fmt: skip
