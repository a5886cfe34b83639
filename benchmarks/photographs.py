"""Pictures with the statistics of photographs, for benchmarks that read files: nobody's, and as many as are wanted."""

from __future__ import annotations

import numpy as np


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
