"""Everything a comparison leaves behind: table.csv, table.md, report.html, figures."""

from __future__ import annotations

from pathlib import Path

from comparison.results import analyse
from comparison.runs import Comparison
from comparison.table import table_csv, table_md
from trainers.run_directory import write_text


def write_report(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the report; every file appears whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = analyse(comparison)
    texts = {"table.csv": table_csv(comparison, results), "table.md": table_md(comparison, results)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]
