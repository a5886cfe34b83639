"""Time and memory of the search for near duplicates among a million pictures, and what `check` finds.

    python -m benchmarks.near_duplicates SET [SET ...] [--pictures 1000000]

Each picture of the sets, any that `train --data` takes, is seen whole and, of 64 px or more, as its four quarters, each
turned by 0, 90, 180 and 270 degrees; `--pictures` of these views are drawn. One in a thousand is then an edited copy of
a whole one. What is found and was not planted is counted apart where both views are of one picture (such as a texture
that looks the same everywhere); of the rest 48 pairs are shown on a sheet, for somebody to look at.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.environment import describe, write_result
from datasets.checking.inspection import inspect_pixels
from datasets.checking.near_duplicates import THUMBNAIL_SIZE, near_duplicates
from datasets.images import read_image
from datasets.sources.own_data import read_source
from tests.planted_faults import EDITS
from trainers.engine.handlers import peak_memory_mb, reset_peak_memory

TURNS = 4  # of 90 degrees
SHOWN = 48


def thumbnail_of(pixels: np.ndarray) -> np.ndarray:
    """The 32 x 32 grey thumbnail, uint8, of an (H, W, C) uint8 array."""
    return np.frombuffer(inspect_pixels(pixels).thumbnail, np.uint8).reshape(THUMBNAIL_SIZE, THUMBNAIL_SIZE)


def views(picture: Image.Image) -> list[np.ndarray]:
    """The thumbnails of a picture whole, then of its quarters, each in four turns."""
    pixels = np.asarray(picture)
    y, x = len(pixels) // 2, pixels.shape[1] // 2
    quarters = [pixels[:y, :x], pixels[:y, x:], pixels[y:, :x], pixels[y:, x:]] if min(y, x) >= THUMBNAIL_SIZE else []
    return [thumbnail_of(np.rot90(part, turn).copy()) for part in (pixels, *quarters) for turn in range(TURNS)]


def drawn(sources: list[str], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """(count, 32, 32) thumbnails, the last thousandth of them copies; the number of each one's picture; and of the
    copies, which thumbnail each is a copy of and how it was edited."""
    random = np.random.default_rng(0)
    thumbnails, pictures = [], []
    with tempfile.TemporaryDirectory() as root:
        sets = [read_source(source, Path(root)).usable() for source in sources]
        files = [samples.file(row) for samples in sets for row in range(len(samples))]
        for number, file in enumerate(files):
            seen = views(read_image(file))
            thumbnails += seen
            pictures += [number] * len(seen)
        copies = count // 1000
        kept = random.permutation(len(pictures))[: count - copies]
        of = np.array(pictures)
        whole = np.flatnonzero(np.diff(of, prepend=-1))
        originals = random.choice(np.flatnonzero(np.isin(kept, whole)), copies, replace=False)
        edits = random.choice(list(EDITS), copies).tolist()
        edited = [
            thumbnail_of(np.asarray(EDITS[edit](read_image(files[of[kept[row]]])).convert("RGB")))
            for edit, row in zip(edits, originals, strict=True)
        ]
    chosen = np.stack([thumbnails[row] for row in kept] + edited)
    return chosen, np.concatenate([of[kept], of[kept[originals]]]), originals, edits


def show(thumbnails: np.ndarray, left: np.ndarray, right: np.ndarray, path: Path) -> None:
    """A sheet of pairs, one over the other, 12 in a row."""
    some = np.random.default_rng(0).permutation(len(left))[:SHOWN]
    pairs = [np.pad(np.concatenate([thumbnails[left[k]], thumbnails[right[k]]]), 2, constant_values=255) for k in some]
    pairs += [np.full_like(pairs[0], 255)] * (-len(pairs) % 12) if pairs else []
    rows = [np.concatenate(pairs[start : start + 12], axis=1) for start in range(0, len(pairs), 12)]
    if rows:
        sheet = Image.fromarray(np.concatenate(rows))
        sheet.resize((3 * sheet.width, 3 * sheet.height), Image.Resampling.NEAREST).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--pictures", type=int, default=1_000_000)
    parser.add_argument("--sheet", type=Path, default=Path("near_duplicates.png"))
    options = parser.parse_args()
    thumbnails, pictures, originals, edits = drawn(options.sets, options.pictures)
    print(f"{len(thumbnails):,} thumbnails", flush=True)
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before, begun, worked = peak_memory_mb(cpu) or 0, time.perf_counter(), time.process_time()
    (left, right), _, mirrored = near_duplicates(thumbnails)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - worked
    copies = np.arange(len(thumbnails) - len(originals), len(thumbnails))
    pairs = set(zip(left.tolist(), right.tolist(), strict=True))
    found = [(original, copy) in pairs for original, copy in zip(originals.tolist(), copies.tolist(), strict=True)]
    by_edit = Counter(edit for edit, seen in zip(edits, found, strict=True) if seen)
    same_picture = pictures[left] == pictures[right]
    others = np.flatnonzero(~same_picture)
    show(thumbnails, left[others], right[others], options.sheet)
    write_result(
        "near_duplicates",
        describe("numpy", "pillow")
        | {
            "pictures": len(thumbnails),
            "cpu_seconds": round(cpu_seconds, 1),
            "seconds": round(seconds, 1),
            "thumbnails_mb": round(thumbnails.nbytes / 1e6),
            "megabytes_more": round((peak_memory_mb(cpu) or 0) - before),
            "pairs": len(left),
            "planted": len(found),
            "planted_found": sum(found),
            "planted_found_of_each_edit": {edit: f"{by_edit[edit]} of {edits.count(edit)}" for edit in EDITS},
            "not_planted_of_one_picture": int(same_picture.sum()) - sum(found),
            "not_planted_of_two_pictures": len(others),
            "mirrored": int(mirrored.sum()),
        },
    )


if __name__ == "__main__":
    main()
