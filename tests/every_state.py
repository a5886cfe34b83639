"""Every state of a folder while something is written into it: what a kill at any moment would leave behind."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link"}
_watching: list[Callable[[], None]] = []


@contextmanager
def every_state(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """Copies of `folder`, one before each call of this thread that may change a file, and none twice."""
    states: list[Path] = []
    seen: set[Any] = set()

    def copy() -> None:
        content = tuple((path, path.lstat().st_size) for path in sorted(folder.rglob("*")))
        if content not in seen:
            seen.add(content)
            states.append(shutil.copytree(folder, copies / f"{len(states):03d}", symlinks=True))

    _watching.append(copy)
    try:
        yield states
    finally:
        _watching.clear()
    copy()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if _watching and (writes or event in CHANGES) and threading.current_thread() is threading.main_thread():
        copy = _watching.pop()  # what copying does itself does not count
        try:
            copy()
        finally:
            _watching.append(copy)


sys.addaudithook(_watch)  # for ever: Python takes none away
