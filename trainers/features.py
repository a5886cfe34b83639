"""Features of frozen networks: each image passes once, and the features are saved on disk for later commands.

A head trains on them in seconds, whatever the size of the network. They are valid if the images are the same in every
epoch. N images, D features.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from common.errors import OptionError, WeightsError
from common.files import replacing
from common.versions import versions_of
from datasets.bundle import DataBundle
from datasets.loaders import Loader, stop_workers
from datasets.processes import available_memory
from datasets.sampling import BatchKey, OrderedBatchSampler, batch_sampler
from datasets.split_csv import fingerprint
from trainers.config import to_dict
from trainers.engine.engines import autocast
from trainers.engine.rows import Rows
from trainers.setup import RunSetup, head_of
from trainers.storage.data_folder import features_folder
from trainers.system.folder_lock import in_turn
from vit.anatomy import anatomy_of, recording
from vit.config import Network
from vit.ensemble import SideBySide
from vit.tensor_files import bytes_of, read_tree, write_tree

OF_NETWORKS = {"torch", "torchvision", "timm", "transformers"}
"""Packages that networks are made of: features are computed anew by another version."""


class FeatureDataset(Dataset):
    """One split as features (N, D) instead of images, all else alike."""

    def __init__(self, images: Any, features: Tensor) -> None:
        self.images, self.features = images, features
        self.labels, self.samples, self.indices = images.labels, images.samples, images.indices

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, key: BatchKey) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(np.asarray(key.draws) % len(self))
        return self.features[rows], torch.from_numpy(self.labels)[rows]

    def path(self, index: int) -> str:
        return self.images.path(index)


def cache_features(setup: RunSetup) -> str:
    """Replace a setup's images by features, its model by the head; return a line.

    Order, batches and labels stay the same. Raises OptionError: the features do not fit into memory.
    """
    start, data = time.perf_counter(), setup.data
    features = {split: features_of(setup, split) for split in data.dataloaders}
    loaders: dict[str, DataLoader] = {
        split: Loader(FeatureDataset(loader.dataset, features[split]), loader.batch_sampler, device=setup.device)
        for split, loader in data.dataloaders.items()
    }
    stop_workers(data.dataloaders.values())
    images, seconds = sum(data.dataset_sizes.values()), time.perf_counter() - start
    width = features["train"][0].numel()
    line = f"cached: {width:,} features of each of {images:,} images, computed once in {seconds:.1f} s"
    setup.data = DataBundle(loaders, data.class_names, data.dataset_sizes)
    setup.model, setup.whole = head_of(setup.model), setup.model
    return line


def features_of(
    setup: RunSetup, split: str, *, keep: bool = False, networks: Collection[Network] | None = None
) -> Tensor:
    """Return the inputs of the model's head for a split, in table order.

    (N, D), or (N, ...) for some models. They are read from the folder of features of these images if it has them, and
    saved there if it exists or `keep` is set. An ensemble has the features of its networks, or of some `networks`, next
    to each other, in one file per network.
    """
    loader = setup.data.dataloaders[split]
    kept_in, about = place_of(setup, loader, split, keep=keep)
    how: dict[str, Any] = {"loader": loader, "device": setup.device, "amp_dtype": setup.amp_dtype}
    if not isinstance(setup.model, SideBySide):
        return kept_features(kept_in, [*about, backbone_of(setup)], setup.model, **how)
    columns = []
    for view, network, width in zip(setup.model.views, setup.model.networks, setup.model.widths, strict=True):
        if networks is not None and network not in networks:
            continue
        if network.weights and split == "train":  # trained on these images: a head could learn nothing from them
            columns.append(torch.zeros(setup.data.dataset_sizes[split], width))
            continue
        alone = nn.Sequential(view, nn.Identity())
        found = kept_features(None if network.weights else kept_in, [*about, str(network)], alone, **how, end=alone[1])
        columns.append(found.flatten(1).float())
    return torch.cat(columns, dim=1)


def features_before(setup: RunSetup, loader: DataLoader, end: nn.Module) -> Tensor:
    """Return what reaches a module, of training images in a loader's order: (N, D).

    Kept like those of `features_of`, and the same where the network is frozen."""
    kept_in, about = place_of(setup, loader, "train")
    how: dict[str, Any] = {"loader": loader, "device": setup.device, "amp_dtype": setup.amp_dtype, "end": end}
    return kept_features(kept_in, [*about, backbone_of(setup)], setup.network, **how)


def place_of(setup: RunSetup, loader: DataLoader, split: str, *, keep: bool = False) -> tuple[Path | None, list[Any]]:
    """Return the folder of kept features, if any, and what but the network decides them."""
    folder = features_folder(setup.config.output, setup.config.data.source)
    if not (keep or folder.is_dir()):
        return None, []
    images: Any = loader.dataset
    about = [fingerprint(images.samples, split), split, len(images), batch_sampler(loader).batch_size]
    # tf32 and off have the same dtype, but different bits
    return folder, [*about, to_dict(setup.spec), setup.config.train.amp]


def backbone_of(setup: RunSetup) -> dict[str, Any]:
    """Return the options of the network on which its features depend."""
    return to_dict(dataclasses.replace(setup.config.model, weights=None, trainable="head"))


def kept_features(
    folder: Path | None,
    about: Sequence[Any],
    model: nn.Module,
    loader: DataLoader,
    device: torch.device,
    *,
    amp_dtype: torch.dtype | None = None,
    end: nn.Module | None = None,
) -> Tensor:
    """Compute features once, where `folder` keeps them.

    Later calls read the file; without a folder they are computed each time. `about`: what the features depend on
    besides the parameters before the head (or before `end`): the images, and the precision.
    """

    def compute() -> dict[str, Tensor]:
        return {"features": compute_features(model, loader, device, amp_dtype=amp_dtype, end=end)}

    if folder is None:
        return compute()["features"]
    made_of = {type(module).__module__.partition(".")[0] for module in model.modules()}
    computed_by = versions_of("pillow", *sorted(OF_NETWORKS & made_of))
    digest = hashlib.sha256(json.dumps([*about, device.type, computed_by]).encode())
    ends = anatomy_of(model).head if end is None else [end]
    behind = {id(value) for part in ends for value in part.state_dict(keep_vars=True).values()}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in behind:
            digest.update(name.encode() + bytes_of(value))
    return kept_tensors(folder / f"{digest.hexdigest()[:16]}.safetensors", compute, "features")["features"]


def kept_tensors(path: Path, compute: Callable[[], dict[str, Tensor]], *names: str) -> dict[str, Tensor]:
    """Read the tensors of these names from a file, or compute and write them.

    They are computed where the file is missing or damaged. Where another process computes them, its file is awaited."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path):
        with suppress(FileNotFoundError, WeightsError, KeyError):
            tree = read_tree(path)
            return {name: tree[name] for name in names}
        tensors = compute()
        with replacing(path) as temporary, temporary.open("wb") as file:
            write_tree(file, tensors)
    return tensors


@torch.no_grad()
def compute_features(
    model: nn.Module,
    loader: DataLoader,
    device: torch.device,
    *,
    amp_dtype: torch.dtype | None = None,
    end: nn.Module | None = None,
) -> Tensor:
    """Return the inputs of the head for every image: (N, D) on the CPU.

    `end`: another module whose inputs are returned."""
    model.eval()
    dataset: Any = loader.dataset
    sampler = OrderedBatchSampler(len(dataset), loader.batch_sampler.batch_size)  # type: ignore[union-attr]
    ordered = Loader(dataset, sampler, workers=loader.num_workers, device=device)
    rows = Rows(len(dataset))
    try:
        with recording([(end or anatomy_of(model).head[0], "in")]) as seen:
            for images, _ in tqdm(ordered, desc="features", disable=None, leave=False):
                with autocast(device, amp_dtype):
                    model(images)
                batch = seen.pop()
                if not len(rows):
                    require_memory(batch, len(dataset))
                rows.add(batch)
    finally:
        stop_workers([ordered])
    return rows.table()


def require_memory(batch: Tensor, images: int) -> None:
    """Raise OptionError if the features of all images need most of the free memory."""
    need, free = batch[0].numel() * batch.element_size() * images, available_memory()
    if need > 0.8 * free:
        raise OptionError(
            f"the features of {images:,} images need {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: "
            'use cache_features = "off", in a file'
        )
