"""Builds the installable package `vit_train`: the packages of this repository moved below one name.

`datasets` is also the name of Hugging Face's library, and `commands` may be anybody's, so nothing of this application
is installed at the top level. In a copy of the sources every import statement of one of these packages gets
`vit_train.` before their names; nothing else changes, and nothing is put on `sys.path`. Hatchling calls the two
classes at the end.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGE = "vit_train"
NOT_INSTALLED = {PACKAGE, "benchmarks", "tests"}
"""Folders with an `__init__.py` that are no packages of the application."""


def packages(root: Path) -> list[str]:
    """List the packages at the top of the repository that are installed: each folder with an `__init__.py`."""
    return sorted(path.parent.name for path in root.glob("*/__init__.py") if path.parent.name not in NOT_INSTALLED)


def files_of(root: Path) -> Iterator[Path]:
    """List all that is installed, relative to `root`: code, and the data files beside it."""
    yield Path("main.py")
    for package in packages(root):
        for path in sorted((root / package).rglob("*")):
            below = path.relative_to(root)
            if path.is_file() and path.suffix != ".pyc" and not any(part.startswith(".") for part in below.parts):
                yield below


def moved(source: str, names: set[str]) -> str:
    """Put the package's name into each `from NAME import ...` of one of the `names`.

    Raises ValueError: `import NAME`, which would bind another name then.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and names & {alias.name.partition(".")[0] for alias in node.names}:
            raise ValueError(f"line {node.lineno}: write `from ... import ...` for {lines[node.lineno - 1].strip()!r}")
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in names:
            line = lines[node.lineno - 1].encode()  # columns count bytes
            before, after = line[: node.col_offset].decode(), line[node.col_offset :].decode()
            lines[node.lineno - 1] = before + re.sub(r"^from\s+", f"from {PACKAGE}.", after)
    return "".join(lines)


def move(root: Path, folder: Path) -> None:
    """Write the package, as it is installed, into `folder`."""
    names = {"main", *packages(root)}
    sources = {path: root / path for path in files_of(root)}
    sources |= {path.relative_to(root / PACKAGE): path for path in (root / PACKAGE).glob("*") if path.is_file()}
    for name, path in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            target.write_text(moved(path.read_text(encoding="utf-8"), names), encoding="utf-8")
        else:
            shutil.copyfile(path, target)


def requirements(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the rows of a requirements file, each with its extra: the last `# [NAME]` above it, or nothing.

    A pin is what was tested. A package that lives beside others asks for that version or a later one.
    """
    extra = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        marked = re.match(r"# \[(\w+)\]", line)
        extra = marked[1] if marked else extra
        pinned = re.match(r"([\w.-]+)==(\S+)", line)
        if pinned:
            yield extra, f"{pinned[1]}>={pinned[2]}"


def extras(root: Path) -> dict[str, list[str]]:
    """Return the optional dependencies by the name of their extra, and all of them as `all`."""
    found: dict[str, list[str]] = {}
    for extra, row in requirements(root / "requirements-extras.txt"):
        found.setdefault(extra, []).append(row)
    return found | {"all": sorted(row for rows in found.values() for row in rows)}


def readme(root: Path) -> str:
    """Return the README for a package index, where links to files of the repository lead nowhere: their text stays."""
    text = (root / "README.md").read_text(encoding="utf-8")
    return re.sub(r"!?\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class Requirements(MetadataHookInterface):
    """Takes dependencies, extras and the README from the files of a clone."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        metadata["dependencies"] = [row for _, row in requirements(root / "requirements.txt")]
        metadata["optional-dependencies"] = extras(root)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(root)}


class OnePackage(BuildHookInterface):
    """Gives hatchling the moved sources for the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            raise ValueError(
                "no editable install: sources are moved below one name; in a clone `python main.py` runs them"
            )
        self.folder = Path(tempfile.mkdtemp(prefix=PACKAGE))
        move(Path(self.root), self.folder)
        build_data["force_include"][str(self.folder)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.folder)
