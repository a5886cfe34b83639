"""Commands as a person types them: each word quoted for the shell, on one printable line. No torch here."""

import os
import re
import shlex

PROGRAM = "python main.py"
"""Words that start this application; where it is installed, its command."""

_PLAIN = re.compile(r"[\w@%+=:,./\\-]+")
"""A word that the command prompt of Windows takes as it is."""
_WORD = re.compile(r"""(?:\$'(?:\\.|[^'\\])*'|'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")
"""A word of a command line, with the marks that quote it."""


def command(*words: object) -> str:
    """A command of this application, to be pasted: `python main.py` and these words."""
    return " ".join((PROGRAM, *map(quoted, words)))


def typed(*words: object) -> str:
    return " ".join(map(quoted, words))


def is_command(text: str) -> bool:
    """Return whether the whole text is a command that this application prints to be pasted."""
    return text.startswith((f"{PROGRAM} ", "tensorboard --logdir "))


def broken(command: str, width: int = 80, *, indent: int = 4) -> str:
    """Break a command line between words into lines of at most `width` columns, as a POSIX shell joins them again; what
    follows the first is indented."""
    lines: list[str] = []
    for word in _WORD.findall(command):
        if lines and indent + len(f"{lines[-1]} {word} \\") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return f" \\\n{' ' * indent}".join(lines)


def quoted(word: object) -> str:
    """A word as the shell has to be given it; a Path is never taken for an option."""
    text = str(word)
    if isinstance(word, os.PathLike) and text.startswith("-"):
        text = os.path.join(os.curdir, text)
    if os.name == "nt":
        import subprocess

        safe = subprocess.list2cmdline([text])
        return safe if _PLAIN.fullmatch(text) or safe.startswith('"') else f'"{safe}"'
    return shlex.quote(text) if text.isprintable() else f"$'{''.join(map(_escaped, text))}'"


def _escaped(sign: str) -> str:
    """A character between $' and ', as bash and zsh read it: bytes by number where it cannot be printed."""
    if sign.isprintable():
        return f"\\{sign}" if sign in "'\\" else sign
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))
