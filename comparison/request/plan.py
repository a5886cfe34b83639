"""A comparison before its first step: what was asked, and everything that follows from it. Nothing is trained here."""

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
from datasets.shared_split import shared_split
from datasets.split import subset_training
from trainers.budget.pace import Pace
from trainers.budget.sharing import sharing
from trainers.config import RunConfig, to_dict
from trainers.options import defaults
from trainers.reporting.console import say
from trainers.resume import is_finished
from trainers.seen import starts_of, without_seen
from trainers.setup import prepare
from trainers.storage.data_folder import data_folder
from trainers.storage.run_folder import free_folder, read_if_whole, tuning, write_json
from trainers.system.distributed import world_size
from vit.summary import summarise

SMALL_GRID = (3e-4, 1e-3, 3e-3)
"""Peak rates every arm tries where all models are small; spaced by about 3, around what they usually take."""
LARGE_GRID = (5e-5, 2e-4, 1e-3)
"""Learning rates where an arm's model is large: from fine-tuning a pretrained ViT-B to training a small one from
scratch."""

TUNING_FLOPS = {"cpu": 1e15, "mps": 1e16, "cuda": 3e17}
"""`--tune-lr auto` tunes when the additional runs take no more than this: about an hour on a device of the kind."""


@dataclass(frozen=True)
class Request:
    """A request for a comparison. `arms` and `base` carry everything a run takes."""

    base: RunConfig
    arms: tuple[RunConfig, ...]
    seeds: int = 3
    labels: tuple[int | None, ...] = (None,)
    """Labels per class of each condition; None: all training images."""
    images_seen: tuple[int, ...] = ()
    """Images that every run sees; one number, or one for each condition."""
    tune_lr: Literal["auto", "on", "off"] = "auto"
    lr_grid: tuple[float, ...] | None = None
    minutes: float | None = None
    """Time for all runs together, which sets their epochs."""


@dataclass(frozen=True)
class PlannedArm:
    """One contestant: all of its options but seed, budget and tuned rate."""

    name: str
    slug: str
    """The name as a part of a folder's name."""
    config: RunConfig
    """Options as they were asked for."""
    resolved: RunConfig
    """Options with every default filled in, as a run by itself would have it."""
    flops: float
    """Operations of one image's forward pass."""
    parameters: int
    trainable: int


class ComparisonPlan:
    """A request with everything decided before the first step: split, arms, budgets, rates, folder."""

    def __init__(self, request: Request, *, jobs: int | None = None) -> None:
        """`jobs`: runs at a time; None: one for each processor or GPU."""
        refuse_what_cannot_be_shared(request)
        self.request = request
        self.until = None if request.minutes is None else time.monotonic() + 60 * request.minutes
        """Deadline of everything, by `time.monotonic`."""
        self.paces: list[Pace] | None = None
        """Seconds that the parts of each arm's runs take, where that was measured."""
        all_labels = replace(request.base.data, labels_per_class=None, fraction=None)
        self.images = OpenedImages()
        self.split = shared_split(all_labels, self.images)
        samples = self.split.samples
        self.select = defaults.resolve_select(
            request.base.train.select, samples.labels[(samples.splits == TRAIN) | (samples.splits == VAL)]
        )
        self.folder, self.continued = find_folder(request)
        self.arms = measure_arms(request.arms, self.images)
        starts = dict.fromkeys(start for arm in self.arms for start in starts_of(arm.resolved.model))
        unseen, self.seen = without_seen(samples, starts, allow=request.base.data.allow_seen)
        self.split = replace(self.split, samples=unseen)
        subsets = [subset_training(samples, with_labels(request.base.data, labels)) for labels in request.labels]
        self.train_images = [len(subset.indices("train")) for subset in subsets]
        # A comparison goes on as it was begun: `--minutes` and another machine would find something else.
        settled = (read_if_whole(self.folder / "compare.json") or {}) if self.continued else {}
        first = request.base.train.seed
        self.seeds = range(first, first + request.seeds)
        self.epochs = settled.get("epochs") or [*map(self._shared_epochs, range(len(request.labels)))]
        # The rates every arm tries are the same for all of them.
        large = any(defaults.model_family(name) != name for name in (arm.resolved.model.name for arm in self.arms))
        self.grid = tuple(sorted(set(request.lr_grid or (LARGE_GRID if large else SMALL_GRID))))
        self.device = defaults.resolve_device(request.base.train.device)
        self.tuned, self.why_tuned = self._tunes()
        threads = request.base.train.threads
        if self.continued:
            threads = threads or settled.get("threads", torch.get_num_threads())
        self.sharing = sharing(self.device, self.number_of_runs, jobs=jobs, threads=threads)

    def write_settled(self, folder: Path) -> None:
        """Write what a stopped comparison needs to continue."""
        settled = {"epochs": self.epochs, "threads": self.sharing.threads}
        write_json(folder / "compare.json", {"status": "running", "requested": to_dict(self.request), **settled})

    @property
    def split_file(self) -> Path:
        return self.folder / "split.csv"

    def rates(self, arm: PlannedArm) -> tuple[float | None, ...]:
        """The rates an arm tries; None: its default. A rate that a person gave is not looked for."""
        if arm.config.train.lr is not None or not self.tuned:
            return (arm.config.train.lr,)
        return self.grid

    def searches(self, arm: PlannedArm) -> bool:
        """Return whether the rate of an arm was to be chosen of several."""
        return self.tuned and arm.config.train.lr is None and len(self.grid) > 1

    def runs_of(self, arm: PlannedArm) -> int:
        """Return the runs under one condition: every rate at the first seed, one rate at the others."""
        return len(self.rates(arm)) + len(self.seeds) - 1

    @property
    def number_of_runs(self) -> int:
        return sum(self.runs_of(arm) for arm in self.arms) * len(self.request.labels)

    def finished_runs(self, place: int, arm: PlannedArm) -> int:
        """Count the runs of an arm under a condition that an earlier start of this comparison has finished."""
        below = Path(self.folder.name, arm.slug, str(self.request.labels[place] or "all"))
        outputs, source = (arm.config.output, tuning(arm.config.output)), arm.config.data.source
        runs = [run for output in outputs for run in (data_folder(output, source) / below).glob("s*")]
        return sum(map(is_finished, runs)) if self.continued else 0

    def work(self, arm: PlannedArm, condition: int) -> float:
        """Floating-point operations of one run: three forward passes a training image, one a validation image; of a
        frozen backbone whose features are kept one of each in all."""
        train, val = self.train_images[condition], self.split.size("val")
        if arm.resolved.train.cache_features == "on":
            return arm.flops * (train + val)
        return arm.flops * self.epochs[condition] * (3 * train + val)

    @property
    def all_work(self) -> float:
        conditions = range(len(self.request.labels))
        return sum(self.work(arm, i) * self.runs_of(arm) for i in conditions for arm in self.arms)

    def _shared_epochs(self, condition: int) -> int | float:
        """Epochs every arm gets: `--epochs`, or those in which it sees `--images-seen`, by default as many as the arm
        that asks for most."""
        train_images, seen = self.train_images[condition], self.request.images_seen
        if self.request.base.train.epochs is not None:
            return self.request.base.train.epochs
        if seen:
            return max(1, round(seen[condition % len(seen)] / train_images))
        rows = [defaults.lookup(arm.resolved) for arm in self.arms]
        images_seen, max_epochs = max(row.images_seen for row in rows), max(row.max_epochs for row in rows)
        return defaults.default_epochs(images_seen, max_epochs, train_images=train_images)

    def _tunes(self) -> tuple[bool, str]:
        """Return whether each arm's rate is searched, and why.

        The cost of the additional runs: a training step is three forward passes, a step on cached features nothing.
        """
        if self.request.tune_lr != "auto":
            return self.request.tune_lr == "on", f"--tune-lr {self.request.tune_lr}"
        searched = [arm for arm in self.arms if arm.config.train.lr is None and arm.config.model.trainable != "head"]
        images_seen = sum(epochs * images for epochs, images in zip(self.epochs, self.train_images, strict=True))
        cost = sum(3 * arm.flops * images_seen for arm in searched) * (len(self.grid) - 1)
        limit = TUNING_FLOPS[self.device.split(":")[0]]
        return cost <= limit, (
            f"the additional runs take {cost:.1e} floating-point operations, the limit of --tune-lr auto is {limit:.0e}"
        )

    def run_config(self, arm: PlannedArm, condition: int, *, seed: int, lr: float | None) -> RunConfig:
        """The options of one run. Its name says which it is, so that a stopped comparison finds it again."""
        labels = self.request.labels[condition]
        name = f"{self.folder.name}/{arm.slug}/{labels or 'all'}/s{seed}"
        config, output = arm.config, arm.config.output
        if self.searches(arm) and seed == self.seeds[0]:
            name, output = f"{name}_lr{lr:g}", tuning(output)
        pictures = config.output.tb if seed == self.seeds[0] else "scalars"  # those of every seed say the same
        budget = {"epochs": self.epochs[condition], "threads": self.sharing.threads}
        return replace(
            config,
            data=replace(with_labels(config.data, labels), split=self.split_file),
            train=replace(config.train, seed=seed, lr=lr, select=self.select, **budget),
            output=replace(output, run_name=name, tb=pictures),
        )


def measure_arms(configs: Sequence[RunConfig], images: OpenedImages) -> tuple[PlannedArm, ...]:
    """Build every arm once, so that whatever is wrong with one shows before any of them trains."""
    # Which images are scored is decided for all arms together.
    jobs = [prepare(config.changed(data={"allow_seen": True}), images=images) for config in configs]
    names = arm_names([to_dict(setup.config) for setup in jobs])
    twins = sorted(name for name in names if names.count(name) > 1)
    if twins:
        raise OptionError(f"two arms are the same: {twins[0]}; each --arms must differ from the others")
    arms = []
    for config, setup, name, slug in zip(configs, jobs, names, slugs(names), strict=True):
        summary = summarise(setup.model, in_channels=setup.spec.in_channels, image_size=setup.spec.image_size)
        size = (float(summary.flops), summary.parameters, summary.trainable)
        arms.append(PlannedArm(name, slug, config, setup.config, *size))
    return tuple(arms)


def refuse_what_cannot_be_shared(request: Request) -> None:
    """Options that make no sense for several runs on one split."""
    if len(request.arms) < 2:
        raise OptionError(f"a comparison needs two arms or more, found {len(request.arms)}; see --arms")
    if request.base.data.folds is not None:
        raise OptionError("compare scores all arms on one test split; leave out --folds")
    if request.labels != (None,) and request.base.data.fraction is not None:
        raise OptionError("--fraction and --labels-per-class both choose the training images; give one of them")
    if len(request.images_seen) not in (0, 1, len(request.labels)):
        raise OptionError(
            f"--images-seen has {len(request.images_seen)} numbers, --labels-per-class {len(request.labels)}: give one "
            "for all of them, or one for each"
        )
    for option, given in (
        ("--max-minutes", request.base.train.max_minutes is not None),
        ("--patience", request.base.train.patience > 0),
    ):
        if given:
            raise OptionError(f"compare gives every arm the same images to see, in ordinary runs; leave out {option}")
    if world_size() > 1:
        raise OptionError("compare starts the processes that it needs (--jobs); start it without torchrun")


def with_labels(data: DataConfig, labels: int | None) -> DataConfig:
    """The data with so many labels per class; with all of them `fraction` still applies."""
    return data if labels is None else replace(data, labels_per_class=labels)


def find_folder(request: Request) -> tuple[Path, bool]:
    """The folder of the same comparison that was stopped, or a new one; and whether it was there."""
    output, data = request.base.output, request.base.data.source
    requested = to_dict(request)  # the same again means the same comparison
    for path in sorted(data_folder(output, data).glob("[!.]*/compare.json"), reverse=True):
        known = read_if_whole(path) or {}
        try:
            if known["status"] != "finished" and known["requested"] == requested:
                return path.parent, True
        except (KeyError, TypeError, AttributeError, ValueError):
            say(f"note: {path} is damaged: whether this comparison was begun there is not known")
    return free_folder(output, data, "compare"), False
