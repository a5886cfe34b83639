"""Setup of a run, built from its options before anything is written, so that whatever can be wrong is wrong here."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from common.errors import CheckpointError, DataError, OptionError
from datasets.augmentation import BatchMix
from datasets.bundle import DataBundle, Samples
from datasets.fitting import chosen_fit
from datasets.image_dataset import ImageDataset
from datasets.loaders import class_weights, dataloaders_of, on_device, with_table
from datasets.opened import OpenedImages
from datasets.sampling import Share, batch_sampler
from datasets.split_csv import fingerprint
from trainers.config import RunConfig, from_dict
from trainers.engine.arithmetic import AMP_DTYPES, compute_deterministically, set_precision
from trainers.engine.engines import StepOptions, Trainer, create_trainer
from trainers.engine.one_image import refuse_batches_of_one, require_outputs
from trainers.engine.optim import build_optimizer, learning_rate
from trainers.engine.randomness import seed_everything
from trainers.options import defaults
from trainers.seen import as_begun, seen_lines, starts_of, without_seen
from trainers.system import distributed
from vit import Blueprint, ImageSpec
from vit.config import HF_PREFIX, OWN_PREFIX
from vit.freezing import keep_statistics
from vit.param_groups import param_groups
from vit.parts import parts, recompute_activations


@dataclass
class RunSetup:
    """Resolved options of one run, and everything built from them: one object from its start to its end.

    Two things may change it: cached features take the place of images, and `--minutes` moves the last epoch."""

    config: RunConfig
    spec: ImageSpec
    data: DataBundle
    model: nn.Module
    optimizer: Optimizer
    device: torch.device
    whole: nn.Module | None = None
    """Model that the head is part of, for a probe on cached features, whose `model` is the head alone."""
    seen: tuple[str, ...] = ()
    """Lines about its validation and test images that its starts were trained on."""

    @property
    def on_features(self) -> bool:
        """True if the loaders give cached features, not images."""
        return self.whole is not None

    @property
    def network(self) -> nn.Module:
        """Module that turns images into logits."""
        return self.model if self.whole is None else self.whole

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.dataloaders["train"])

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run; none where the head is fitted."""
        assert self.config.train.epochs is not None
        if self.config.train.start_head == "fit":
            return 0
        return max(1, round(self.config.train.epochs * self.steps_per_epoch))

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch, of which the run may take a part only."""
        return -(-self.total_steps // self.steps_per_epoch)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate climbs; at least one step of the run follows them."""
        assert self.config.train.warmup_epochs is not None
        return min(round(self.config.train.warmup_epochs * self.steps_per_epoch), max(self.total_steps - 1, 0))

    @property
    def amp_dtype(self) -> torch.dtype | None:
        return AMP_DTYPES[self.config.train.amp]


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
        if self.model is not None:
            if config.model.trainable != "all":
                raise OptionError(
                    f"--trainable {config.model.trainable}: freeze a module of your own by requires_grad_(False)"
                )
            name = f"{OWN_PREFIX}{type(self.model).__name__}"
            config = config.changed(model={"name": name, "weights": "none"})
        if self.dataloaders is not None and not isinstance(self.dataloaders, DataBundle):
            from datasets.own_dataset import own_name, splits_of

            source = own_name(splits_of(self.dataloaders)["train"]).lower()
            config = config.changed(data={"source": source, "augment": "none"})
        return config

    @property
    def own_images(self) -> bool:
        """Return whether a Dataset of the program's own gives the images as they are."""
        return self.dataloaders is not None and not isinstance(self.dataloaders, DataBundle)

    def spec_of_module(self, config: RunConfig) -> ImageSpec:
        """Return the preprocessing for a module: as its Dataset gives the images, else by the application's values."""
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


def prepare(
    config: RunConfig,
    *,
    checkpoint: dict[str, Any] | None = None,
    run_dir: Path | None = None,
    given: UserObjects = NOTHING_GIVEN,
    images: OpenedImages | None = None,
) -> RunSetup:
    """Resolve the options, read the data, build model and optimizer, but for what is `given`.

    With the checkpoint of the run in `run_dir`, that run's weights and preprocessing are used, and its images are split
    as it split them; no initial weights are looked for. `images`: those that the command has opened already.
    Raises OptionError: options that cannot work. DataError, WeightsError, FileNotFoundError: data or weights that
    cannot."""
    images = images or OpenedImages()
    if config.train.deterministic:
        compute_deterministically()
    config = defaults.resolve(given.named(config))
    device = distributed.own_device(config.train.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # else pinned memory is that of the first GPU
    set_precision(device, config.train.amp)
    config = config.changed(train={"device": device.type})  # a number would name another GPU elsewhere
    assert config.train.threads is not None
    torch.set_num_threads(config.train.threads)
    if given.model is not None:
        blueprint, spec = None, given.spec or given.spec_of_module(config)
    elif checkpoint is None:
        blueprint = Blueprint(config.model)  # reads a file of weights once
        config, spec = dataclasses.replace(config, model=blueprint.resolved), given.spec or blueprint.image_spec
    else:
        blueprint = Blueprint(dataclasses.replace(config.model, weights="none"))
        spec = from_dict(ImageSpec, checkpoint["image_spec"])
    if checkpoint is None and given.spec is None:
        spec = distributed.main_process_first(partial(resolve_fit, spec, config, given, images))
    elif checkpoint is None and (blueprint or given.own_images):
        require_shape(spec, blueprint.image_spec if blueprint else given.spec_of_module(config))
    config = config.changed(model={"fit": spec.fit, "decoding": spec.decoding})
    begun = run_dir if checkpoint is not None else None
    data, seen = distributed.main_process_first(partial(read_data, config, spec, given, images, begun, device))
    distributed.require_equal(partial(fingerprint, data), f"the images of {config.data.source}")
    config = defaults.resolve_for(config, data)
    if given.model is not None:
        require_outputs(given.model.to(device), data, device, config.model.name)
    seed_everything(config.train.seed)
    if blueprint is None:
        assert given.model is not None
        model = given.model
    else:
        model = blueprint.build(num_classes=len(data.class_names), class_names=data.class_names).to(device)
    if given.model is None and given.dataloaders is not None:
        require_outputs(model, data, device, config.model.name)
    if checkpoint is not None:
        try:
            model.load_state_dict(checkpoint["model"])
        except RuntimeError as error:
            classes = f"of the {len(data.class_names)} classes that its images have now"
            raise CheckpointError(f"the weights of the run do not fit its model {classes}: bring them back") from error
    if config.train.start_head == "probe" and defaults.model_family(config.model.name).startswith("conv"):
        keep_statistics(model)
    refuse_batches_of_one(model, data, device, accumulate=config.train.accumulate)
    if config.train.checkpoint_activations:
        recompute_activations(list(parts(model).blocks))
    return RunSetup(config, spec, data, model, optimizer_of(model, config), device, seen=seen)


def require_shape(spec: ImageSpec, taken: ImageSpec) -> None:
    """Raise OptionError where images prepared by `spec` have another shape than those that the model takes."""
    for name in ("image_size", "in_channels"):
        said, fits = getattr(spec, name), getattr(taken, name)
        if said != fits:
            raise OptionError(f"spec says {name}={said}, and the model's images have {name}={fits}: give both the same")


def resolve_fit(spec: ImageSpec, config: RunConfig, given: UserObjects, images: OpenedImages) -> ImageSpec:
    """Return the preprocessing of a new run: `auto` is resolved by its images, or as its own loaders have it."""
    if given.dataloaders is not None:
        loaders = given.dataloaders.dataloaders if isinstance(given.dataloaders, DataBundle) else {}
        sets = [loader.dataset for loader in loaders.values() if isinstance(loader.dataset, ImageDataset)]
        made = sets[0].pipeline.spec if sets else spec
        return dataclasses.replace(spec, fit=made.fit, decoding=made.decoding)
    model = config.model
    fit = chosen_fit(images.split(config.data)) if model.fit == "auto" else model.fit
    return dataclasses.replace(spec, fit=fit, decoding="scaled" if model.decoding == "auto" else model.decoding)


def optimizer_of(model: nn.Module, config: RunConfig) -> Optimizer:
    train = config.train
    assert train.lr is not None
    assert train.weight_decay is not None
    matrices = train.optimizer == "muon" and config.model.trainable != "head"
    groups = param_groups(model, weight_decay=train.weight_decay, layer_decay=train.layer_decay, matrices=matrices)
    return build_optimizer(groups, name=train.optimizer, lr=train.lr)


def read_data(
    config: RunConfig,
    spec: ImageSpec,
    given: UserObjects,
    images: OpenedImages,
    begun: Path | None,
    device: torch.device,
) -> tuple[DataBundle, tuple[str, ...]]:
    """Build the loaders of this process for its device, with its share of every batch and split.

    Also return lines about images that are not scored, because the model started from weights that were trained on
    them. `begun`: folder of a run that is taken up, which leaves out what it left out at first."""
    processes, seed = distributed.world_size(), config.train.seed
    share = Share(distributed.rank(), processes)
    if given.dataloaders is None:
        samples, seen = scored(images.split(config.data), config, begun)
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
            f" ({processes} processes x accumulate={config.train.accumulate})"
        )
    for split, size in data.dataset_sizes.items():
        if size < processes:
            raise OptionError(f"the {split} split has {size} images, too few for {processes} processes")
    return data, seen


def scored(samples: Samples, config: RunConfig, begun: Path | None) -> tuple[Samples, tuple[str, ...]]:
    """Leave out what the starts of a new run were trained on, or what the run in `begun` left out when it began."""
    if begun is None:
        return without_seen(samples, starts_of(config.model), allow=config.data.allow_seen)
    said = tuple(seen_lines(begun))
    return as_begun(samples, begun).note(*said), said


def head_of(model: nn.Module) -> nn.Module:
    """Return the trained end of a model, features -> logits, sharing its parameters."""
    head = parts(model).head
    return head[0] if len(head) == 1 else nn.Sequential(*head)


def schedule(setup: RunSetup, *, shape: str | None = None) -> Callable[[int], float]:
    """Return the learning rate as a function of the step, of the run's own shape or of another `shape`."""
    config = setup.config.train
    assert config.lr is not None
    return learning_rate(
        peak=config.lr,
        schedule=shape or config.schedule,
        total_steps=max(1, setup.total_steps),
        warmup_steps=setup.warmup_steps,
        steps_per_epoch=setup.steps_per_epoch,
    )


def training_loss(setup: RunSetup) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the cross-entropy of training, smoothed and weighted by class if asked. Validation uses the plain one."""
    smoothing = setup.config.train.label_smoothing or 0.0
    if setup.config.data.balance != "loss":
        return nn.CrossEntropyLoss(label_smoothing=smoothing)
    weight = class_weights(setup.data).to(setup.device)

    def weighted(logits: Tensor, targets: Tensor) -> Tensor:
        # torch's own mean divides by the weights in the batch, so micro-batches would not add up to their batch.
        total = nn.functional.cross_entropy(logits, targets, weight, label_smoothing=smoothing, reduction="sum")
        return total / len(logits)

    return weighted


def images_of_step(setup: RunSetup, iteration: int) -> int:
    """Count the images of all processes in a step, from 1 on; the last step of an epoch may have fewer."""
    sampler = batch_sampler(setup.data.dataloaders["train"])
    earlier = (iteration - 1) % setup.steps_per_epoch * sampler.batch_size
    return min(sampler.batch_size, sampler.length - earlier)


def training_forward(setup: RunSetup) -> nn.Module:
    """Return the model as the training step calls it: itself, or wrapped for several processes, or compiled."""
    if setup.on_features:
        return setup.model
    # A Hugging Face model may bring a part that its classifier does not use.
    skips = setup.config.model.name.startswith(HF_PREFIX)
    forward = distributed.wrap(setup.model, setup.device, may_skip_parameters=skips)
    return torch.compile(forward, dynamic=False) if setup.config.train.compile else forward  # type: ignore[return-value]


def trainer_of(setup: RunSetup) -> Trainer:
    train = setup.config.train
    alphas = (train.mixup or 0.0, train.cutmix or 0.0)
    mix = BatchMix(len(setup.data.class_names), *alphas) if any(alphas) else None
    options = StepOptions(
        setup.amp_dtype,
        train.clip_norm,
        train.seed,
        mix,
        micro_batches=train.accumulate,
        step_images=partial(images_of_step, setup),
        # A processor has measured a step when it has taken it; a GPU would have to be waited for.
        look_every=(train.log_every or 1) if setup.device.type == "cuda" else 1,
    )
    return create_trainer(
        setup.model,
        setup.optimizer,
        training_loss(setup),
        setup.device,
        options=options,
        forward=training_forward(setup),
    )
