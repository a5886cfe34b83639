"""Search for validation and test images that a start has seen: named before the first step, and left out of the scores.

A test image counts as seen if a start was trained on it or if it chose the epoch of a start; a validation image if a
start was trained on it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from common.shell import quoted
from datasets.bundle import LEFT_OUT, Samples
from datasets.config import DataConfig
from datasets.identity import identified
from trainers.seen.hashes import RECORD, SELECTED, TRAINED, Seen, from_tree, is_made_up, seen_in
from trainers.seen.overlap import COUNTS, Overlap, SeenImage, read_seen, said_at_start
from trainers.seen.starts import Start


def without_seen(samples: Samples, starts: Sequence[Start], data: DataConfig) -> tuple[Samples, Overlap]:
    """The samples without the validation and test images that a start has seen; with `data.allow_seen` they stay. A
    note says how many they are. Raises DataError: too few are left to score on."""
    if not starts:
        return samples, Overlap()
    samples = identified(samples)
    sizes = {split: len(samples.indices(split)) for split in COUNTS}
    rows, images = seen_images(samples, starts)
    said = (*sentences(images, sizes, scored=data.allow_seen), *unknown(samples, starts, images))
    overlap = Overlap(tuple(starts), images, data.allow_seen, said)
    if not data.allow_seen:
        refuse_too_few(images, sizes, starts, data)
        samples = samples.with_splits({LEFT_OUT: rows}) if images else samples
    return (samples.note(*said) if said else samples), overlap


def seen_images(samples: Samples, starts: Sequence[Start]) -> tuple[np.ndarray, tuple[SeenImage, ...]]:
    """The rows of the images that count as seen, and what each was used for."""
    if is_made_up(samples):
        return np.empty(0, np.int64), ()
    pairs = [pair for split in COUNTS for pair in _seen_of(samples, split, starts)]
    return np.array([row for row, _ in pairs], np.int64), tuple(image for _, image in pairs)


def _seen_of(samples: Samples, split: str, starts: Sequence[Start]) -> Iterator[tuple[int, SeenImage]]:
    assert samples.digests is not None
    rows = samples.indices(split)
    digests, found = samples.digests[rows], np.zeros(len(rows), bool)
    for use in COUNTS[split]:
        held = np.array([start.seen.holds(digests, samples.hash_kind, use) for start in starts])  # (starts, rows)
        for place in np.flatnonzero(held.any(axis=0) & ~found).tolist():
            by = " and ".join(start.name for start, holds in zip(starts, held[:, place], strict=True) if holds)
            yield int(rows[place]), SeenImage(samples.paths[rows[place]], split, use, by)
        found |= held.any(axis=0)


def sentences(images: Iterable[SeenImage], sizes: Mapping[str, int], *, scored: bool) -> Iterator[str]:
    """One for each split and each start: how many of its images were seen, and what becomes of them."""
    kept = "scored all the same, as --allow-seen asks"
    end = kept if scored else "left out of the scores; --allow-seen keeps them"
    yield from (f"{counted}: {end}" for counted in _counts(images, sizes))


def _counts(images: Iterable[SeenImage], sizes: Mapping[str, int]) -> Iterator[str]:
    uses: dict[tuple[str, str], Counter[str]] = {}
    for image in images:
        uses.setdefault((image.split, image.by), Counter())[image.use] += 1
    for (split, by), count in uses.items():
        trained, selected = count[TRAINED], count[SELECTED]
        what = f"{trained + selected:,} of {sizes[split]:,} {split} images"
        if trained and selected:
            yield f"{what} were seen by {by}, {trained:,} in training and {selected:,} in choosing its epoch"
        elif trained:
            yield f"{what} {'was' if trained == 1 else 'were'} trained on by {by}"
        else:
            yield f"{what} chose the epoch of {by}"


def unknown(samples: Samples, starts: Iterable[Start], images: Sequence[SeenImage]) -> Iterator[str]:
    """One sentence about each start of which it cannot be said what it has seen."""
    for start in starts:
        others = sorted(start.seen.kinds - {samples.hash_kind})
        if is_made_up(samples):
            yield f"whether {start.name} has seen these images cannot be known: they are a program's own"
        elif others:
            kinds = f"it knows images by a {' and a '.join(others)}, here they have a {samples.hash_kind}"
            yield f"whether {start.name} has seen more of these images cannot be known: {kinds}"
        elif not start.seen.complete:
            yield f"not all that {start.name} was trained on is recorded: it may have seen more of these images"


def refuse_too_few(
    images: Sequence[SeenImage], sizes: Mapping[str, int], starts: Iterable[Start], data: DataConfig
) -> None:
    """Raise DataError where less than half of the val or test images are left, or none."""
    seen = Counter(image.split for image in images)
    if all(2 * (sizes[split] - count) >= sizes[split] for split, count in seen.items()):
        return
    tables = [start.split for start in starts if start.split is not None]
    remedy = "--allow-seen scores them all the same"
    if tables and data.split is None and data.folds is None:
        remedy = f"--split {quoted(tables[0])} keeps its test images unseen, {remedy}"
    raise DataError(f"{'; '.join(_counts(images, sizes))}: too few are left to score on; {remedy}")


def as_begun(
    samples: Samples, run_dir: Path | None, data: DataConfig, checkpoint: Mapping[str, Any]
) -> tuple[Samples, Overlap]:
    """The samples of a run that goes on from a checkpoint: what its starts had seen stays left out."""
    if run_dir is None:
        return samples, Overlap()
    before = from_tree(checkpoint[RECORD], run_dir) if RECORD in checkpoint else Seen(complete=False)
    images, said = read_seen(run_dir), said_at_start(run_dir)
    overlap = Overlap((Start(str(run_dir), before),), images, data.allow_seen, said)
    return left_out(samples, images, data).note(*said), overlap


def left_out(samples: Samples, images: Iterable[SeenImage], data: DataConfig) -> Samples:
    """The samples without these images, unless `data.allow_seen`."""
    gone = set() if data.allow_seen else {image.path for image in images}
    if not gone:
        return samples
    return samples.with_splits({LEFT_OUT: [row for row, path in enumerate(samples.paths) if path in gone]})


def refuse_exchanged(samples: Samples, overlap: Overlap) -> None:
    """Raise DataError where a run that goes on would be scored on images that it was trained on itself: they are not
    those that it started with."""
    if overlap.scored or is_made_up(samples) or samples.digests is None:
        return
    own, before = seen_in(samples), overlap.before
    for split, uses in COUNTS.items():
        digests = samples.digests[samples.indices(split)]
        for use in uses:
            was, is_now = (seen.holds(digests, samples.hash_kind, use) for seen in (before, own))
            if count := int((was & ~is_now).sum()):
                raise DataError(
                    f"{count:,} of {len(digests):,} {split} images are those that it was {use} on when the run was"
                    " stopped: bring back the images it started with, or train anew"
                )
