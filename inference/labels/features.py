"""Features of pictures by frozen networks, and which pictures are copies: computed once and left on disk."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from common.errors import DataError, OptionError
from datasets.bundle import LEFT_OUT, TRAIN, Samples, image_set
from datasets.checking.inspection import groups_of_copies, inspections
from datasets.config import DataConfig
from datasets.identity import identified
from datasets.loaders import evaluation_loader
from datasets.opened import OpenedImages
from datasets.shared_split import PRETRAINED_ON, have_seen
from trainers.budget.local_weights import MOST_IMAGES, Ranked, rank
from trainers.config import RunConfig, to_dict
from trainers.engine.arithmetic import precision_to_use
from trainers.features import features_of, kept_features, kept_tensors
from trainers.options.defaults import resolve_device
from trainers.options.recipes import filled_in
from trainers.reporting.console import duration, say
from trainers.setup import prepare
from vit import Blueprint, ImageSpec, ModelConfig
from vit.factory import local_pretrained_models

OF_LABELLED, OF_UNLABELLED = 256, 128
"""Principal components that are kept of a network's features, for `clean` and for `next`."""
BATCH = 64
Floats = NDArray[np.float32]


def components_of(features: Tensor, most: int) -> Floats:
    """(N, ...) -> (N, D): the features with deviation 1, or up to `most` principal components of them."""
    values = StandardScaler().fit_transform(features.flatten(1).float().numpy())
    kept = min(most, *values.shape)
    if kept < values.shape[1]:
        values = PCA(kept, svd_solver="randomized", random_state=0).fit_transform(values)
    return values


def features_of_set(
    config: RunConfig, *, images: int, seconds: float
) -> tuple[Samples, NDArray[np.int64], NDArray[np.float32]]:
    """Compute the features of a labelled set of so many `images` by the local pretrained networks that suit it best.

    Two networks side by side, or of fewer images than features one; the time for all images limits which are tried.
    Returns the set, which of its samples are in use (N,), and their features (N, D). Raises OptionError: the time is
    too short for any.
    """
    looked_at = min(images, MOST_IMAGES)
    share = looked_at / (images + looked_at) if images > MOST_IMAGES else 1.0  # features of fewer are kept
    say(
        f"looking at {images:,} images with the pretrained networks on this machine, for at most {duration(seconds)}",
        label="features",
    )
    opened = OpenedImages()
    ranking = rank(config, seconds=seconds * share, images=opened)
    if not ranking:
        raise OptionError(
            f"{duration(seconds)} are too short for any pretrained network on this machine: give more --minutes"
        )
    best: dict[str, Ranked] = {}
    for ranked in ranking:
        best.setdefault(ranked.options["model"]["name"], ranked)
    chosen = [*best.values()][: 2 if images > 2 * OF_LABELLED else 1]
    wanted = duration(sum(ranked.seconds for ranked in chosen) * images / looked_at)
    say(f"taking {' and '.join(ranked.name for ranked in chosen)}, for about {wanted}", label="features")
    parts = []
    for ranked in chosen:
        if have_seen(ranked.options["model"]["weights"], config.data.source):
            say(f"{PRETRAINED_ON[config.data.source]}: wrong labels that they know look right", label="note")
        setup = prepare(filled_in(config, ranked.options), images=opened)
        loaders = setup.data.dataloaders
        of_splits = [features_of(setup, split, keep=True).flatten(1).float() for split in loaders]
        parts.append(components_of(torch.cat(of_splits), OF_LABELLED))
    rows = np.concatenate([image_set(loader).indices for loader in loaders.values()])
    order = np.argsort(rows)
    values = np.concatenate([part * (parts[0].std() / part.std()) for part in parts], axis=1)
    return setup.data.samples, rows[order], values[order]


class FeatureExtractor(NamedTuple):
    """A pretrained network that looks at unlabelled pictures."""

    name: str
    model: nn.Module
    spec: ImageSpec


@dataclass(frozen=True)
class ExtractedFeatures:
    """Features, copies and faults of N pictures, without any label."""

    features: Floats
    """(N, D), each of length 1."""
    groups: NDArray[np.int64]
    """(N,): copies share a number."""
    readable: NDArray[np.bool_]
    """(N,)"""
    faults: list[str]
    """A line for each picture that cannot be read."""


def pretrained() -> list[FeatureExtractor]:
    """Build the larger embedded network and, where it is installed, ImageNet's at its smaller size."""
    chosen: dict[str, ModelConfig] = {}
    for config in local_pretrained_models():
        if config.weights == "tiny_imagenet" or config.name == "efficientnet_lite0":
            chosen.setdefault(config.name, config)
    networks = []
    for config in chosen.values():
        blueprint = Blueprint(config)
        model = blueprint.build(num_classes=1).eval()
        networks.append(FeatureExtractor(f"{config.name} ({config.weights})", model, blueprint.image_spec))
    return networks


def extract_features(
    samples: Samples, networks: list[FeatureExtractor], folder: Path, *, device: str = "auto"
) -> ExtractedFeatures:
    """Decode each picture, find copies, and compute the features of those that can be read, taking from `folder` what
    is there already. Raises DataError: none can be read."""
    samples = identified(samples)
    assert samples.digests is not None
    content = str(samples.hash_kind).encode() + samples.digests.tobytes()

    def find_copies() -> dict[str, Tensor]:
        say(f"looking for copies among {len(samples):,} pictures", label="copies")
        seen = inspections(samples, range(len(samples)), workers=os.cpu_count() or 1)
        readable = torch.tensor([each.fault is None for each in seen], dtype=torch.uint8)
        return {"groups": torch.from_numpy(groups_of_copies(seen)), "readable": readable}

    file = folder / f"copies_{_digest(content + samples.splits.tobytes())}.safetensors"
    seen = kept_tensors(file, find_copies, "groups", "readable")
    readable, groups = seen["readable"].numpy().astype(bool), seen["groups"].numpy()
    if not readable.any():
        raise DataError(f"{samples.name}: none of {len(samples):,} pictures can be read")
    rows, unreadable = np.flatnonzero(readable), np.flatnonzero(~readable)
    faults = [
        f"{samples.paths[row]}: {each.detail or each.fault}"
        for row, each in zip(unreadable, inspections(samples, unreadable.tolist(), workers=0), strict=True)
    ]
    used = samples.with_splits({TRAIN: rows, LEFT_OUT: unreadable})
    place = torch.device(resolve_device(device))
    amp_dtype, parts = precision_to_use(place, "tf32"), []
    for network in networks:
        say(f"of {len(rows):,} pictures by {network.name}", label="features")
        loader = evaluation_loader(used, "train", network.spec, DataConfig(used.name, batch_size=BATCH), device=place)
        about = [_digest(content + used.splits.tobytes()), to_dict(network.spec), BATCH, str(amp_dtype)]
        parts.append(kept_features(folder, about, network.model.to(place), loader, place, amp_dtype=amp_dtype))
    beside = side_by_side(parts)
    features = np.zeros((len(samples), beside.shape[1]), np.float32)
    features[rows] = beside
    return ExtractedFeatures(features, groups, readable, faults)


def side_by_side(parts: list[Tensor]) -> Floats:
    """Features of several networks, (N, ...) each, as (N, D) of length 1, in which all weigh the same."""
    made = [components_of(part, OF_UNLABELLED) for part in parts]
    made = [part / max(float(np.sqrt(np.square(part).sum(axis=1).mean())), 1e-12) for part in made]
    values = np.concatenate(made, axis=1).astype(np.float32)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
