"""Files of a folder that are opened while something runs."""

import os
import sys
from contextlib import contextmanager

WATCHING = [False]
_OPENED: list[str] = []


def _note(event, arguments):
    if WATCHING[0] and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _OPENED.append(os.path.realpath(os.fsdecode(arguments[0])))


@contextmanager
def opened(folder):
    """Files of a folder that are opened in the block, each as often as it is."""
    if not hasattr(opened, "hooked"):
        sys.addaudithook(_note)  # for ever: there is no way to remove one
        opened.hooked = True
    _OPENED.clear()
    found: list[str] = []
    WATCHING[0] = True
    try:
        yield found
    finally:
        WATCHING[0] = False
        home = os.path.realpath(folder) + os.sep
        found += sorted(path.removeprefix(home) for path in _OPENED if path.startswith(home) and os.path.isfile(path))
