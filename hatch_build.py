"""Builds the installable package `vit_train`: the rooms of this repository moved below one name, as vendoring tools do.

`datasets` is also the name of Hugging Face's library, and `figures` or `commands` may be anybody's, so nothing of this
application is installed at the top level. In a copy of the sources every absolute import of a room gets the package's
name before it, and so does every text that names a module (`"vit.scratch_models"` in a registry); nothing is put on
`sys.path`. Hatchling calls the two classes at the end; `tests/installed_suite.py` moves the tests in the same way.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGE = "vit_train"
TOP = ("main",)
"""Modules beside the rooms that belong to the package."""
NOT_INSTALLED = {PACKAGE, "benchmarks", "tests"}
"""Folders with an `__init__.py` that are no rooms."""
WORDS = {
    ".venv/bin/python main.py": ".venv/bin/vit-train",
    "python main.py": "vit-train",
    "pip install -r requirements-extras.txt": "pip install 'vit-train[all]'",
}
"""Words for a clone, and those for the installed package."""

Edit = tuple[int, int, bytes]
"""Begin and end of a stretch of a file's bytes, and what takes its place."""


def rooms(root: Path) -> list[str]:
    """The packages at the top of the repository that are installed: every folder with an `__init__.py`."""
    return sorted(path.parent.name for path in root.glob("*/__init__.py") if path.parent.name not in NOT_INSTALLED)


def files_of(root: Path) -> Iterator[Path]:
    """Everything that is installed, relative to `root`: code, and the data that lies beside it."""
    yield from (Path(name).with_suffix(".py") for name in TOP)
    for room in rooms(root):
        for path in sorted((root / room).rglob("*")):
            below = path.relative_to(root)
            if path.is_file() and path.suffix != ".pyc" and not any(part.startswith(".") for part in below.parts):
                yield below


def modules_of(root: Path) -> set[str]:
    """The dotted names of all modules and packages that are installed."""
    names = (".".join(path.with_suffix("").parts) for path in files_of(root) if path.suffix == ".py")
    return {name.removesuffix(".__init__") for name in names}


class Mover:
    """Puts the package's name before every module of this repository that a source names."""

    def __init__(self, root: Path) -> None:
        self.modules = modules_of(root)
        self.tops = {name.partition(".")[0] for name in self.modules}
        self.named = re.compile(rf"({'|'.join(sorted(self.tops))})(?:\.\w+)*")

    def ours(self, name: str) -> bool:
        return name.partition(".")[0] in self.tops

    def source(self, text: str, *, programs: bool = False) -> str:
        """A Python source with its names moved; `programs`: those that stand in it as text too. Raises SyntaxError."""
        text = said(text)
        data = text.encode("utf-8")
        starts = [0]
        for line in data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))

        def span(node: ast.stmt | ast.expr) -> tuple[int, int]:
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

        for begin, end, replacement in sorted(self.edits(ast.parse(text), data, span, programs), reverse=True):
            data = data[:begin] + replacement + data[end:]
        moved = data.decode("utf-8")
        ast.parse(moved)
        return moved

    def edits(
        self, tree: ast.AST, data: bytes, span: Callable[[Any], tuple[int, int]], programs: bool
    ) -> Iterator[Edit]:
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and self.ours(node.module or ""):
                begin, end = span(node)
                at = begin + re.match(rb"from\s+", data[begin:end]).end()  # type: ignore[union-attr]
                yield at, at, f"{PACKAGE}.".encode()
            elif isinstance(node, ast.Import) and any(self.ours(alias.name) for alias in node.names):
                yield *span(node), "; ".join(map(self.imported, node.names)).encode()
            elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts:
                yield from self.edits_of_text(node, data, *span(node), programs=programs)

    def imported(self, alias: ast.alias) -> str:
        """An import statement for one name, which binds what the original bound."""
        name, top = alias.name, alias.name.partition(".")[0]
        if not self.ours(name):
            return f"import {ast.unparse(alias)}"
        if alias.asname:
            return f"import {PACKAGE}.{name} as {alias.asname}"
        bound = f"from {PACKAGE} import {top}"
        return bound if name == top else f"import {PACKAGE}.{name}; {bound}"

    def edits_of_text(
        self, node: ast.Constant | ast.JoinedStr, data: bytes, begin: int, end: int, *, programs: bool
    ) -> Iterator[Edit]:
        """A text that names a module or a thing in one (`vit.model:attend`), or begins to (`f"vit.{name}"`)."""
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        value = first.value if isinstance(first, ast.Constant) else None
        if not isinstance(value, str):
            return
        if self.names_a_module(value, whole=first is node):
            at = begin + re.match(rb"[a-zA-Z]*(\"\"\"|'''|\"|')", data[begin:end]).end()  # type: ignore[union-attr]
            yield at, at, f"{PACKAGE}.".encode()
        elif programs:
            program = self.program(data[begin:end].decode("utf-8"))
            yield begin, end, program.encode("utf-8")

    def names_a_module(self, text: str, *, whole: bool) -> bool:
        found = self.named.match(text)
        if found is None or not re.fullmatch(r"(:\w+)?" if whole else r"\.", text[found.end() :]):
            return False
        room, _, rest = found[0].partition(".")
        if not whole:
            return found[0] in self.modules
        return bool(rest) and f"{room}.{rest.partition('.')[0]}" in self.modules

    def program(self, text: str) -> str:
        """The import statements in a text: a program for another process, a block of a page."""
        tops = "|".join(sorted(self.tops))
        # In the source of a text its line breaks are `\\n`, so that a word may follow an n.
        text = re.sub(rf"(?:\b|(?<=\\n))from (?=(?:{tops})\b[\w.]* import\b)", f"from {PACKAGE}.", text)
        return re.sub(
            rf"(?<!\w )(?:\b|(?<=\\n))import ((?:[\w.]+, )*(?:{tops})\b[\w.]*(?:, [\w.]+)*)", self.imported_names, text
        )

    def imported_names(self, found: re.Match[str]) -> str:
        return "; ".join(self.imported(ast.alias(name)) for name in found[1].split(", "))


def said(text: str) -> str:
    """Rewrite words about this program as they are right where it is installed."""
    for in_a_clone, installed in WORDS.items():
        text = text.replace(in_a_clone, installed)
    return text


def move(root: Path, folder: Path) -> None:
    """Write the package, as it is installed, into `folder`."""
    mover = Mover(root)
    sources = {path: root / path for path in files_of(root)}
    sources |= {path.relative_to(root / PACKAGE): path for path in (root / PACKAGE).glob("*") if path.is_file()}
    for name, path in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            target.write_text(mover.source(path.read_text(encoding="utf-8")), encoding="utf-8")
        elif path.suffix in TEXTS:
            target.write_text(said(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(path, target)


TEXTS = {".html", ".jinja", ".toml", ".js", ".css", ".md"}


def requirements(path: Path) -> Iterator[tuple[str, str]]:
    """The rows of a requirements file, each with its extra: the last `# [NAME]` above it, or nothing.

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
    """The optional dependencies by the name of their extra, and all of them as `all`."""
    found: dict[str, list[str]] = {}
    for extra, row in requirements(root / "requirements-extras.txt"):
        if not extra:
            raise ValueError(f"requirements-extras.txt: no line `# [EXTRA] ...` stands above {row}")
        found.setdefault(extra, []).append(row)
    return found | {"all": sorted(row for rows in found.values() for row in rows)}


class Requirements(MetadataHookInterface):
    """Takes dependencies and extras from the files that pip reads in a clone."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        metadata["dependencies"] = [row for _, row in requirements(root / "requirements.txt")]
        metadata["optional-dependencies"] = extras(root)


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
