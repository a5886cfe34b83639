"""Record of the images that a model has seen: a hash of 8 bytes for each, carried from its start into whatever is
trained from it.

A checkpoint holds them as tensors, an export as text. They say what the weights were trained on, through any number of
steps: the run's own images and those that its starts, its teachers and their starts had seen.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import WeightsError
from datasets.bundle import Samples
from datasets.identity import identified, keys_of
from datasets.split_csv import KINDS

TRAINED, SELECTED = "trained", "selected"
"""Uses of an image: to learn from (train), or to choose the epoch by (val)."""
USES = {TRAINED: "train", SELECTED: "val"}
RECORD = "seen"
"""The name of the record in a checkpoint, and in the metadata of an export."""
COMPLETE = "complete"
MOST_IN_TEXT = 1_000_000
"""Hashes in an export, whose metadata are text that other programs read whole."""

Keys = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Seen:
    """The hashes of the images that were used for some weights."""

    keys: Mapping[tuple[str, str], Keys] = field(default_factory=dict)
    """(what the hashes are of, what the images were used for) -> sorted hashes."""
    complete: bool = True
    """True if these are all; False where a part of the history was not recorded."""

    @property
    def kinds(self) -> set[str]:
        """Kinds of the hashes: `content_hash`, `path_hash`."""
        return {kind for kind, _ in self.keys}

    def __or__(self, other: "Seen") -> "Seen":
        both = {
            place: sorted_once(np.concatenate([self.keys.get(place, NONE), other.keys.get(place, NONE)]))
            for place in {**self.keys, **other.keys}
        }
        return Seen(both, self.complete and other.complete)

    def holds(self, digests: NDArray[np.uint8], kind: str, use: str) -> NDArray[np.bool_]:
        """bool (N,): which images, by digests (N, 8) of this kind, were used so."""
        keys, known = keys_of(digests), self.keys.get((kind, use), NONE)
        if not len(known):
            return np.zeros(len(digests), bool)
        return known[np.searchsorted(known, keys).clip(max=len(known) - 1)] == keys


NONE = np.empty(0, np.uint64)
NOTHING = Seen()


@lru_cache(maxsize=1)  # a run asks for each of its two kinds of checkpoints
def seen_in(samples: Samples) -> Seen:
    """Return what training on these images uses: those that train, and those that validate."""
    if is_made_up(samples):
        return Seen(complete=False)
    samples = identified(samples)
    assert samples.digests is not None
    parts = {use: samples.digests[samples.indices(split)] for use, split in USES.items()}
    return Seen({(samples.hash_kind, use): sorted_once(keys_of(digests)) for use, digests in parts.items()})


def sorted_once(keys: Keys) -> Keys:
    """Return each of the hashes once, in order; much faster than numpy's `unique` for many."""
    keys = np.sort(keys)
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first]


def is_made_up(samples: Samples) -> bool:
    """Return whether the images are a program's own, whose names are numbers: neither contents nor paths are known."""
    return samples.root is None and samples.pixels is None


def to_tree(seen: Seen) -> dict[str, Any]:
    """The record in a checkpoint: int64 tensors (n,), sorted, by names such as `content_hash.trained`."""
    tensors = {".".join(place): torch.from_numpy(keys.view(np.int64)) for place, keys in seen.keys.items()}
    return {COMPLETE: seen.complete, **tensors}


def from_tree(tree: Any, source: object) -> Seen:
    """Read what `to_tree` wrote. Raises WeightsError: something else stands in the file `source`."""
    if not isinstance(tree, Mapping) or not isinstance(tree.get(COMPLETE), bool):
        raise WeightsError(f"{source} is damaged: its record of the images it was trained on is not readable")
    keys = {}
    for name, tensor in tree.items():
        if name == COMPLETE:
            continue
        kind, _, use = str(name).partition(".")
        whole = isinstance(tensor, Tensor) and tensor.dtype == torch.int64 and tensor.dim() == 1
        if kind not in KINDS or use not in USES or not whole:
            raise WeightsError(f"{source} is damaged: {name!r:.50} is no record of the images it was trained on")
        keys[kind, use] = tensor.numpy().view(np.uint64)
        if (keys[kind, use][1:] <= keys[kind, use][:-1]).any():
            raise WeightsError(f"{source} is damaged: {name} is not in order")
    return Seen(keys, tree[COMPLETE])


def to_text(seen: Seen) -> str:
    """The record in an export, as JSON; of more than MOST_IN_TEXT images only that it is not complete."""
    if sum(map(len, seen.keys.values())) > MOST_IN_TEXT:
        seen = Seen(complete=False)
    texts = {".".join(place): b64encode(keys.astype("<u8").tobytes()).decode() for place, keys in seen.keys.items()}
    return json.dumps({COMPLETE: seen.complete, **texts})


def from_text(text: Any, source: object) -> Seen:
    """Read what `to_text` wrote. Raises WeightsError: something else stands in the file `source`."""
    try:
        record = json.loads(text)
        tree = {name: value if name == COMPLETE else _tensor(value) for name, value in record.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):  # of base64, too: binascii.Error is a ValueError
        tree = {}
    return from_tree(tree, source)


def _tensor(text: str) -> Tensor:
    numbers = np.frombuffer(b64decode(text, validate=True), "<i8")
    return torch.from_numpy(numbers.astype(np.int64))
