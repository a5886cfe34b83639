"""How docstrings begin: with the noun or the verb, not in the middle of a sentence."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = re.compile(r"(Of|What|Whether|The same|As|For|Those|That|By|So many|Such as)\b")
"""First words of what is no sentence: `Of a decision.`, `What a worker heeds`, `The same; None where ...`."""
QUESTIONS = re.compile(r"(How|Which|Where|When|Who|Whose|Why|While|At|In|Only|One of|More)\b")
"""First words of a question in place of its answer: `How many there are`, `Which of them it is`."""
SKIPPED = ("tests", "docs", ".venv")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings of modules, classes and functions, and of those below an assignment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for part in node.body:
                match part:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield part.lineno, text


def sources() -> list[Path]:
    """The Python files of the application and its benchmarks."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    paths = [ROOT / name for name in listed.splitlines()] or sorted(ROOT.rglob("*.py"))
    return [path for path in paths if path.is_file() and path.relative_to(ROOT).parts[0] not in SKIPPED]


@cache
def everywhere() -> list[tuple[str, str]]:
    """The docstrings of the application and its benchmarks: where each stands, with its first line, and its text."""
    return [
        (f"{path.relative_to(ROOT).as_posix()}:{line}: {text.splitlines()[0]}", text)
        for path in sources()
        for line, text in docstrings(path.read_text(encoding="utf-8"))
    ]


def test_docstrings_begin_with_a_noun_or_a_verb():
    assert [place for place, text in everywhere() if BANNED.match(text)] == []


def test_docstrings_begin_with_no_question():
    assert [place for place, text in everywhere() if QUESTIONS.match(text)] == []


def test_a_docstring_below_a_constant_a_field_and_a_method_is_seen():
    source = (
        'A = 1\n"""Of A."""\nclass B:\n    c: int\n    """What c is."""\n    def d(self):\n        """The same."""\n'
    )
    found = list(docstrings(source))
    assert [line for line, _ in found] == [2, 5, 7]
    assert all(BANNED.match(text) for _, text in found)
    assert not BANNED.match("Offset of a view.")
    assert QUESTIONS.match("How many there are.")
    assert not QUESTIONS.match("Number of images.")
