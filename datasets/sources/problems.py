"""The kinds of faults that a set of images can have, a table in problems.toml; and one such fault."""

import tomllib
from pathlib import Path
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]

KINDS: dict[str, tuple[Severity, str]] = {
    kind: (severity, meaning)
    for kind, (severity, meaning) in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
"""Every kind of finding: its severity and what it means."""


class Problem(NamedTuple):
    """One fault. `kind` is a key of KINDS; `other` is the second file of a pair."""

    kind: str
    path: str
    split: str = ""
    label: str = ""
    other: str = ""
    detail: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.path!r}: {KINDS[self.kind][1]}" + (f" ({self.detail})" if self.detail else "")
