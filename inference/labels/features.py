"""Compute features and copies of pictures once, and keep them on disk."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from common.errors import DataError
from datasets.bundle import LEFT_OUT, TRAIN, Samples
from datasets.config import DataConfig
from datasets.copies import copies_of
from datasets.known import identified, known_of, look, with_known
from datasets.loaders import evaluation_loader
from datasets.look import WHOLE
from trainers.config import to_dict
from trainers.features import kept_features
from trainers.options.defaults import resolve_device
from trainers.reporting.console import say
from trainers.system.process_state import precision_to_use
from vit import Blueprint, ModelConfig
from vit.factory import local_pretrained_models

BATCH = 64
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ExtractedFeatures:
    """Features, copies and faults of N pictures, without any label."""

    values: Floats
    """(N, D), of deviation 1; zeros for a picture that was not read."""
    groups: NDArray[np.int64]
    """(N,): copies share a number."""
    readable: NDArray[np.bool_]
    """(N,): False also for a picture that is left out of the set."""
    faults: list[str]
    """A line for each picture that cannot be read."""


def pretrained(imagenet: str) -> list[ModelConfig]:
    """Name the larger embedded network, and this one of ImageNet if it is installed.

    That one at its smaller size."""
    chosen: dict[str, ModelConfig] = {}
    for config in local_pretrained_models():
        if config.weights == "tiny_imagenet" or config.name == imagenet:
            chosen.setdefault(config.name, config)
    return list(chosen.values())


def extract_features(
    samples: Samples,
    networks: Sequence[ModelConfig],
    folder: Path,
    *,
    components: int,
    data_root: Path | None = None,
) -> ExtractedFeatures:
    """Find copies among the pictures of a set, and compute their features.

    What lies in `folder`, or below `data_root`, already is read from there. `components`: principal components to keep
    of each network.
    Raises DataError: no picture can be read.
    """
    samples, used = with_known(samples, data_root), np.flatnonzero(samples.splits >= 0)
    if (known_of(samples).depth[used] < WHOLE).any():
        say(f"looking for duplicates among {len(used):,} pictures", label="copies")
    known = look(samples, used, WHOLE)
    samples = identified(samples)
    copies = copies_of(samples, data_root, any_size=True)
    fine = known.readable(used)
    if not fine.any():
        raise DataError(f"{samples.name}: none of {len(used):,} pictures can be read")
    rows = used[fine]
    faults = [f"{samples.paths[row]}: {known.faults[row].detail}" for row in used[~fine].tolist()]
    assert copies is not None
    assert samples.digests is not None
    looked_at = samples.with_splits({TRAIN: rows, LEFT_OUT: np.setdiff1d(np.arange(len(samples)), rows)})
    place = torch.device(resolve_device("auto"))
    amp_dtype, parts = precision_to_use(place, "tf32"), []
    for config in networks:
        say(f"of {len(rows):,} pictures by {config.name} ({config.weights})", label="features")
        blueprint = Blueprint(config)
        model, spec = blueprint.build(num_classes=1).eval().to(place), blueprint.image_spec
        loader = evaluation_loader(looked_at, "train", spec, DataConfig(samples.name, batch_size=BATCH), device=place)
        content = hashlib.sha256(samples.digests[rows].tobytes()).hexdigest()[:16]
        about = [content, to_dict(spec), BATCH, str(amp_dtype)]
        parts.append(kept_features(folder, about, model, loader, place, amp_dtype=amp_dtype))
    joined = side_by_side(parts, components)
    values = np.zeros((len(samples), joined.shape[1]), np.float32)
    values[rows] = joined
    groups = np.where(copies >= 0, copies, np.arange(len(samples)))
    return ExtractedFeatures(values, groups, np.isin(np.arange(len(samples)), rows), faults)


def side_by_side(parts: list[Tensor], components: int) -> Floats:
    """Join features of several networks, (N, ...), as (N, D) of deviation 1.

    Each network gives up to `components` of them."""
    columns = []
    for part in parts:
        values = StandardScaler().fit_transform(part.flatten(1).float().numpy())
        kept = min(components, *values.shape)
        if kept < values.shape[1]:
            values = PCA(kept, svd_solver="randomized", random_state=0).fit_transform(values)
        columns.append(values / max(float(values.std()), 1e-12))
    return np.concatenate(columns, axis=1).astype(np.float32)


def unit_length(features: Floats) -> Floats:
    """Divide each row (N, D) by its length: products of two are cosines."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def nearest(features: Floats, groups: NDArray[np.int64], row: int, candidates: NDArray[np.int64]) -> list[int]:
    """Find candidates at the smallest angles to a row, nearest first, of copies one.

    `features` have length 1."""
    order = candidates[np.argsort(-(features[candidates] @ features[row]), kind="stable")]
    _, first = np.unique(groups[order], return_index=True)
    return order[np.sort(first)].tolist()
