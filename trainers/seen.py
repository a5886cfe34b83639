"""Leave images that the initial model was trained on out of the scores, by its split.csv.

A validation image is left out if the initial model was trained on it; a test image also if it selected the epoch of the
initial model. Images are the same if the hashes of their contents are. What a run leaves out is recorded in its own
split.csv, too, so that a run that starts from this one leaves it out again.
"""

import csv
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common.errors import DataError, report_damage
from common.shell import quoted
from common.tables import unguarded
from datasets.bundle import LEFT_OUT, Samples
from datasets.known import identified
from datasets.split_csv import KINDS, NOT_SCORED, REASON
from trainers.storage.data_folder import is_a_name
from trainers.storage.run_folder import RunFolder
from vit import ModelConfig

DISQUALIFYING = {"val": ("train", NOT_SCORED), "test": ("train", "val", NOT_SCORED)}
"""For each scored split, splits of the initial run that leak into it."""


class Start(NamedTuple):
    """A run or a file of weights that a model starts from."""

    name: str
    table: Path | None
    """The split.csv of the run; None for a file outside of any run."""


def start_of(name: str) -> Start:
    """Find the run that a name refers to, or that contains a file of weights."""
    path = Path(os.path.expanduser(name)).absolute()
    run = RunFolder(path if path.is_dir() else path.parent.parent)
    is_run = path.exists() and run.is_run and run.split_file.is_file()
    return Start(name, run.split_file if is_run else None)


def starts_of(config: ModelConfig) -> list[Start]:
    """Find the runs and files that a model starts from.

    The weights of a library are neither."""
    names = [network.weights for network in config.networks] or [config.weights]
    starts = [start_of(str(name)) for name in dict.fromkeys(names) if name is not None]
    return [start for start in starts if start.table is not None or not is_a_name(start.name)]


def without_seen(
    samples: Samples, starts: Collection[Start], *, allow: bool = False, remedy: str = ""
) -> tuple[Samples, tuple[str, ...]]:
    """Leave out validation and test images that a start was trained on.

    With `allow` they stay. Also return lines about them. The lines are also notes of the samples. Raises DataError,
    with the `remedy`: less than half of a split is left.
    """
    reasons: dict[int, str] = {}
    counts, unknown = [], []
    for name, table in starts:
        kind, used = hashes_in(table) if table is not None else ("", {})
        samples = identified(samples) if kind else samples
        has_contents = (
            samples.root is not None or samples.pixels is not None
        )  # otherwise the images are a program's own
        if not kind or kind != samples.hash_kind or not has_contents:
            unknown.append(f"what {name} was trained on is not known: it may have been trained on these images")
            continue
        for split, others in DISQUALIFYING.items():
            hashes, digests = set[str]().union(*(used.get(other, ()) for other in others)), samples.digests
            assert digests is not None
            rows = [row for row in samples.indices(split).tolist() if digests[row].tobytes().hex() in hashes]
            reasons |= dict.fromkeys(rows, f"used to train {name}")
            images = f"{len(rows):,} of {len(samples.indices(split)):,} {split} images"
            counts += [f"{images} were used to train {name}"] if rows else []
    left = leave_out(samples, reasons)
    too_few = any(2 * len(left.indices(split)) < len(samples.indices(split)) for split in DISQUALIFYING)
    if too_few and not allow:
        tables = [quoted(table) for _, table in starts if table is not None]
        remedy = remedy or f"--split {tables[0]} keeps its test images apart, --allow-seen scores them all the same"
        raise DataError(f"{'; '.join(counts)}: too few are left to score on; {remedy}")
    end = "scored all the same, as --allow-seen asks" if allow else "left out of the scores"
    said = (*(f"{count}: {end}" for count in counts), *unknown)
    return (samples if allow else left).note(*said), said


def as_begun(samples: Samples, run: RunFolder) -> Samples:
    """Leave out again what a run left out, by its split.csv."""
    reasons = left_out_of(run)
    rows = {row: reasons[path] for row, path in enumerate(samples.paths) if path in reasons} if reasons else {}
    return leave_out(identified(samples), rows) if rows else samples


def leave_out(samples: Samples, reasons: Mapping[int, str]) -> Samples:
    """Remove rows from their split, each with a reason for split.csv."""
    return samples.with_splits({LEFT_OUT: [*reasons]}).replace(left_out=reasons) if reasons else samples


@contextmanager
def opened(table: Path) -> Iterator["csv.DictReader[str]"]:
    """Open a split.csv without pandas, whose import takes 0.4 s. Raises CheckpointError: it is damaged."""
    with report_damage(table), open(table, encoding="utf-8", errors="surrogateescape", newline="") as file:
        yield csv.DictReader(file)


def hashes_in(table: Path) -> tuple[str, dict[str, set[str]]]:
    """Read a split.csv's kind of hashes, and the hashes of each split.

    An empty kind: it has none."""
    found: dict[str, set[str]] = {}
    with opened(table) as rows:
        kind = next((kind for kind in KINDS if kind in (rows.fieldnames or ())), "")
        for row in rows if kind else ():
            found.setdefault(row["split"], set()).add(row[kind])
    return kind, found


def left_out_of(run: RunFolder) -> dict[str, str]:
    """Read which images a run does not score: path -> reason."""
    table = run.split_file
    if not table.is_file():
        return {}
    with opened(table) as rows:
        if REASON not in (rows.fieldnames or ()):  # usually a run leaves nothing out, and the header shows it
            return {}
        return {unguarded(row["path"]): row[REASON] for row in rows if row["split"] == NOT_SCORED}
