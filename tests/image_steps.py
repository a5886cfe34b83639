"""The steps of the Dockerfile without a container engine: `python tests/image_steps.py FOLDER`.

FOLDER, which must be new or empty, stands for the root of the image. `pip` is that of an environment in it, which lends
what is installed here, so that only what is not there is fetched; PyTorch's own index, and the user, are left out.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from installed import ROOT, environment


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile and what follows each, with its lines joined."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        yield name, rest


def copy(words: str, folder: Path, ignored: list[str]) -> None:
    *sources, target = words.split()
    place = folder / target.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if source != ".":
            shutil.copy(ROOT / source, place)
            continue

        def left_out(_folder: str, names: list[str]) -> set[str]:
            return {name for name in names if any(fnmatch(name, rule) for rule in ignored)}

        shutil.copytree(ROOT, place, dirs_exist_ok=True, symlinks=True, ignore=left_out)


def run_steps(folder: Path) -> Path:
    """Do everything but the last instructions, which only say how the image starts; the environment's Python."""
    python = environment(folder / "environment")
    values = dict(os.environ, PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    ignored = [line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()]
    for name, words in instructions((ROOT / "Dockerfile").read_text(encoding="utf-8")):
        if name in ("ARG", "ENV"):
            values |= dict(pair.split("=") for pair in words.split())
        elif name == "COPY":
            copy(words, folder, ignored)
        elif name == "RUN" and "useradd" not in words:
            line = re.sub(r"--index-url \S+", "", words).replace("/src", f"{folder}/src")
            subprocess.run(["bash", "-euc", line], env=values, check=True)
    return python


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    made = run_steps(Path(sys.argv[1]).resolve())
    (made.parents[2] / "work").mkdir()
    sys.exit(subprocess.run([made.with_name("vit-train"), "--version"], cwd=made.parents[2] / "work").returncode)
