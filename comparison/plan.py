"""The plan of a comparison: everything decided before the first step. Nothing is trained here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from common.errors import OptionError
from comparison.names import arm_names, slugs
from datasets.bundle import TRAIN, VAL
from datasets.config import DataConfig
from datasets.opened import OpenedImages
from datasets.shared_split import SharedSplit, shared_split
from datasets.split import subset_training
from trainers.budget.pace import Pace, measure
from trainers.config import RunConfig, to_dict
from trainers.multirun.sharing import Sharing, sharing
from trainers.options import defaults
from trainers.reporting import console
from trainers.seen import starts_of, without_seen
from trainers.setup import prepare
from trainers.storage.data_folder import data_folder, free_folder
from trainers.storage.run_folder import read_if_whole
from trainers.system.distributed import world_size
from vit.config import EMBEDDED_WEIGHTS
from vit.factory import local_pretrained_models
from vit.summary import summarise

SMALL_GRID = (3e-4, 1e-3, 3e-3)
"""Peak learning rates if all models are small; spaced by about 3, around what they usually take."""
LARGE_GRID = (5e-5, 2e-4, 1e-3)
"""Peak learning rates if a model is large: from fine-tuning a ViT-B to training a small ViT from scratch."""

TUNING_FLOPS = {"cpu": 1e15, "mps": 1e16, "cuda": 3e17}
"""Operations of additional runs up to which `--tune-lr auto` tunes: about an hour on a device of the kind."""

WORTH_MEASURING = 1e13
"""Operations of all runs from which their pace is measured."""

REPORT = 10.0
"""Seconds for the tables, figures and pages at the end."""

Cell = tuple[int, int]
"""Places of a condition and of an arm in the plan."""


@dataclass(frozen=True)
class Request:
    """A request for a comparison. `arms` and `base` hold all options of a run."""

    base: RunConfig
    arms: tuple[RunConfig, ...]
    seeds: int = 3
    labels: tuple[int | None, ...] = (None,)
    """Labels per class of each condition; None: all training images."""
    images_seen: tuple[int, ...] = ()
    """Training images that every run sees; one number, or one for each condition."""
    tune_lr: Literal["auto", "on", "off"] | tuple[float, ...] = "auto"
    """Whether each arm tries several learning rates, or the rates to try."""
    minutes: float | None = None
    """Time for all runs together, which sets their epochs."""


def default_arms(base: RunConfig) -> tuple[RunConfig, ...]:
    """Return a small ViT from scratch and pretrained; for photographs also the installed ImageNet models, frozen."""
    if base.data.source in defaults.SMALL_IMAGES:
        models = [{"name": "vit_nano_8", "weights": weights} for weights in ("none", "fashion_mnist")]
    else:
        models = [{"name": "vit_stem_16", "weights": weights} for weights in ("none", "tiny_imagenet")]
        references = {
            model.name: model.weights for model in local_pretrained_models() if model.weights not in EMBEDDED_WEIGHTS
        }
        models += [{"name": name, "weights": str(found), "trainable": "head"} for name, found in references.items()]
    return tuple(base.changed(model=model) for model in models)


@dataclass(frozen=True)
class PlannedArm:
    """One arm: all of its options but seed, budget and tuned learning rate."""

    name: str
    slug: str
    """The name as a part of a folder's name."""
    config: RunConfig
    """Options as they were given."""
    resolved: RunConfig
    """Options with every default filled in, as in a run of its own."""
    flops: float
    """Operations of one image's forward pass."""
    parameters: int

    @property
    def keeps_features(self) -> bool:
        return self.resolved.train.cache_features == "on"


@dataclass(frozen=True)
class ComparisonPlan:
    """A request with everything decided: split, arms, budgets, rates, folder."""

    request: Request
    images: OpenedImages
    split: SharedSplit
    arms: tuple[PlannedArm, ...]
    train_images: tuple[int, ...]
    """Training images of each condition."""
    epochs: tuple[float, ...]
    """Epochs of each condition, the same for all arms."""
    select: str
    grid: tuple[float, ...]
    """Learning rates that each arm tries; none: they are not tuned."""
    why_not_tuned: str
    device: str
    sharing: Sharing
    seen: Sequence[str]
    """Lines about test images that an arm's weights were trained on."""
    folder: Path
    continued: bool
    """The folder is that of the same comparison, which was stopped."""
    until: float | None
    """Deadline by `time.monotonic`."""
    seconds: float | None = None
    """Expected time of all runs, where it was measured."""

    @property
    def seeds(self) -> range:
        return range(self.request.base.train.seed, self.request.base.train.seed + self.request.seeds)

    @property
    def split_file(self) -> Path:
        return self.folder / "split.csv"

    @property
    def cells(self) -> list[Cell]:
        return [(place, number) for place in range(len(self.request.labels)) for number in range(len(self.arms))]

    def rates(self, arm: PlannedArm) -> tuple[float | None, ...]:
        """Return the rates that an arm tries: a rate that was given is not tuned. None: the default."""
        lr = arm.config.train.lr
        return (lr,) if lr is not None or not self.grid else self.grid

    def runs_of(self, arm: PlannedArm) -> int:
        """Count the runs under one condition: every rate at the first seed, one rate at the others."""
        return len(self.rates(arm)) + len(self.seeds) - 1

    @property
    def number_of_runs(self) -> int:
        return sum(map(self.runs_of, self.arms)) * len(self.request.labels)

    def work(self, cell: Cell) -> float:
        """Count the operations of a run: three forward passes a training image, one a validation image.

        A frozen backbone whose features are cached passes over all images once.
        """
        (place, number), val = cell, self.split.size("val")
        arm, train = self.arms[number], self.train_images[place]
        return arm.flops * (train + val if arm.keeps_features else self.epochs[place] * (3 * train + val))

    @property
    def all_work(self) -> float:
        return sum(self.work(cell) * self.runs_of(self.arms[cell[1]]) for cell in self.cells)


def plan_comparison(request: Request, *, jobs: int | None = None) -> ComparisonPlan:
    """Decide everything before the first step. `jobs`: runs side by side; None: as many as this machine carries.

    Raises OptionError, DataError, WeightsError: before anything is written.
    """
    refuse_what_cannot_be_shared(request)
    until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    data, train, images = request.base.data, request.base.train, OpenedImages()
    split = shared_split(replace(data, labels_per_class=None, fraction=None), images)
    labels = split.samples.labels[(split.samples.splits == TRAIN) | (split.samples.splits == VAL)]
    folder, continued = find_folder(request)
    arms = measure_arms(request.arms, images)
    starts = dict.fromkeys(start for arm in arms for start in starts_of(arm.resolved.model))
    unseen, seen = without_seen(split.samples, starts, allow=data.allow_seen)
    subsets = [subset_training(split.samples, with_labels(data, count)) for count in request.labels]
    train_images = tuple(len(subset.indices("train")) for subset in subsets)
    split = replace(split, samples=unseen)
    # A comparison continues with the epochs it began with: `--minutes` and another machine would find others.
    settled = (read_if_whole(folder / "compare.json") or {}) if continued else {}
    epochs = settled.get("epochs") or [shared_epochs(request, arms, i, n) for i, n in enumerate(train_images)]
    device = defaults.resolve_device(train.device)
    images_seen = sum(passes * count for passes, count in zip(epochs, train_images, strict=True))
    grid, why_not_tuned = rates_to_try(request.tune_lr, arms, images_seen, device)
    threads = train.threads or settled.get("threads", torch.get_num_threads()) if continued else train.threads
    plan = ComparisonPlan(
        request=request,
        images=images,
        split=split,
        arms=arms,
        train_images=train_images,
        epochs=tuple(epochs),
        select=defaults.resolve_select(train.select, labels),
        grid=grid,
        why_not_tuned=why_not_tuned,
        device=device,
        sharing=Sharing(1, threads),
        seen=seen,
        folder=folder,
        continued=continued,
        until=until,
    )
    return replace(plan, sharing=sharing(device, plan.number_of_runs, jobs=jobs, threads=threads))


def shared_epochs(request: Request, arms: Sequence[PlannedArm], condition: int, train_images: int) -> int | float:
    """Return the epochs of every arm: `--epochs`, or those of `--images-seen`, or the longest default of the arms."""
    if request.base.train.epochs is not None:
        return request.base.train.epochs
    if seen := request.images_seen:
        return max(1, round(seen[condition % len(seen)] / train_images))
    rows = [defaults.lookup(arm.resolved) for arm in arms]
    images_seen, max_epochs = max(row.images_seen for row in rows), max(row.max_epochs for row in rows)
    return defaults.default_epochs(images_seen, max_epochs, train_images=train_images)


def rates_to_try(
    wanted: str | tuple[float, ...], arms: Sequence[PlannedArm], images_seen: float, device: str
) -> tuple[tuple[float, ...], str]:
    """Return the rates that each arm tries; none, and why, where that is not wanted or would take too long.

    A training step is three forward passes, on kept features none.
    """
    if wanted == "off":
        return (), "--tune-lr off"
    if not isinstance(wanted, str):
        return tuple(sorted({*wanted})), ""
    large = any(defaults.model_family(arm.resolved.model.name) != arm.resolved.model.name for arm in arms)
    grid = LARGE_GRID if large else SMALL_GRID
    searched = [arm for arm in arms if arm.config.train.lr is None and arm.config.model.trainable != "head"]
    cost = sum(3 * arm.flops * images_seen for arm in searched) * (len(grid) - 1)
    limit = TUNING_FLOPS[device.split(":")[0]]
    if wanted == "on" or cost <= limit:
        return grid, ""
    return (), (
        f"the additional runs take {cost:.1e} floating-point operations, the limit of --tune-lr auto is {limit:.0e}"
    )


def measure_arms(configs: Sequence[RunConfig], images: OpenedImages) -> tuple[PlannedArm, ...]:
    """Build every arm once, so that faults show before any of them trains."""
    # Which images are scored is decided for all arms together.
    jobs = [prepare(config.changed(data={"allow_seen": True}), images=images) for config in configs]
    names = arm_names([to_dict(setup.config) for setup in jobs])
    twins = sorted(name for name in names if names.count(name) > 1)
    if twins:
        raise OptionError(f"two arms are the same: {twins[0]}; each --arms must differ from the others")
    arms = []
    for config, setup, name, slug in zip(configs, jobs, names, slugs(names), strict=True):
        summary = summarise(setup.model, in_channels=setup.spec.in_channels, image_size=setup.spec.image_size)
        size = (float(summary.flops), summary.parameters)
        arms.append(PlannedArm(name, slug, config, setup.config, *size))
    return tuple(arms)


def refuse_what_cannot_be_shared(request: Request) -> None:
    """Raise OptionError for options that make no sense for several runs on one split."""
    train, labels = request.base.train, request.labels
    if len(request.arms) < 2:
        raise OptionError(f"a comparison needs two arms or more, found {len(request.arms)}; see --arms")
    if request.base.data.folds is not None:
        raise OptionError("compare scores all arms on one test split; leave out folds")
    if labels != (None,) and request.base.data.fraction is not None:
        raise OptionError("fraction and --labels-per-class both choose the training images; give one of them")
    if len(request.images_seen) not in (0, 1, len(labels)):
        raise OptionError(
            f"--images-seen has {len(request.images_seen)} numbers, --labels-per-class {len(labels)}: give one for all "
            "of them, or one for each"
        )
    if train.patience:
        raise OptionError("compare gives every arm the same images to see, in ordinary runs; leave out patience")
    if request.base.output.tracker is not None:
        from trainers.reporting import trackers

        trackers.require(request.base.output.tracker)
    if world_size() > 1:
        raise OptionError("compare starts the processes that it needs (--jobs); start it without torchrun")


def with_labels(data: DataConfig, labels: int | None) -> DataConfig:
    """Return the data with this many labels per class; None: `fraction` still applies."""
    return data if labels is None else replace(data, labels_per_class=labels)


def find_folder(request: Request) -> tuple[Path, bool]:
    """Return the folder of the same comparison if it was stopped, else a new one; and whether it was there."""
    output, data = request.base.output, request.base.data.source
    begun = {"status": "running", "requested": to_dict(request)}  # the same again means the same comparison
    for path in sorted(data_folder(output, data).glob("[!.]*/compare.json"), reverse=True):
        if begun.items() <= (read_if_whole(path) or {}).items():
            return path.parent, True
    return free_folder(output, data, "compare"), False


def settle_time(plan: ComparisonPlan) -> ComparisonPlan:
    """Measure the pace of the arms if their runs take a while, and fit the epochs to `--minutes`."""
    if plan.continued or (plan.until is None and plan.all_work < WORTH_MEASURING):
        return plan
    if plan.sharing.threads is not None:
        torch.set_num_threads(plan.sharing.threads)
    paces = [pace_of(arm, plan.images) for arm in plan.arms]
    if plan.until is not None:
        seconds = plan.until - time.monotonic() - REPORT
        plan = replace(plan, epochs=epochs_within(plan, paces, seconds * plan.sharing.jobs))
    return replace(plan, seconds=sum(fixed_and_passing(plan, paces)) / plan.sharing.jobs)


def pace_of(arm: PlannedArm, images: OpenedImages) -> Pace:
    with console.quiet():
        return measure(prepare(arm.config.changed(data={"allow_seen": True}), images=images))


def fixed_and_passing(plan: ComparisonPlan, paces: Sequence[Pace]) -> tuple[float, float]:
    """Estimate the seconds of all runs that do not depend on their epochs, and those that do."""
    fixed = passing = 0.0
    for place, number in plan.cells:
        arm, pace, share = plan.arms[number], paces[number], plan.train_images[place] / max(plan.train_images)
        runs = plan.runs_of(arm)
        fixed += runs * pace.fixed
        if arm.keeps_features:  # the first run caches them for the others
            fixed -= (runs - 1) * pace.decoding
        passing += runs * plan.epochs[place] * (share * pace.steps + pace.validation)
    return fixed, passing


def epochs_within(plan: ComparisonPlan, paces: Sequence[Pace], seconds: float) -> tuple[float, ...]:
    """Scale the epochs of all conditions alike, so that all runs together take this many seconds."""
    fixed, passing = fixed_and_passing(plan, paces)
    scale = max(0.0, seconds - fixed) / passing
    return tuple(max(0.1, round(scale * epochs, 2)) for epochs in plan.epochs)
