"""Randomness without state: every draw is a hash of what it is for.

A draw that depends only on (seed, epoch, sample) is the same whatever the number of workers or processes, whatever was
drawn before, and after any restart. The hash is the finaliser of splitmix64 (Steele, Lea & Flood 2014), chained.
"""

from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF

# What a draw is for: two uses never share a stream.
ORDER, AUGMENT, SPLIT, SUBSET = 1, 2, 3, 4


def mix(*values: int) -> int:
    """Hash integers to 63 bits. torch's CPU generator keeps only the low 32 bits of a seed: a shift would lose some."""
    state = 0
    for value in values:
        state = _finalise((state ^ (value & _MASK)) * _GOLDEN + _GOLDEN & _MASK)
    return state >> 1


def uniforms(key: int, index: np.ndarray, draws: int) -> np.ndarray:
    """Draw float64 (B, draws) in [0, 1).

    Draw d of sample i is a function of (key, i, d) alone."""
    counter = index.astype(np.uint64)[:, None] * draws + np.arange(draws, dtype=np.uint64)
    state = _finalise(counter * _GOLDEN + (key & _MASK))
    state = _finalise(state ^ (key & _MASK))  # twice: one pass leaves neighbouring keys correlated
    return (state >> 11) * 2.0**-53


def hashes(key: int, index: np.ndarray) -> np.ndarray:
    """Return one hash per index to sort by, uint64 (B,)."""
    return _finalise(_finalise(index.astype(np.uint64) * _GOLDEN + (key & _MASK)))


def _finalise(state: Any) -> Any:
    """Finalise one int, or an array of uint64, whose products wrap."""
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31
