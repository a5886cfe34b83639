"""Commands as a person types them, each word quoted for a POSIX shell. No torch here."""

import os
import shlex

PREFIX = __name__.removesuffix("common.shell")
"""What stands before the name of each module: `vit_train.` in the package that pip installs, else nothing."""
NAME = "vit-train"
"""The name of the program and of its package."""
PROGRAM = NAME if PREFIX else "python main.py"
"""Words that start this application."""
EXTRAS = f"pip install '{NAME}[all]'" if PREFIX else "pip install -r requirements-extras.txt"
"""Words that install the optional packages."""


def command(*words: object) -> str:
    """Return a command of this application that can be pasted: `PROGRAM` and these words."""
    return f"{PROGRAM} {typed(*words)}"


def typed(*words: object) -> str:
    return " ".join(map(quoted, words))


def quoted(word: object) -> str:
    """Quote a word for the shell; a Path is never taken for an option."""
    text = str(word)
    is_option = isinstance(word, os.PathLike) and text.startswith("-")
    return shlex.quote(os.path.join(os.curdir, text) if is_option else text)
