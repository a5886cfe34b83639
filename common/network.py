"""Give up a download of which nothing comes any more. No torch here."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 20.0
"""Seconds without a byte after which a download is given up."""


@contextmanager
def impatient() -> Iterator[None]:
    """Let connections that the block opens end with an error after PATIENCE."""
    usual = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(usual)
