"""The walk-through: its snippets run and print what they say, its figures exist, its points are all there."""

from __future__ import annotations

import base64
import doctest
import importlib
import importlib.util
import json
import math
import re
import zlib
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from commands.arguments import TrainOptions, flags
from main import COMMANDS

pytestmark = pytest.mark.drawn

DOCS = Path(__file__).resolve().parent.parent / "docs"
WALKTHROUGH = DOCS / "walkthrough.md"
OF_OTHERS = """logdir index-url out nproc-per-node nnodes node-rank master-addr master-port nodes require-hashes no-deps
from shm-size"""
"""Options of other programs, without their hyphens."""


def snippets(text: str) -> str:
    """The fenced `pycon` blocks, other lines left empty so that line numbers stay those of the page."""
    inside, lines = False, []
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```pycon"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def test_every_snippet_prints_what_the_page_says() -> None:
    test = doctest.DocTestParser().get_doctest(
        snippets(WALKTHROUGH.read_text(encoding="utf-8")), {}, "walkthrough", str(WALKTHROUGH), 0
    )
    report: list[str] = []
    with torch.random.fork_rng():
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > 60
    assert result.failed == 0, "".join(report)


def test_a_snippet_with_a_wrong_output_is_noticed() -> None:
    test = doctest.DocTestParser().get_doctest(snippets("```pycon\n>>> 1 + 1\n3\n\n```\n"), {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda text: None).failed == 1


def test_no_snippet_escapes_the_check() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert page.name in {"walkthrough.md", "training.md"} or ">>>" not in text
        # Run by tests/test_use_the_result.py and tests/test_from_python.py.
        runnable = {"python"} if page.name in {"use-the-result.md", "from_python.md"} else set()
        assert set(re.findall(r"^```(\w+)$", text, flags=re.MULTILINE)) <= {"pycon", "text"} | runnable


def test_every_equation_of_the_paper_is_numbered_once() -> None:
    text = WALKTHROUGH.read_text(encoding="utf-8")
    assert sorted(map(int, re.findall(r"\\tag\{(\d)\}", text))) == list(range(1, 9))


def test_every_link_and_figure_leads_to_a_file() -> None:
    targets = [
        (page, target)
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(targets) > 5
    for page, target in targets:
        assert (page.parent / target).is_file(), f"{page.name}: {target}"


def headings(markdown: str) -> list[str]:
    """The headings of a page, without those lines of code that look like one."""
    return re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


def anchor(heading: str) -> str:
    """The name by which GitHub lets a link find a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def test_every_link_to_a_heading_finds_it() -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
    links = [
        (page, (page.parent / name if name else page).resolve(), heading)
        for page in pages
        for name, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    known = {target: {*map(anchor, headings(target.read_text(encoding="utf-8")))} for _, target, _ in links}
    assert len(links) > 50
    assert [(page.name, heading) for page, target, heading in links if heading not in known[target]] == []


@pytest.mark.parametrize(
    ("heading", "name"),
    [("MNIST, 1 % of its labels", "mnist-1--of-its-labels"), ("What `rank` keeps", "what-rank-keeps"),
     ("[Groups](a.md)", "groups")],
)  # fmt: skip
def test_a_heading_is_found_by_its_words(heading: str, name: str) -> None:
    assert anchor(heading) == name
    assert headings(f"```\n# no heading\n```\n## {heading}\n") == [heading]


def lens_of(page: str) -> tuple[list[int], list[np.ndarray]]:
    """Read of the one run on a page the place of each label among the classes shown of its picture; and of each
    snapshot the logit lens (pictures, blocks + 1, classes + 1), float32, the last of which normalises."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    run = data["runs"][0]
    places = [shown.index(label) for shown, label in zip(run["classes"], run["labels"], strict=True)]
    found = []
    for snapshot in run["snapshots"]:
        packed, start = snapshot["arrays"], 0
        apart = np.frombuffer(zlib.decompress(base64.b64decode(packed["content"])), np.uint8)
        for array in packed["described"]:
            size = np.dtype(array["type"]).itemsize * math.prod(array["shape"])
            part = apart[start : start + size].reshape(np.dtype(array["type"]).itemsize, -1).T.tobytes()
            start += size
            if array["name"] == "lens":
                found.append(np.frombuffer(part, array["type"]).reshape(array["shape"]))
    return places, found


def test_the_answers_about_the_small_vit_are_those_of_its_page() -> None:
    places, lenses = lens_of((DOCS / "pages" / "small_vit.html").read_text(encoding="utf-8"))
    leads = [[int(c) for c in (lens[..., :-1].argmax(-1) == np.array(places)[:, None]).sum(0)] for lens in lenses]
    text = " ".join((DOCS / "page.md").read_text(encoding="utf-8").split())
    first, *others = leads[-1]
    said = f"in {first or 'none'} of the small ViT's eight pictures before the first block, then in "
    assert said + f"{others[0]}, {others[1]}, {others[2]} and {others[3]}." in text
    assert f"in {leads[1][-1]} of 8 after 29 epochs, in {leads[2][-1]} after 59." in text


def test_every_option_that_is_named_exists() -> None:
    classes = [importlib.import_module(f"commands.{name}").Options for name in COMMANDS if name != "train"]
    known = {
        "--help",
        "--help-all",
        "--completion",
        "--version",
        "--debug",
        *(f"--{word}" for word in OF_OTHERS.split()),
    }.union(*map(flags, [TrainOptions, *classes]))
    option = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
    known.update(
        word
        for folder in ("benchmarks", "examples")
        for file in (DOCS.parent / folder).glob("*.py")
        for word in option.findall(file.read_text())
    )
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "vit").rglob("*.md")]
    unknown = {
        f"{page.name}: {word}" for page in pages for word in option.findall(page.read_text()) if word not in known
    }
    assert not unknown


def test_what_contributing_names_stands_in_the_file_that_it_names() -> None:
    text = (DOCS / "contributing.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`([A-Za-z_]+)`\s+(?:in|of)\s+\[`[^`]+`\]\(([^)]+)\)", text)
    assert len(pairs) > 12
    for name, target in pairs:
        assert re.search(rf"\b{name}\b", (DOCS / target).read_text(encoding="utf-8")), f"{target}: {name}"


def test_the_figures_are_small() -> None:
    figures = sorted((DOCS / "figures").glob("*.png"))
    assert sum(path.stat().st_size for path in figures) < 1_500_000


@pytest.fixture
def figure_script():
    matplotlib.use("Agg")
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_draws_every_figure_of_the_page(figure_script, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        figure_script.main(["--output", str(tmp_path), "--epochs", "1"])
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == set(re.findall(r"\(figures/([\w.]+)\)", WALKTHROUGH.read_text(encoding="utf-8")))
    assert drawn
