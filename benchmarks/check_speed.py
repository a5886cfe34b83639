"""How long `check` takes on 100,000 photographs of 500 x 400 px: the target is 15 minutes on two cores.

    python -m benchmarks.check_speed [--images 4000] [--workers N]

Two parts: the whole command on generated JPEGs (450 MB of temporary files), and the search for near duplicates at
100,000 pictures. The time at 100,000 files is extrapolated: the first part scaled up, plus the second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result
from datasets.checking.check import check_source
from datasets.checking.near_duplicates import THUMBNAIL_SIZE, near_duplicates

TARGET_IMAGES, TARGET_SECONDS = 100_000, 900


def textures(count: int, side: int) -> np.ndarray:
    """(count, side, side, 3) float32 fields with the 1/f spectrum of photographs, deviation 1."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None])
    frequency[0, 0] = np.inf
    fields = []
    for _ in range(count):
        noise = rng.standard_normal((side, side, 1)) + 0.4 * rng.standard_normal((side, side, 3))
        field = np.fft.ifft2(np.fft.fft2(noise, axes=(0, 1)) / frequency[..., None] ** 1.1, axes=(0, 1)).real
        fields.append(field / field.std())
    return np.stack(fields).astype(np.float32)


def blend(fields: np.ndarray, width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """A picture of its own: windows of three textures, cut at random places, in random proportions."""
    total = np.zeros((height, width, fields.shape[-1]), np.float32)
    for field in fields[rng.choice(len(fields), 3, replace=False)]:
        top, left = rng.integers(0, field.shape[0] - height + 1), rng.integers(0, field.shape[1] - width + 1)
        total += rng.uniform(-1, 1) * field[top : top + height, left : left + width]
    return (128 + 50 * total / total.std()).clip(0, 255).astype(np.uint8)


def write_photographs(root: Path, count: int) -> float:
    """JPEGs of 500 x 400 px, quality 90, in two classes and two splits; their mean size in bytes."""
    rng, fields, size = np.random.default_rng(1), textures(40, 900), 0
    for k in range(count):
        path = root / ("val" if k % 5 == 0 else "train") / "ab"[k % 2] / f"{k:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(blend(fields, 500, 400, rng)).save(path, quality=90)
        size += path.stat().st_size
    return size / count


def time_check(count: int, workers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="check-speed-") as folder:
        mean_bytes = write_photographs(Path(folder), count)
        start = time.perf_counter()
        report = check_source(folder, workers=workers)
        seconds = time.perf_counter() - start
        # Blends that share a dominant texture are honestly alike; damaged files would mean that less was timed.
        assert all(found.kind.startswith("near_") for found in report.findings), report.findings[:3]
    return {
        "images": count,
        "mean_bytes": round(mean_bytes),
        "workers": workers,
        "seconds": round(seconds, 2),
        "ms_per_image": round(1000 * seconds / count, 3),
        "findings": len(report.findings),
    }


def time_near_duplicates(count: int) -> dict[str, float]:
    """Hashes, pairs and registration on thumbnails in memory, every thousandth picture being a shifted copy."""
    rng, fields = np.random.default_rng(2), textures(200, 64)
    grey = fields.mean(axis=-1, keepdims=True)
    thumbnails = np.stack([blend(grey, THUMBNAIL_SIZE, THUMBNAIL_SIZE, rng)[..., 0] for _ in range(count)])
    copies = np.arange(1000, count, 1000)
    thumbnails[copies] = thumbnails[copies - 500] // 2 + 40
    start = time.process_time()  # of one core: what else the machine does is no part of it
    (i, j), _, _ = near_duplicates(thumbnails)
    seconds = time.process_time() - start
    planted = np.isin(copies, j[np.isin(i, copies - 500)]).sum()
    return {
        "pictures": count,
        "seconds": round(seconds, 2),
        "pairs": len(i),
        "planted": len(copies),
        "planted_found": int(planted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    whole = time_check(arguments.images, arguments.workers)
    near = time_near_duplicates(TARGET_IMAGES)
    estimate = whole["ms_per_image"] * TARGET_IMAGES / 1000 + near["seconds"]
    write_result(
        "check_speed",
        describe("pillow", "numpy")
        | {
            "check": whole,
            "near_duplicates": near,
            "extrapolated_seconds_at_100000": round(estimate),
            "target_seconds": TARGET_SECONDS,
        },
    )


if __name__ == "__main__":
    main()
