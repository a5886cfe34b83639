"""Training on what a frozen backbone makes of the images, and files of it, which a ranking or a comparison leaves."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from common.errors import WeightsError
from common.files import replacing
from datasets.bundle import DataBundle
from datasets.loaders import Loader, stop_workers
from datasets.sampling import batch_sampler
from datasets.split_csv import fingerprint
from trainers.config import to_dict
from trainers.engine.feature_sets import FeatureDataset, features_of
from trainers.setup import RunSetup, head_of
from trainers.storage.data_folder import data_folder
from vit.mixture import SideBySide
from vit.parts import parts
from vit.tensor_files import bytes_of, read_tree, write_tree


def cache_features(setup: RunSetup) -> str:
    """Let a setup train its head alone, on features that the frozen backbone computes once from each image.

    Order, batches and labels stay as they are. Where there is a folder for features they are left there, and taken from
    it. Returns one line about it. Raises OptionError: they do not fit into memory."""
    start, data = time.perf_counter(), setup.data
    loaders: dict[str, DataLoader] = {}
    for split, loader in data.dataloaders.items():
        features = features_once(setup, split) if folder_of(setup).is_dir() else features_now(setup, split)
        loaders[split] = Loader(FeatureDataset(loader.dataset, features), loader.batch_sampler, device=setup.device)
    stop_workers(data.dataloaders.values())
    images, seconds = sum(data.dataset_sizes.values()), time.perf_counter() - start
    line = f"cached: {features[0].numel():,} features of each of {images:,} images, computed once in {seconds:.1f} s"
    setup.data = DataBundle(loaders, data.class_names, data.dataset_sizes)
    setup.model, setup.whole = head_of(setup.model), setup.model
    return line


@dataclass(frozen=True)
class Backbone:
    """A frozen network of a setup, its end, which features reach, its head, and the options that say what it is."""

    model: nn.Module
    end: nn.Module
    head: Sequence[nn.Module]
    options: object
    width: int | None = None
    """Numbers that it makes of an image, where it has learnt from the training images itself: of those it says nothing
    that a head could learn from, so they are not shown to it again."""

    def numbers(self) -> Iterator[tuple[str, Tensor]]:
        """Digest of what features depend on: all of its state but that of its head."""
        head = {id(value) for part in self.head for value in part.state_dict(keep_vars=True).values()}
        for name, value in self.model.state_dict(keep_vars=True).items():
            if id(value) not in head:
                yield name, value


def backbones_of(setup: RunSetup) -> list[Backbone]:
    """The setup's network; or those that stand side by side in it, each with features, and so files, of its own."""
    if not isinstance(setup.model, SideBySide):
        model = dataclasses.replace(setup.config.model, weights=None, weights_source=None, trainable="head")
        head = parts(setup.model).head
        return [Backbone(setup.model, head[0], head, to_dict(model))]
    alone = [nn.Sequential(view, nn.Identity()) for view in setup.model.views]
    return [
        Backbone(model, model[1], (), str(network), width if network.weights else None)
        for model, network, width in zip(alone, setup.model.networks, setup.model.widths, strict=True)
    ]


def side_by_side(features: Sequence[Tensor]) -> Tensor:
    return features[0] if len(features) == 1 else torch.cat([each.flatten(1).float() for each in features], dim=1)


def features_now(setup: RunSetup, split: str) -> Tensor:
    return side_by_side([computed(setup, split, backbone) for backbone in backbones_of(setup)])


def computed(setup: RunSetup, split: str, backbone: Backbone) -> Tensor:
    loader = setup.data.dataloaders[split]
    if split == "train" and backbone.width is not None:
        return torch.zeros(setup.data.dataset_sizes[split], backbone.width)
    return features_of(backbone.model, loader, setup.device, amp_dtype=setup.amp_dtype, end=backbone.end)


def features_once(setup: RunSetup, split: str) -> Tensor:
    """(N, D) of a split in table order: from its files, or computed and left there where that is none or damaged."""
    return side_by_side([computed_once(setup, split, backbone) for backbone in backbones_of(setup)])


def computed_once(setup: RunSetup, split: str, backbone: Backbone) -> Tensor:
    if split == "train" and backbone.width is not None:
        return computed(setup, split, backbone)
    path = features_file(setup, split, backbone)
    return kept_at(path, lambda: {"features": computed(setup, split, backbone)}, "features")["features"]


def kept_at(path: Path, compute: Callable[[], dict[str, Tensor]], *names: str) -> dict[str, Tensor]:
    """The tensors of these names in a file; where it is none, or damaged, they are computed and left there."""
    with suppress(FileNotFoundError, WeightsError, KeyError):
        tree = read_tree(path)
        return {name: tree[name] for name in names}
    tensors = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, aside.open("wb") as file:
        write_tree(file, tensors)
    return tensors


def kept(setup: RunSetup, name: str, compute: Callable[[], dict[str, Tensor]], *names: str) -> dict[str, Tensor]:
    """The tensors that are kept beside the features under a name, which says all that they depend on; computed where
    there are none, and where features are not kept."""
    folder = folder_of(setup)
    return kept_at(folder / f"{name}.safetensors", compute, *names) if folder.is_dir() else compute()


def features_file(setup: RunSetup, split: str, backbone: Backbone) -> Path:
    """A name for what determines the features: the images, the numbers of the backbone, and how it computes."""
    how = [backbone.options, to_dict(setup.spec), str(setup.amp_dtype), setup.device.type]
    size = batch_sampler(setup.data.dataloaders[split]).batch_size
    digest = hashlib.sha256(json.dumps([fingerprint(setup.data, split), split, size, how]).encode())
    for name, value in backbone.numbers():
        digest.update(name.encode())
        digest.update(bytes_of(value))
    return folder_of(setup) / f"{digest.hexdigest()[:16]}.safetensors"


def folder_of(setup: RunSetup) -> Path:
    return data_folder(setup.config.output, setup.config.data.source) / "features"
