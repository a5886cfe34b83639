"""Print lines on the terminal, or log them if a program set up the log. Imports nothing heavy."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from common.shell import PREFIX
from common.text import wrapped
from trainers.system import process

if TYPE_CHECKING:
    from datasets.open import OpenedImages

FEW = 100
"""With fewer images than this a score is shown with its interval, which is then wider than 10 points either way."""
LOG, DATA_LOG, MODEL_LOG = (logging.getLogger(f"{PREFIX}{package}") for package in ("trainers", "datasets", "vit"))
"""Loggers of the application: `trainers` and so on, or `vit_train.trainers` in the installed package. Records of the
first have a `label`, such as "note" or "plan", or None."""


def say(line: str = "", *, label: str | None = None) -> None:
    """Log a line, a note as a warning; print it without a log."""
    if is_unset(LOG):
        show(line, label)
    else:
        level = logging.WARNING if label == "note" else logging.INFO
        LOG.log(level, line, extra={"label": label}, stacklevel=2)


def is_unset(log: logging.Logger) -> bool:
    """Return whether this logger has neither a level nor a handler."""
    return log.level == logging.NOTSET and not log.handlers


def show(line: str, label: str | None) -> None:
    """Print a line in the main process, its label in a column.

    It stands above a progress bar."""
    if label is not None:
        line = f"{label:>9}  {line}".replace("\n  ", f"\n{'':11}")
    if process.is_main_process():
        from tqdm import tqdm

        tqdm.write(wrapped(line, indent=0 if label is None else 11))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence everything below ERROR: many runs of one protocol would each repeat the same screen."""
    levels = {log: log.level for log in (LOG, DATA_LOG, MODEL_LOG)}
    for log in levels:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)


class ModelLines(logging.Handler):
    """Prints the records of the model factory, except lines that are in `said`."""

    def __init__(self, said: set[str]) -> None:
        super().__init__()
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.said:
            self.said.add(line)
            show(line, "weights")


@contextmanager
def model_log(opened: OpenedImages | None = None) -> Iterator[None]:
    """Print what the model factory logs, each line once.

    Runs that share opened images print it once for all of them. Does nothing if a program has set up that logger.
    """
    if not is_unset(MODEL_LOG):
        yield
        return
    lines = ModelLines(set() if opened is None else opened.said)
    MODEL_LOG.addHandler(lines)
    MODEL_LOG.setLevel(logging.INFO)
    MODEL_LOG.propagate = False
    try:
        yield
    finally:
        MODEL_LOG.removeHandler(lines)
        MODEL_LOG.setLevel(logging.NOTSET)
        MODEL_LOG.propagate = True


def say_new(rows: Iterable[tuple[str, str]], opened: OpenedImages | None) -> None:
    """Say (label, text) rows that no earlier run on these images has said."""
    said = set() if opened is None else opened.said
    for label, text in rows:
        if text not in said:
            said.add(text)
            say(text, label=label)


def percent(share: float) -> str:
    """Format a share in five columns: 9.6 %, 71.0 %, or 100 %."""
    text = f"{share:.1%}"
    return " 100%" if text == "100.0%" else f"{text:>5}"


def duration(seconds: float) -> str:
    """Format a number of seconds as seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
