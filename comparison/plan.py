"""The plan of a comparison: everything decided before the first step. Nothing is trained here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from common.errors import OptionError
from comparison.runs import arm_names, slugs
from datasets.bundle import TRAIN, VAL
from datasets.config import DataConfig
from datasets.open import OpenedImages
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
from vit.anatomy import count_parameters
from vit.config import EMBEDDED_WEIGHTS
from vit.factory import local_pretrained_models

SMALL_GRID = (3e-4, 1e-3, 3e-3)
"""Peak learning rates if all models are small; spaced by about 3, around what they usually take."""
LARGE_GRID = (5e-5, 2e-4, 1e-3)
"""Peak learning rates if a model is large: from fine-tuning a ViT-B to training a small ViT from scratch."""

TUNING = 3600.0
"""Seconds of additional runs up to which `--tune-lr auto` tunes."""

REPORT = 10.0
"""Seconds for the tables, figures and pages at the end."""

NONE = type(None)
SETTLED = {"epochs": list, "grid": list, "why_not_tuned": str, "threads": (int, NONE), "seconds": (list, NONE)}
"""What compare.json holds of a comparison that has begun."""

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
    parameters: int
    pace: Pace | None
    """None: not measured, as the runs compute elsewhere, or the comparison goes on as it was planned."""

    @property
    def keeps_features(self) -> bool:
        return self.resolved.train.cache_features == "on"


@dataclass(frozen=True)
class ComparisonPlan:
    """A request with everything decided: split, arms, budgets, rates, folder."""

    request: Request
    opened: OpenedImages
    split: SharedSplit
    arms: tuple[PlannedArm, ...]
    train_images: tuple[int, ...]
    """Training images of each condition."""
    epochs: tuple[float, ...]
    """Epochs of each condition, the same for all arms."""
    select: str
    sharing: Sharing
    slurm: dict[str, str] | None
    """Options of the jobs that train; None: this machine does."""
    seen: Sequence[str]
    """Lines about test images that an arm's weights were trained on."""
    folder: Path
    continued: bool
    """The folder is that of the same comparison, which was stopped."""
    until: float | None
    """Deadline by `time.monotonic`."""
    grid: tuple[float, ...] = ()
    """Learning rates that each arm tries; none: they are not tuned."""
    why_not_tuned: str = ""
    seconds: tuple[tuple[float, ...], ...] | None = None
    """Expected seconds of a run, by condition and arm; None: not measured."""

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

    @property
    def where(self) -> str:
        """Say where the runs compute."""
        device = self.request.base.train.device
        return "in Slurm's queue" if self.slurm is not None else f"on {defaults.resolve_device(device)}"

    @property
    def all_seconds(self) -> float:
        """Return the expected seconds of all runs, one after the other; 0: not measured."""
        return sum(self.seconds[place][arm] * self.runs_of(self.arms[arm]) for place, arm in self.cells if self.seconds)

    @property
    def settled(self) -> dict[str, Any]:
        """Return what a comparison continues with: `--minutes`, or another machine, would find other values."""
        names = ("epochs", "grid", "why_not_tuned", "seconds")
        return {name: getattr(self, name) for name in names} | {"threads": self.sharing.threads}


def plan_comparison(
    request: Request, *, jobs: int | None = None, slurm: dict[str, str] | None = None
) -> ComparisonPlan:
    """Decide everything before the first step.

    `jobs`: runs side by side; None: as many as this machine carries. `slurm`: they are jobs of its queue, about whose
    machines nothing is known here. Raises OptionError, DataError, WeightsError: before anything is written."""
    refuse_what_cannot_be_shared(request, queued=slurm is not None)
    until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
    data, train, opened = request.base.data, request.base.train, OpenedImages()
    split = shared_split(replace(data, labels_per_class=None, fraction=None), opened)
    labels = split.samples.labels[(split.samples.splits == TRAIN) | (split.samples.splits == VAL)]
    folder, continued = find_folder(request)
    shared = sharing(train.device, fewest_runs(request), jobs=jobs, threads=train.threads, slurm=slurm)
    measured_with = None if continued or slurm is not None else shared.threads or torch.get_num_threads()
    arms = build_arms(request.arms, opened, measured_with=measured_with, queued=slurm is not None)
    starts = dict.fromkeys(start for arm in arms for start in starts_of(arm.resolved.model))
    unseen, seen = without_seen(split.samples, starts, allow=data.allow_seen)
    subsets = [subset_training(split.samples, with_labels(data, count)) for count in request.labels]
    train_images = tuple(len(subset.indices("train")) for subset in subsets)
    plan = ComparisonPlan(
        request=request,
        opened=opened,
        split=replace(split, samples=unseen),
        arms=arms,
        train_images=train_images,
        epochs=tuple(shared_epochs(request, arms, place, count) for place, count in enumerate(train_images)),
        select=defaults.resolve_select(train.select, labels),
        sharing=shared,
        slurm=slurm,
        seen=seen,
        folder=folder,
        continued=continued,
        until=until,
    )
    return settle(plan, jobs=jobs)


def settle(plan: ComparisonPlan, *, jobs: int | None) -> ComparisonPlan:
    """Choose learning rates, threads and, for `--minutes`, epochs.

    A comparison that goes on keeps what it began with."""
    train, threads = plan.request.base.train, plan.request.base.train.threads
    begun = read_if_whole(plan.folder / "compare.json", **SETTLED) if plan.continued else None
    if begun is not None:
        threads, seconds = threads or begun["threads"], begun["seconds"]
        known = {"seconds": seconds and tuple(map(tuple, seconds)), "why_not_tuned": begun["why_not_tuned"]}
        plan = replace(plan, epochs=tuple(begun["epochs"]), grid=tuple(begun["grid"]), **known)
    else:
        grid, why_not_tuned = rates_to_try(plan)
        plan = replace(plan, grid=grid, why_not_tuned=why_not_tuned)
    shared = sharing(train.device, plan.number_of_runs, jobs=jobs, threads=threads, slurm=plan.slurm)
    plan = replace(plan, sharing=shared)
    if begun is not None:
        return plan
    if plan.until is not None:
        plan = replace(plan, epochs=epochs_within(plan, plan.until - time.monotonic() - REPORT))
    return replace(plan, seconds=expected_seconds(plan))


def fewest_runs(request: Request) -> int:
    """Count the runs without rates that only `--tune-lr auto` would try."""
    rates = request.tune_lr if isinstance(request.tune_lr, tuple) else SMALL_GRID if request.tune_lr == "on" else (0.0,)
    tried = sum(len(rates) if arm.train.lr is None else 1 for arm in request.arms)
    return (tried + len(request.arms) * (request.seeds - 1)) * len(request.labels)


def shared_epochs(request: Request, arms: Sequence[PlannedArm], condition: int, train_images: int) -> int | float:
    """Return the epochs of every arm: `--epochs`, or those of `--images-seen`, or the longest default of the arms."""
    if request.base.train.epochs is not None:
        return request.base.train.epochs
    if seen := request.images_seen:
        return max(1, round(seen[condition % len(seen)] / train_images))
    rows = [defaults.lookup(arm.resolved) for arm in arms]
    images_seen, max_epochs = max(row.images_seen for row in rows), max(row.max_epochs for row in rows)
    return defaults.default_epochs(images_seen, max_epochs, train_images=train_images)


def rates_to_try(plan: ComparisonPlan) -> tuple[tuple[float, ...], str]:
    """Return the rates that each arm tries; none, and why, where none are tried."""
    wanted = plan.request.tune_lr
    if wanted == "off":
        return (), "--tune-lr off"
    if not isinstance(wanted, str):
        return tuple(sorted({*wanted})), ""
    names = [arm.resolved.model.name for arm in plan.arms]
    grid = LARGE_GRID if any(defaults.model_family(name) != name for name in names) else SMALL_GRID
    if wanted == "on":
        return grid, ""
    tuned, alone = replace(plan, grid=grid), replace(plan, grid=())
    tuned, alone = (replace(each, seconds=expected_seconds(each)) for each in (tuned, alone))
    if tuned.seconds is None:
        return (), "not measured: the runs compute elsewhere"
    more = (tuned.all_seconds - alone.all_seconds) / plan.sharing.jobs
    if more <= TUNING:
        return grid, ""
    return (), f"the additional runs take {console.duration(more)}, the limit of --tune-lr auto is an hour"


def build_arms(
    configs: Sequence[RunConfig], opened: OpenedImages, *, measured_with: int | None, queued: bool
) -> tuple[PlannedArm, ...]:
    """Build every arm once, so that faults show before any of them trains.

    Each is measured with so many threads, if any, and let go of before the next is built. Those that are `queued` need
    no device of this machine."""
    found = []
    for config in configs:
        train = {"device": "cpu", "compile": False} if queued else {"threads": measured_with or config.train.threads}
        # Which images are scored is decided for all arms together.
        setup = prepare(config.changed(data={"allow_seen": True}, train=train), opened=opened)
        found.append((setup.config, count_parameters(setup.model)[0], measure(setup) if measured_with else None))
        del setup
    names = arm_names([to_dict(resolved) for resolved, *_ in found])
    twins = sorted(name for name in names if names.count(name) > 1)
    if twins:
        raise OptionError(f"two arms are the same: {twins[0]}; each --arms must differ from the others")
    return tuple(
        PlannedArm(name, slug, config, *rest)
        for name, slug, config, rest in zip(names, slugs(names), configs, found, strict=True)
    )


def refuse_what_cannot_be_shared(request: Request, *, queued: bool = False) -> None:
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
    if queued and request.minutes is not None:
        raise OptionError("--minutes measures this machine, and --on slurm computes on others: give --epochs instead")
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


def expected_seconds(plan: ComparisonPlan) -> tuple[tuple[float, ...], ...] | None:
    """Return the seconds of a run, by condition and arm; None: not measured."""
    paces = [arm.pace for arm in plan.arms if arm.pace is not None]
    if len(paces) < len(plan.arms):
        return None
    held_out = {split: plan.split.size(split) for split in ("val", "test")}
    return tuple(
        tuple(
            seconds_of_run(pace._replace(sizes={"train": images, **held_out}), epochs, plan.runs_of(arm), arm)
            for pace, arm in zip(paces, plan.arms, strict=True)
        )
        for images, epochs in zip(plan.train_images, plan.epochs, strict=True)
    )


def seconds_of_run(pace: Pace, epochs: float, runs: int, arm: PlannedArm) -> float:
    """Return the mean seconds of some runs of an arm.

    Of those on kept features the first computes them for all."""
    saved = pace.first_reading * (runs - 1) / runs if arm.keeps_features else 0.0
    return pace.seconds(epochs) - saved


def epochs_within(plan: ComparisonPlan, seconds: float) -> tuple[float, ...]:
    """Scale the epochs of all conditions alike, so that all runs together take this many seconds."""
    at_rest = replace(plan, epochs=(0.0,) * len(plan.epochs))
    fixed, whole = (replace(each, seconds=expected_seconds(each)).all_seconds for each in (at_rest, plan))
    scale = max(0.0, seconds * plan.sharing.jobs - fixed) / (whole - fixed)
    return tuple(max(0.1, round(scale * epochs, 2)) for epochs in plan.epochs)
