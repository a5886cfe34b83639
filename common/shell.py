"""Name and version of the program, and its commands quoted for a POSIX shell. No torch here."""

import os
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

PREFIX = __name__.removesuffix("common.shell")
"""Prefix of all module names: `vit_train.` in the package that pip installs, else empty."""
NAME = "vit-train"
"""The name of the program and of its package."""
VERSION = "0.9.0"
"""Version in `--version`, meta.json, reports, exports and the installed package."""
EXTRAS = f"pip install '{NAME}[all]'" if PREFIX else "pip install -r requirements-extras.txt"
"""Command that installs the optional packages."""


def typed(*words: object) -> str:
    return " ".join(map(quoted, words))


def quoted(word: object) -> str:
    """Quote a word for the shell; a Path is never parsed as an option."""
    text = str(word)
    is_option = isinstance(word, os.PathLike) and text.startswith("-")
    return shlex.quote(os.path.join(os.curdir, text) if is_option else text)


def started(name: str) -> str:
    """Return the word that starts a program of this interpreter's folder.

    Its name if PATH finds it, else its path."""
    folder = os.path.dirname(sys.executable)
    here, found = shutil.which(name, path=folder), shutil.which(name)
    if here is None or (found and os.path.normcase(os.path.dirname(found)) == os.path.normcase(folder)):
        return name
    with suppress(OSError):  # the working directory was removed
        here = here.removeprefix(os.path.join(os.getcwd(), ""))
    return quoted(here if os.path.dirname(here) else os.path.join(os.curdir, here))


def started_here() -> str:
    """Return the words that start this application as it was started now."""
    if PREFIX:
        return started(NAME)
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "main.py")
    script = sys.argv[0] if os.path.realpath(sys.argv[0]) == os.path.realpath(ours) else "main.py"
    names = ("python", os.path.basename(sys.executable))
    python = next((name for name in names if shutil.which(name, path=os.path.dirname(sys.executable))), "python")
    return f"{started(python)} {quoted(script)}"


PROGRAM = started_here()
"""Words that start this application."""
TENSORBOARD = started("tensorboard")


def command(*words: object) -> str:
    """Return a command of this application to paste: `PROGRAM` and these words."""
    return f"{PROGRAM} {typed(*words)}"


def command_given() -> str:
    """Return the command that started this process: this application's, or that of a script that calls it."""
    script, *words = sys.argv
    ours = os.path.basename(script) in ("main.py", NAME)
    return command(*words) if ours else f"{started('python')} {typed(Path(script), *words)}"


def watch(folder: object) -> str:
    """Return the TensorBoard command for a folder of runs."""
    return f"{TENSORBOARD} --logdir {quoted(folder)}"
