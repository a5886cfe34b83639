"""Beside each accuracy on pictures that ImageNet's weights and the teacher have seen, the pages say so."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.drawn

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "vit").rglob("*.md")]
SETS = re.compile(r"hymenoptera|\bants\b|\bbees\b|\bdogs?\b|\bbreeds?\b", re.IGNORECASE)
SCORE = re.compile(r"(?<![\d.,-])(?:\d\d(?:\.\d)?(?: ?%)|0\.\d\d\b|\d\d\.\d\b)(?! (?:s|ms|MB|minutes|times)\b)")
NOTE = "ImageNet's own pictures"


def unmarked(page: str) -> Iterator[str]:
    """The rows, items and paragraphs that give an accuracy on these sets without the note: a table has it in the block
    after its last row, an item in itself, a paragraph anywhere in its section."""
    for section in re.split(r"^#+ .*$", page, flags=re.MULTILINE):
        blocks = [block for block in re.split(r"\n\s*\n", section) if not block.startswith("    ")]
        for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
            table = block.lstrip().startswith("|")
            for unit in block.splitlines() if table else re.split(r"\n(?=- )", block):
                where = after if table else unit if unit.startswith("- ") else section
                marked = NOTE in " ".join(where.split())
                text = " ".join(re.sub(r"`[^`]*`", "", unit).split())
                if not marked and SETS.search(text) and SCORE.search(text):
                    yield text


def test_an_accuracy_on_pictures_of_imagenet_says_that_they_are() -> None:
    missing = {path.name: rows for path in PAGES if (rows := [*unmarked(path.read_text(encoding="utf-8"))])}
    assert not missing


def test_a_recipe_that_gives_such_an_accuracy_says_so_too() -> None:
    recipes = tomllib.loads((ROOT / "trainers/options/recipes.toml").read_text(encoding="utf-8"))
    results = [result for recipe in recipes.values() for result in recipe.get("results", ())]
    assert any(SETS.search(result) for result in results)
    assert not [row for result in results for row in unmarked(result)]


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("| set | right |\n|---|---|\n| hymenoptera | 94.8 |\n| digits | 99.0 |\n\nNothing more.", 1),
        ("| set | right |\n|---|---|\n| hymenoptera † | 94.8 |\n\n† ImageNet's own\npictures.", 0),
        ("ImageNet's own pictures.\n\n| set | right |\n|---|---|\n| hymenoptera | 94.8 |", 1),
        ("89.5 % (sd 3.0) of ants\nand bees", 1),
        ("- 99.0 %: ImageNet's own pictures\n- 89.5 % (sd 3.0) of ants\n  and bees", 1),
        ("68.3 % of ten dog breeds\n\nThey are ImageNet's own pictures.", 0),
        ("68.3 % of ten dog breeds\n\n## Another section\n\nThey are ImageNet's own pictures.", 1),
        ("15.4 s on hymenoptera, `--data hymenoptera --val-fraction 0.10`\n\n    train --data dogs --lr 0.01", 0),
        ("98.0 % of the digits\n\nImageNet has dogs.", 0),
    ],
)
def test_the_search_finds_what_is_missing_and_nothing_else(page: str, count: int) -> None:
    assert len([*unmarked(page)]) == count
