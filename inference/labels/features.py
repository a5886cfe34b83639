"""Features of the pictures of a pool by frozen networks, and which are copies: computed once and left on disk."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from common.errors import DataError
from datasets.bundle import LEFT_OUT, TRAIN, Samples
from datasets.checking.inspection import groups_of_copies, inspections
from datasets.config import DataConfig
from datasets.identity import identified
from datasets.loaders import evaluation_loader
from inference.labels.pool import Pool
from trainers.config import to_dict
from trainers.engine.arithmetic import precision_to_use
from trainers.features import kept_features, kept_tensors
from trainers.options.defaults import resolve_device
from trainers.reporting.console import say
from trainers.setup import head_of
from trainers.storage.finished_run import open_best
from vit import Blueprint, ImageSpec, ModelConfig
from vit.factory import local_pretrained_models

COMPONENTS = 128
"""Principal components kept of a network's features."""
BATCH = 64
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FeatureExtractor:
    """A network without a purpose for these pictures yet, or the model of a run."""

    name: str
    model: nn.Module
    spec: ImageSpec
    class_names: tuple[str, ...] = ()
    """Classes whose probabilities the model of a run answers with; empty without a run."""
    amp: str = "tf32"
    """Precision of the run, a value of `--amp`."""


@dataclass(frozen=True)
class ExtractedFeatures:
    """Features, copies and faults of the N pictures of a pool, without any label."""

    features: Floats
    """(N, D), each of length 1."""
    groups: NDArray[np.int64]
    """(N,): copies share a number."""
    readable: NDArray[np.bool_]
    """(N,)"""
    faults: list[str]
    """A line for each picture that cannot be read."""
    probabilities: NDArray[np.float64] | None = None
    """(N, C): of a run, by its classes."""
    class_names: tuple[str, ...] = ()


def pretrained() -> list[FeatureExtractor]:
    """The networks at hand that know most kinds of pictures: the larger embedded one, and ImageNet's where installed,
    at its smaller size. Downloads nothing."""
    chosen: dict[str, ModelConfig] = {}
    for config in local_pretrained_models():
        if config.weights == "tiny_imagenet" or config.name == "efficientnet_lite0":
            chosen.setdefault(config.name, config)
    networks = []
    for config in chosen.values():
        blueprint = Blueprint(config)
        model = blueprint.build(num_classes=1)
        networks.append(FeatureExtractor(f"{config.name} ({config.weights})", model.eval(), blueprint.image_spec))
    return networks


def of_run(run_dir: Path) -> list[FeatureExtractor]:
    """The best model of a run. Raises CheckpointError: there is none that can be read."""
    opened = open_best(run_dir)
    return [FeatureExtractor(str(run_dir), opened.model, opened.spec, tuple(opened.class_names), opened.amp)]


def extract_features(
    pool: Pool, networks: list[FeatureExtractor], folder: Path, *, device: str = "auto"
) -> ExtractedFeatures:
    """Decode each picture, find copies, and compute the features of those that can be read, taking from `folder` what
    is there already. Raises DataError: none can be read."""
    samples = identified(pool.samples)
    seen = _copies(samples, folder)
    readable, groups = seen["readable"].numpy().astype(bool), seen["groups"].numpy()
    if not readable.any():
        raise DataError(f"{pool.samples.name}: none of {len(samples):,} pictures can be read")
    faults = [] if readable.all() else _faults(samples, np.flatnonzero(~readable))
    used = samples.with_splits({TRAIN: np.flatnonzero(readable), LEFT_OUT: np.flatnonzero(~readable)})
    rows, place = np.flatnonzero(readable), torch.device(resolve_device(device))
    parts, probabilities = [], None
    for network in networks:
        model = network.model.to(place)
        say(f"of {len(rows):,} pictures by {network.name}", label="features")
        loader = evaluation_loader(used, "train", network.spec, DataConfig(used.name, batch_size=BATCH), device=place)
        amp_dtype = precision_to_use(place, network.amp)
        about = [_digest(used), to_dict(network.spec), BATCH, str(amp_dtype)]
        values = kept_features(folder, about, model, loader, place, amp_dtype=amp_dtype)
        parts.append(values.numpy())
        if network.class_names:
            with torch.inference_mode():
                logits = head_of(model)(values.to(place)).float().cpu()
            probabilities = np.full((len(samples), len(network.class_names)), 1 / len(network.class_names))
            probabilities[rows] = logits.double().softmax(dim=1).numpy()
    features = np.zeros((len(samples), sum(min(COMPONENTS, *part.shape) for part in map(_flat, parts))), np.float32)
    features[rows] = side_by_side(parts)
    names = networks[0].class_names
    return ExtractedFeatures(features, groups, readable, faults, probabilities, names)


def _flat(values: Floats) -> Floats:
    return values.reshape(len(values), -1)


def side_by_side(parts: list[Floats]) -> Floats:
    """Features of several networks, (N, ...) each, as (N, D) of length 1: of each network up to `COMPONENTS` principal
    components, and all networks of the same weight."""
    made = []
    for part in parts:
        values = StandardScaler().fit_transform(_flat(part).astype(np.float32))
        components = min(COMPONENTS, *values.shape)
        if components < values.shape[1]:
            values = PCA(components, svd_solver="randomized", random_state=0).fit_transform(values)
        made.append(values / max(float(np.sqrt(np.square(values).sum(axis=1).mean())), 1e-12))
    values = np.concatenate(made, axis=1).astype(np.float32)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


def _copies(samples: Samples, folder: Path) -> dict[str, Tensor]:
    def find() -> dict[str, Tensor]:
        say(f"looking for copies among {len(samples):,} pictures", label="copies")
        seen = inspections(samples, range(len(samples)), workers=os.cpu_count() or 1)
        readable = torch.tensor([each.fault is None for each in seen], dtype=torch.uint8)
        return {"groups": torch.from_numpy(groups_of_copies(seen)), "readable": readable}

    return kept_tensors(folder / f"copies_{_digest(samples)}.safetensors", find, "groups", "readable")


def _digest(samples: Samples) -> str:
    """16 hex digits over the contents of the pictures, and over which of them are used."""
    assert samples.digests is not None
    kind = str(samples.hash_kind).encode()
    return hashlib.sha256(kind + samples.digests.tobytes() + samples.splits.tobytes()).hexdigest()[:16]


def _faults(samples: Samples, rows: NDArray[np.int64]) -> list[str]:
    seen = inspections(samples, rows.tolist(), workers=0)
    return [f"{samples.paths[row]}: {each.detail or each.fault}" for row, each in zip(rows.tolist(), seen, strict=True)]
