"""Count words of this project's own dialect in pages, printed strings and docstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("commands", "common", "comparison", "datasets", "inference", "trainers", "vit", "vit_train", "examples")
WORDS = {
    "arm": r"(?<!-)\barms?\b(?!=)", "at hand": r"\bat hand\b", "beside": r"\bbeside\b", "condition": r"\bcondition\b",
    "copies": r"\bcopies of one another\b|\b(near|exact) copies\b", "frozen together": r"\bfrozen together\b",
    "goes on": r"\b(goes|went) on\b(?! to\b)", "heeded": r"\bheed(s|ed)?\b", "judged": r"\bjudged?\b",
    "mixture": r"\bmixtures?\b", "one part": r"\bin (one|more than one|two) parts?\b",
    "said aloud": r"\bsaid aloud\b|\bin silence\b|\bare said\b", "seen": r"(?<!images )(?<!-)\bseen\b",
    "surest": r"\bsurest\b", "told": r"\btold\b", "worth": r"\bworth\b",
}  # fmt: skip


def strings(docstrings: bool) -> list[str]:
    found = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        found += [str(node.value) for node in texts if (id(node) in alone) == docstrings]
    return [text for text in found if " " in text]  # one word alone is a name


if __name__ == "__main__":
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "vit/weights/README.md"]
    texts = [re.sub(r"`[^`\n]+`", "", path.read_text(encoding="utf-8")) for path in pages]
    places = {"pages": texts, "printed": strings(docstrings=False), "docstrings": strings(docstrings=True)}
    print(f"{'word':16}", *(f"{place:>10}" for place in places))
    for word, pattern in WORDS.items():
        counts = [sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts) for texts in places.values()]
        print(f"{word:16}", *(f"{count:>10}" for count in counts))
