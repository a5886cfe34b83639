"""The pages: snippets print what they say, links lead somewhere, options exist, figures are drawn."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import matplotlib
import pytest
import torch

from common.options import options_of
from main import COMMANDS

pytestmark = pytest.mark.drawn

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
OF_OTHERS = """logdir index-url out nproc-per-node nnodes node-rank master-addr master-port nodes require-hashes no-deps
from shm-size"""
"""Options of other programs, without their hyphens."""


@pytest.mark.parametrize(("name", "least"), [("walkthrough.md", 60), ("training.md", 30)])
def test_every_snippet_prints_what_the_page_says(name: str, least: int) -> None:
    inside, lines = False, []
    for line in (DOCS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```pycon"
        lines.append(line if inside and not line.startswith("```") else "")  # line numbers stay those of the page
    test = doctest.DocTestParser().get_doctest("\n".join(lines) + "\n", {}, name, str(DOCS / name), 0)
    report: list[str] = []
    with torch.random.fork_rng():
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > least
    assert result.failed == 0, "".join(report)


def test_no_snippet_escapes_the_check() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert page.name in {"walkthrough.md", "training.md"} or ">>>" not in text
        # Run by tests/test_readme.py and tests/test_from_python.py.
        runnable = {"python"} if page.name in {"use-the-result.md", "from_python.md"} else set()
        assert set(re.findall(r"^```(\w+)$", text, flags=re.MULTILINE)) <= {"pycon", "text"} | runnable


def anchors(page: Path) -> set[str]:
    """The names by which GitHub lets a link find the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)", plain, re.MULTILINE)
    }


def test_every_link_leads_to_a_file_and_its_heading() -> None:
    links = [
        (page, (page.parent / name).resolve() if name else page, heading)
        for page in PAGES
        for name, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 100
    assert [(page.name, target) for page, target, _ in links if not target.exists()] == []
    assert [(page.name, word) for page, target, word in links if word and word not in anchors(target)] == []


def test_every_promise_names_a_test_that_is_there() -> None:
    table = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("| promise |")[1].split("\n\n")[0]
    assert [row for row in table.splitlines()[2:] if "`tests/" not in row] == []
    named = {
        row for page in PAGES for row in re.findall(r"(tests/\w+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    for name, test in named:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, (name, test)


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if page.name != "README.md" and page.name not in index] == []


def test_every_option_that_is_named_exists() -> None:
    classes = [importlib.import_module(f"commands.{name}").Options for name in COMMANDS]
    known = {"--help", "--help-all", "--version", "--debug", *(f"--{word}" for word in OF_OTHERS.split())}
    known.update(option.flag for each in classes for option in options_of(each))
    option = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]
    known.update(word for file in scripts for word in option.findall(file.read_text()))
    pages = [*DOCS.glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "vit").rglob("*.md")]
    found = {f"{page.name}: {word}" for page in pages for word in option.findall(page.read_text()) if word not in known}
    assert not found


@pytest.mark.slow
def test_script_draws_every_figure_of_the_walk_through(tmp_path: Path) -> None:
    matplotlib.use("Agg")
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with torch.random.fork_rng():
        script.main(["--output", str(tmp_path), "--epochs", "1"])
    drawn = {path.name for path in tmp_path.glob("*.png")}
    page = (DOCS / "walkthrough.md").read_text(encoding="utf-8")
    assert drawn == set(re.findall(r"\(figures/([\w.]+)\)", page))
    assert drawn
