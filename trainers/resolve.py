"""Options of a run with nothing left open: each value is chosen here, once, from the model, the machine and the images.

What a person gave stays. The run prints the values, `config.json` keeps them, and a resumed run has them from there.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from common.errors import DataError, OptionError
from common.text import pluralise
from datasets.bundle import DataBundle, Samples
from datasets.fitting import chosen_fit
from datasets.image_dataset import ImageDataset
from datasets.loaders import dataloaders_of, on_device, with_table
from datasets.open import OpenedImages
from datasets.sampling import Share
from datasets.split_csv import fingerprint
from trainers.config import RunConfig, from_dict
from trainers.options import defaults
from trainers.seen import as_begun, starts_of, without_seen
from trainers.storage.run_folder import RunFolder
from trainers.system import distributed
from trainers.system.process_state import compute_deterministically, set_precision
from vit import Blueprint, ImageSpec
from vit.config import OWN_PREFIX


@dataclass(frozen=True)
class UserObjects:
    """Objects that a program gives a run in place of options.

    A module, a Dataset or DataLoader for each split (or the bundle of `build_dataloaders`), and how its images are
    prepared, for `predict` and `export` to do the same."""

    model: nn.Module | None = None
    dataloaders: DataBundle | Mapping[str, Dataset | DataLoader] | None = None
    spec: ImageSpec | None = None

    def named(self, config: RunConfig) -> RunConfig:
        """Return the options with the names of what is given instead."""
        changes: dict[str, dict[str, Any]] = {}
        if self.model is not None:
            if config.model.trainable != "all":
                raise OptionError(
                    f"--trainable {config.model.trainable}: freeze a module of your own by requires_grad_(False)"
                )
            changes["model"] = {"name": f"{OWN_PREFIX}{type(self.model).__name__}", "weights": "none"}
        if self.own_images:
            from datasets.own_dataset import own_name, splits_of

            source = own_name(splits_of(self.dataloaders)["train"]).lower()
            changes["data"] = {"source": source, "augment": "none"}
        return config.changed(**changes)

    @property
    def own_images(self) -> bool:
        """Return whether a Dataset of the program's own gives the images as they are."""
        return self.dataloaders is not None and not isinstance(self.dataloaders, DataBundle)

    def spec_of_module(self, config: RunConfig) -> ImageSpec:
        """Return a module's preprocessing: its Dataset's, else the application's."""
        size = config.model.image_size
        if not self.own_images:
            return ImageSpec(image_size=size or ImageSpec.image_size, in_channels=config.model.in_channels)
        from datasets.own_dataset import first_image, splits_of

        image = first_image("train", splits_of(self.dataloaders)["train"])
        shape = tuple(getattr(image, "shape", ()))
        if len(shape) != 3:
            kind = f"{type(image).__name__} {shape or ''}".rstrip()
            source = config.data.source
            raise DataError(f"images of {source} are {kind}, not tensors (C, H, W), such as ToTensor() makes")
        channels, height, _width = shape
        return ImageSpec(image_size=height, mean=(0.0,) * channels, std=(1.0,) * channels, in_channels=channels)


NOTHING_GIVEN = UserObjects()


@dataclass(frozen=True)
class Resolved:
    """Options of a run with nothing left open, and what was opened to resolve them."""

    config: RunConfig
    spec: ImageSpec
    data: DataBundle
    device: torch.device
    blueprint: Blueprint | None
    """Model to build; None: a program's own module."""
    seen: tuple[str, ...]
    """Lines about validation and test images that its starts were trained on."""


def resolve(
    asked: RunConfig,
    *,
    checkpoint: dict[str, Any] | None,
    run: RunFolder | None,
    given: UserObjects,
    opened: OpenedImages,
) -> Resolved:
    """Set each open option, and open the weights and images it depends on.

    Arguments and errors are those of `trainers.setup.prepare`."""
    if asked.train.deterministic:
        compute_deterministically()  # before the device is looked up, which may start CUDA
    by_model = defaults.of_model(given.named(asked))
    device = compute_on(by_model)
    new, blueprint = checkpoint is None, None
    if given.model is None:
        named = by_model.model if new else dataclasses.replace(by_model.model, weights="none")
        blueprint = Blueprint(named)  # reads a file of weights once
    model = blueprint.resolved if blueprint and new else by_model.model
    spec = preprocessing(by_model, blueprint, checkpoint, given, opened)
    fitted = dataclasses.replace(
        by_model,
        model=dataclasses.replace(model, fit=spec.fit, decoding=spec.decoding),
        train=dataclasses.replace(by_model.train, device=device.type),  # its number would name another one elsewhere
    )
    data, seen = distributed.main_process_first(
        partial(read_data, fitted, spec, given, opened, None if new else run, device)
    )
    distributed.require_equal(partial(fingerprint, data), f"the images of {fitted.data.source}")
    return Resolved(defaults.of_images(fitted, data), spec, data, device, blueprint, seen)


def compute_on(config: RunConfig) -> torch.device:
    """Return this process's device, and set its precision and threads."""
    device = distributed.own_device(config.train.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # else pinned memory is that of the first GPU
    set_precision(device, config.train.amp)
    assert config.train.threads is not None
    torch.set_num_threads(config.train.threads)
    return device


def preprocessing(
    config: RunConfig,
    blueprint: Blueprint | None,
    checkpoint: dict[str, Any] | None,
    given: UserObjects,
    opened: OpenedImages,
) -> ImageSpec:
    """Return how images are prepared.

    That is as a checkpoint has it, as a program says, or as model and images need it."""
    if checkpoint is not None and blueprint is not None:
        spec: ImageSpec = from_dict(ImageSpec, checkpoint["image_spec"])
        return spec
    if given.spec is not None:
        if checkpoint is None and (blueprint or given.own_images):
            require_shape(given.spec, blueprint.image_spec if blueprint else given.spec_of_module(config))
        return given.spec
    own = blueprint.image_spec if blueprint else given.spec_of_module(config)
    if checkpoint is not None:
        return own
    return distributed.main_process_first(partial(resolve_fit, own, config, given, opened))


def require_shape(spec: ImageSpec, taken: ImageSpec) -> None:
    """Raise OptionError where images prepared by `spec` do not fit the model."""
    for name in ("image_size", "in_channels"):
        said, fits = getattr(spec, name), getattr(taken, name)
        if said != fits:
            raise OptionError(f"spec says {name}={said}, and the model's images have {name}={fits}: give both the same")


def resolve_fit(spec: ImageSpec, config: RunConfig, given: UserObjects, opened: OpenedImages) -> ImageSpec:
    """Return a new run's preprocessing; its images or loaders decide `auto`."""
    if given.dataloaders is not None:
        loaders = given.dataloaders.dataloaders if isinstance(given.dataloaders, DataBundle) else {}
        sets = [loader.dataset for loader in loaders.values() if isinstance(loader.dataset, ImageDataset)]
        made = sets[0].pipeline.spec if sets else spec
        return dataclasses.replace(spec, fit=made.fit, decoding=made.decoding)
    model = config.model
    fit = chosen_fit(opened.split(config.data)) if model.fit == "auto" else model.fit
    return dataclasses.replace(spec, fit=fit, decoding="scaled" if model.decoding == "auto" else model.decoding)


def read_data(
    config: RunConfig,
    spec: ImageSpec,
    given: UserObjects,
    opened: OpenedImages,
    begun: RunFolder | None,
    device: torch.device,
) -> tuple[DataBundle, tuple[str, ...]]:
    """Build the loaders of this process: its device, its share of every batch.

    Also return lines about images that are not scored, because the model started from weights that were trained on
    them. `begun`: a run that is taken up, which leaves out what it left out at first."""
    processes, seed = distributed.world_size(), config.train.seed
    share = Share(distributed.rank(), processes)
    if given.dataloaders is None:
        samples, seen = scored(opened.split(config.data), config, begun)
        data = dataloaders_of(samples, config.data, spec, seed=seed, share=share, device=device)
    else:
        if isinstance(given.dataloaders, DataBundle):
            data = given.dataloaders if device.type == "cpu" else on_device(given.dataloaders, device)
        else:
            from datasets.own_dataset import own_dataloaders

            data = own_dataloaders(given.dataloaders, config.data, seed=seed, share=share, device=device)
        samples, seen = scored(data.samples, config, begun)
        data = data if samples is data.samples else with_table(data, samples)
    slices = processes * config.train.accumulate
    if config.data.batch_size is not None and config.data.batch_size < slices:
        raise OptionError(
            f"a step of batch_size={config.data.batch_size} images cannot be cut into {slices} parts"
            f" ({pluralise(processes, 'process')} x accumulate={config.train.accumulate})"
        )
    for split, size in data.dataset_sizes.items():
        if size < processes:
            raise OptionError(f"the {split} split has {pluralise(size, 'image')}, too few for {processes} processes")
    return data, seen


def scored(samples: Samples, config: RunConfig, begun: RunFolder | None) -> tuple[Samples, tuple[str, ...]]:
    """Leave out what starts were trained on, or what a run left out.

    A run that has `begun` leaves out again what it left out then."""
    if begun is None:
        return without_seen(samples, starts_of(config.model), allow=config.data.allow_seen)
    said = tuple(begun.seen)
    return as_begun(samples, begun).note(*said), said
