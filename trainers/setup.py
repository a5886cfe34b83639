"""Setup of a run, built from its options before anything is written, so that whatever can be wrong is wrong here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.errors import CheckpointError
from datasets.bundle import DataBundle
from datasets.loaders import class_weights
from datasets.open import OpenedImages
from datasets.sampling import batch_sampler
from datasets.transforms import BatchMix
from trainers.config import RunConfig
from trainers.engine.engines import StepOptions, Trainer, create_trainer
from trainers.engine.one_image import refuse_batches_of_one, require_outputs
from trainers.engine.optim import OPTIMIZERS, build_optimizer, learning_rate
from trainers.engine.randomness import seed_everything
from trainers.options import defaults
from trainers.resolve import NOTHING_GIVEN, Resolved, UserObjects, resolve
from trainers.storage.run_folder import RunFolder
from trainers.system import distributed
from trainers.system.process_state import AMP_DTYPES
from vit import ImageSpec
from vit.anatomy import anatomy_of, recompute_activations
from vit.config import HF_PREFIX
from vit.freezing import keep_statistics
from vit.param_groups import param_groups


@dataclass
class RunSetup:
    """Resolved options of one run, and everything built from them.

    It is one object from the run's start to its end. Two things may change it: cached features take the place of
    images, and `--minutes` moves the last epoch."""

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
        """Return whether the loaders give cached features, not images."""
        return self.whole is not None

    @property
    def network(self) -> nn.Module:
        """Return the module that turns images into logits."""
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
        """Return the last epoch, of which the run may take a part."""
        return -(-self.total_steps // self.steps_per_epoch)

    @property
    def warmup_steps(self) -> int:
        """Return the steps in which the rate climbs; at least one follows."""
        assert self.config.train.warmup_epochs is not None
        return min(round(self.config.train.warmup_epochs * self.steps_per_epoch), max(self.total_steps - 1, 0))

    @property
    def amp_dtype(self) -> torch.dtype | None:
        return AMP_DTYPES[self.config.train.amp]


def prepare(
    config: RunConfig,
    *,
    checkpoint: dict[str, Any] | None = None,
    run: RunFolder | None = None,
    given: UserObjects = NOTHING_GIVEN,
    opened: OpenedImages | None = None,
) -> RunSetup:
    """Resolve the options, read the data, build model and optimizer, but for what is `given`.

    With the checkpoint of a `run`, its weights and preprocessing are used, and its images are split
    as it split them; no initial weights are looked for. `opened`: images that the command has opened already.
    Raises OptionError: options that cannot work. DataError, WeightsError, FileNotFoundError: data or weights that
    cannot."""
    opened = opened or OpenedImages()
    known = resolve(config, checkpoint=checkpoint, run=run, given=given, opened=opened)
    train, data, device = known.config.train, known.data, known.device
    model = build(known, given)
    if checkpoint is not None:
        try:
            model.load_state_dict(checkpoint["model"])
        except RuntimeError as error:
            classes = f"of the {len(data.class_names)} classes that its images have now"
            raise CheckpointError(f"the weights of the run do not fit its model {classes}: bring them back") from error
    if train.start_head == "probe" and defaults.model_family(known.config.model.name).startswith("conv"):
        keep_statistics(model)
    refuse_batches_of_one(model, data, device, accumulate=train.accumulate)
    if train.checkpoint_activations:
        recompute_activations(list(anatomy_of(model).blocks))
    return RunSetup(known.config, known.spec, data, model, optimizer_of(model, known.config), device, seen=known.seen)


def build(known: Resolved, given: UserObjects) -> nn.Module:
    """Build the model from the seed, or take a program's own.

    Images and model that are not of one kind are tried."""
    names, name = known.data.class_names, known.config.model.name
    if given.model is not None:
        require_outputs(given.model.to(known.device), known.data, known.device, name)
    seed_everything(known.config.train.seed)
    if known.blueprint is None:
        assert given.model is not None
        return given.model
    model = known.blueprint.build(num_classes=len(names), class_names=names).to(known.device)
    if given.dataloaders is not None:
        require_outputs(model, known.data, known.device, name)
    return model


def optimizer_of(model: nn.Module, config: RunConfig) -> Optimizer:
    train = config.train
    assert train.lr is not None
    assert train.weight_decay is not None
    matrices = OPTIMIZERS[train.optimizer].matrices and config.model.trainable != "head"
    groups = param_groups(model, weight_decay=train.weight_decay, layer_decay=train.layer_decay, matrices=matrices)
    return build_optimizer(groups, name=train.optimizer, lr=train.lr)


def head_of(model: nn.Module) -> nn.Module:
    """Return the trained end of a model, features -> logits, sharing its parameters."""
    head = anatomy_of(model).head
    return head[0] if len(head) == 1 else nn.Sequential(*head)


def schedule(setup: RunSetup, *, shape: str | None = None) -> Callable[[int], float]:
    """Return the learning rate as a function of the step.

    `shape`: another one than the run's own."""
    config = setup.config.train
    assert config.lr is not None
    return learning_rate(
        peak=config.lr,
        schedule=shape or config.schedule,
        total_steps=max(1, setup.total_steps),
        warmup_steps=setup.warmup_steps,
    )


def training_loss(setup: RunSetup) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the cross-entropy of training, smoothed and weighted by class if asked.

    Validation uses the plain one."""
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
    """Count the images of all processes in a step, from 1 on.

    The last step of an epoch may have fewer."""
    sampler = batch_sampler(setup.data.dataloaders["train"])
    earlier = (iteration - 1) % setup.steps_per_epoch * sampler.batch_size
    return min(sampler.batch_size, sampler.length - earlier)


def training_forward(setup: RunSetup) -> nn.Module:
    """Return the model as steps call it: itself, wrapped for processes, or compiled."""
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
