"""The words of the pages and of the help: plain enough to read at once, and those that the field searches for."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pyphen
import pytest
from test_docstrings import sources

import main
from commands.arguments import TrainOptions
from commands.help import lines
from comparison import report

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
PRIVATE = (
    "told apart",
    "tells apart",
    "still rising",
    "cannot separate",
    "foretell",
    "stays beside it",
    "Of several runs",
    "weights at hand",
    "networks at hand",
    "spoke for",
    "rung",
    "sees each image",
)
"""Words that had to be learnt before the program could be used; docs/README.md explains those that remain."""
FIELD = (
    "data augmentation", "early stopping", "distillation", "gradient accumulation",
    "transfer learning", "inductive bias", "fine-tuning", "linear probe", "confidence interval", "mixed precision",
)  # fmt: skip
"""Words that people search for."""


def prose(markdown: str) -> str:
    """The sentences of a page: no code, tables, headings, formulas or addresses."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^(    .*|\|.*|#.*|\$\$.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[*_]", "", re.sub(r"`[^`]*`", "code", text))


SYLLABLES = pyphen.Pyphen(lang="en_US")


def grade(text: str) -> float:
    """Years of school that a reader needs (Kincaid et al. 1975). textstat gives the pages of today the same to a year
    or two; its package puts a folder `tests` of its own before this one."""
    sentences = [part for part in re.split(r"[.!?]+(?:\s|$)", text) if re.search("[a-zA-Z]{2}", part)]
    words = re.findall(r"[A-Za-z][A-Za-z'-]*", text)
    syllables = sum(len(SYLLABLES.positions(word.replace("-", ""))) + 1 for word in words)
    return 0.39 * len(words) / len(sentences) + 11.8 * syllables / len(words) - 15.59


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_reads_at_school_level(page):
    assert grade(prose(page.read_text(encoding="utf-8"))) <= 10


def test_long_sentences_of_long_words_are_noticed():
    assert grade("The cat sat on the mat. It was warm.") < 2
    assert grade("Notwithstanding considerable methodological heterogeneity, " * 5) > 20


def everything_shown() -> dict[str, str]:
    """Pages, the help of every command and the template of the report: what a user reads, by its name."""
    shown = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for name in main.COMMANDS:
        options = getattr(importlib.import_module(f"commands.{name}"), "Options", TrainOptions)
        shown[f"{name} --help-all"] = "\n".join(lines(options, prog=name, everything=True, width=100))
    return shown | {"report": Path(report.__file__).with_name("report.html.jinja").read_text(encoding="utf-8")}


@cache
def said() -> list[tuple[str, str]]:
    """Texts of the application that are no docstrings, such as lines of the console, by their places."""
    found = []
    for path in sources():
        if path.relative_to(ROOT).parts[0] == "benchmarks":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
        silent = {id(part.value) for body in bodies for part in body if isinstance(part, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.value))
    return found


@pytest.mark.parametrize("word", PRIVATE)
def test_a_private_word_is_gone_from_what_the_console_says(word):
    assert [place for place, text in said() if re.search(rf"\b{word}", text)] == []


@pytest.mark.parametrize("word", PRIVATE)
def test_a_private_word_is_gone_from_what_a_user_reads(word):
    assert [name for name, text in everything_shown().items() if re.search(rf"\b{word}", text)] == []


@pytest.mark.parametrize("word", FIELD)
def test_the_fields_words_lead_to_a_page(word):
    assert [page.name for page in PAGES if word in page.read_text(encoding="utf-8").lower()]


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and page.name not in index
    ] == []


TASKS = {
    "train on my folder": ("folder of class folders", "train"),
    "more augmentation": ("data augmentation", "train"),
    "stop early": ("early stopping", "train"),
    "continue": ("resume", "train"),
    "use two GPUs": ("two GPUs", "train"),
    "export": ("ONNX", "use-the-result"),
    "find wrong labels": ("label errors", "clean"),
    "compare three models": ("three models", "compare"),
    "log to W&B": ("Weights & Biases", "train"),
    "understand attention": ("attention", "walkthrough"),
}
"""What people want to do -> the word that they search for, and the page that tells them how."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_found_from_the_readme_in_two_clicks_and_by_the_fields_word(task):
    word, name = TASKS[task]
    page = ROOT / "docs" / f"{name}.md"
    assert word.lower() in page.read_text(encoding="utf-8").lower()
    near = {ROOT / "README.md"}
    for _ in range(2):
        near |= {found for source in near for found in linked(source)}
    assert page in near


def linked(page: Path) -> set[Path]:
    """The pages that a page links to."""
    targets = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if not target.startswith("http")}
