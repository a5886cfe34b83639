"""Test of whether a run continues with the images, labels and splits that it started with: its fingerprint and
split.csv tell."""

from pathlib import Path
from typing import Any

from common.errors import DataError
from datasets.bundle import DataBundle
from datasets.split_csv import changes_since, fingerprint, write_split
from trainers.reporting.console import say


def require_same_images(run_dir: Path, meta: dict[str, Any] | None, data: DataBundle, source: str) -> bool:
    """Return whether the images of `source` are known to be those of a run, by its meta.json (None: it is damaged or
    gone) or its split.csv; False where nothing tells. A split.csv that is gone is written again.

    Raises DataError: other images, labels or splits, or a split.csv that was edited; one line says what differs.
    """
    table = run_dir / "split.csv"
    changes = image_changes(table, data) if table.is_file() else []
    if meta is None:
        if changes:
            raise DataError(f"the images of {source} are not those of {table}: {'; '.join(changes)}; bring them back")
        return table.is_file()
    then, now = meta["data_fingerprint"], fingerprint(data)
    if then != now:
        found = "; ".join(changes) or f"their fingerprint is {now}, not {then}"
        raise DataError(
            f"the images of {source} changed since the run started: {found}; bring them back, or train anew"
        )
    if changes:
        raise DataError(
            f"{table} was changed since the run started, and is not what it trains on: {'; '.join(changes)}; undo that,"
            f" or remove the file, to have it written again; on another split train anew, with --split"
        )
    if not table.is_file():
        write_split(table, data)
        say(f"note: {table} was gone; it is written again, from the images")
    return True


def image_changes(table: Path, data: DataBundle) -> list[str]:
    """Differences of the images from those of a split.csv, one phrase each."""
    try:
        return changes_since(table, data)
    except DataError as error:
        return [f"it cannot be read ({error})"]
