"""Commands as a person types them, each word quoted for a POSIX shell. No torch here."""

import os
import shlex

INSTALLED = __name__ != "common.shell"
"""True in the package that pip installs, where every name has `vit_train.` before it."""
NAME = "vit-train"
"""The name of the program and of its package."""
PROGRAM = NAME if INSTALLED else "python main.py"
"""Words that start this application."""
EXTRAS = f"pip install '{NAME}[all]'" if INSTALLED else "pip install -r requirements-extras.txt"
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
