"""The log of another library, quieter for a while."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Let the log of this name pass on nothing below `level` inside the block."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)
