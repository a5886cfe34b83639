"""Decide everything of a comparison before its first step. Nothing is trained here."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from common.errors import OptionError, report_damage
from comparison.plan import ComparisonPlan, PlannedArm, Request
from comparison.runs import arm_names, slugs
from comparison.shared_split import shared_split
from comparison.timing import REPORT, with_seconds, within
from datasets.built_in import small_model
from datasets.bundle import TRAIN, VAL
from datasets.config import DataConfig
from datasets.open import OpenedImages
from datasets.split import subset_training
from trainers.budget.named import suited
from trainers.budget.networks import LITE0
from trainers.budget.pace import measure
from trainers.budget.plan import without_luck
from trainers.config import RunConfig, to_dict
from trainers.multirun.sharing import sharing
from trainers.options import defaults
from trainers.reporting import console
from trainers.seen import starts_of, without_seen
from trainers.setup import prepare
from trainers.storage.data_folder import data_folder, free_folder
from trainers.storage.run_folder import read_if_whole, read_json
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

NONE = type(None)

SETTLED = {
    "epochs": list, "grid": list, "why_not_tuned": str, "threads": (int, NONE), "seconds": (list, NONE),
    "number_of_seeds": int, "number_of_arms": int, "given_up": list,
}  # fmt: skip
"""What compare.json holds of a comparison that has begun."""


def default_arms(base: RunConfig, *, in_minutes: bool = False) -> tuple[RunConfig, ...]:
    """Return a small ViT from scratch and pretrained; for photographs also more.

    These are the installed ImageNet models, frozen. `in_minutes`: and EfficientNet-Lite0 with its last stages
    trained."""
    if small_model(base.data.source):
        models = starts("vit_nano_8", "fashion_mnist")
    else:
        models = starts("vit_stem_16", "tiny_imagenet")
        found = [model for model in local_pretrained_models() if model.weights not in EMBEDDED_WEIGHTS]
        frozen = [
            {
                "name": model.name,
                "weights": model.weights,
                "image_size": base.model.image_size or model.image_size,
                "trainable": "head",
            }
            for model in {each.name: each for each in reversed(found)}.values()  # of a name the quickest
        ]
        models += [*frozen, *(arm | {"trainable": "last:3"} for arm in frozen if in_minutes and arm["name"] == LITE0)]
    return tuple(base.changed(model=model) for model in models)


def starts(name: str, weights: str) -> list[dict[str, Any]]:
    """List the options of a model from scratch and from these weights."""
    return [{"name": name, "weights": start} for start in ("none", weights)]


def plan_comparison(
    request: Request, *, jobs: int | None = None, slurm: dict[str, str] | None = None, began: float | None = None
) -> ComparisonPlan:
    """Decide everything before the first step.

    `jobs`: runs side by side; None: as many as this machine carries. `slurm`: they are jobs of its queue, about whose
    machines nothing is known here. `began`: the second from which the minutes count. Raises OptionError, DataError,
    WeightsError: before anything is written."""
    refuse_what_cannot_be_shared(request, queued=slurm is not None)
    began = time.monotonic() if began is None else began
    data, train, opened = request.base.data, request.base.train, OpenedImages()
    split = shared_split(replace(data, labels_per_class=None, fraction=None), opened)
    plain = request.base if request.minutes is None else without_luck(request.base)
    labels = split.samples.labels[(split.samples.splits == TRAIN) | (split.samples.splits == VAL)]
    folder, continued = find_folder(request)
    shared = sharing(train.device, fewest_runs(request), jobs=jobs, threads=train.threads, slurm=slurm)
    measured_with = None if continued or slurm is not None else shared.threads or torch.get_num_threads()
    asked = tuple(map(suited, request.arms)) if request.minutes is not None else request.arms
    arms = build_arms(asked, opened, measured_with=measured_with, queued=slurm is not None)
    starts = dict.fromkeys(start for arm in arms for start in starts_of(arm.resolved.model))
    unseen, seen = without_seen(split.samples, starts, allow=data.allow_seen)
    subsets = [subset_training(split.samples, with_labels(data, count)) for count in request.labels]
    train_images = tuple(len(subset.indices("train")) for subset in subsets)
    usual = tuple(shared_epochs(request, arms, place, count) for place, count in enumerate(train_images))
    plan = ComparisonPlan(
        request=request,
        opened=opened,
        split=replace(split, samples=unseen),
        arms=arms,
        train_images=train_images,
        usual_epochs=usual,
        epochs=tuple((epochs,) * len(arms) for epochs in usual),
        number_of_seeds=request.seeds,
        select=defaults.resolve_select(plain.train.select, labels),
        sharing=shared,
        slurm=slurm,
        seen=seen,
        folder=folder,
        continued=continued,
        until=request.minutes and began + 60 * request.minutes - REPORT,
    )
    return settle(plan, jobs=jobs)


def settle(plan: ComparisonPlan, *, jobs: int | None) -> ComparisonPlan:
    """Choose learning rates, threads and, for `--minutes`, epochs.

    A comparison that continues keeps what it began with."""
    train, threads = plan.request.base.train, plan.request.base.train.threads
    if plan.continued:
        plan, threads_then = as_begun(plan)
        threads = threads or threads_then
    else:
        grid, why_not_tuned = rates_to_try(plan)
        plan = replace(plan, grid=grid, why_not_tuned=why_not_tuned)
    shared = sharing(train.device, plan.number_of_runs, jobs=jobs, threads=threads, slurm=plan.slurm)
    plan = replace(plan, sharing=shared)
    if plan.continued:
        return plan
    return with_seconds(plan) if plan.until is None else within(plan, plan.until - time.monotonic())


def as_begun(plan: ComparisonPlan) -> tuple[ComparisonPlan, int | None]:
    """Return the plan with what compare.json says of its beginning, and the threads.

    Raises CheckpointError: compare.json is damaged."""
    path = plan.folder / "compare.json"
    begun = read_json(path, **SETTLED)
    with report_damage(path):
        arms, seconds, epochs = begun["number_of_arms"], begun["seconds"], tuple(map(tuple, begun["epochs"]))
        numbers = [begun["number_of_seeds"], begun["threads"] or 1, *chain(*epochs), *begun["grid"]]
        if not (2 <= arms <= len(plan.arms) and [*map(len, epochs)] == [arms] * len(plan.request.labels)):
            raise ValueError("it is of other models or label budgets")
        if min(numbers) <= 0 or not all(isinstance(what, str) for what in begun["given_up"]):
            raise ValueError("a number is not above 0, or what was given up has no name")
        known = {name: begun[name] for name in ("why_not_tuned", "number_of_seeds")}
        known |= {name: tuple(begun[name]) for name in ("grid", "given_up")}
        plan = replace(plan.with_first(arms), epochs=epochs, seconds=seconds and tuple(seconds), **known)
        if plan.seconds is not None and (len(plan.seconds), plan.all_seconds > 0) != (plan.number_of_runs, True):
            raise ValueError("it has the seconds of other runs")
    return plan, begun["threads"]


def fewest_runs(request: Request) -> int:
    """Count the runs without rates that only `--tune-lr auto` would try."""
    rates = request.tune_lr if isinstance(request.tune_lr, tuple) else SMALL_GRID if request.tune_lr == "on" else (0.0,)
    tried = sum(len(rates) if arm.train.lr is None else 1 for arm in request.arms)
    return (tried + len(request.arms) * (request.seeds - 1)) * len(request.labels)


def shared_epochs(request: Request, arms: Sequence[PlannedArm], condition: int, train_images: int) -> int | float:
    """Return the epochs of every model: `--epochs`, or those of `--images-seen`, or their longest default."""
    if request.base.train.epochs is not None:
        return request.base.train.epochs
    if seen := request.images_seen:
        return max(1, round(seen[condition % len(seen)] / train_images))
    rows = [defaults.lookup(arm.resolved) for arm in arms]
    images_seen, max_epochs = max(row.images_seen for row in rows), max(row.max_epochs for row in rows)
    return defaults.default_epochs(images_seen, max_epochs, train_images=train_images)


def rates_to_try(plan: ComparisonPlan) -> tuple[tuple[float, ...], str]:
    """Return the rates that each model tries; none, and why, where none are tried."""
    wanted = plan.request.tune_lr
    if wanted == "off":
        return (), "--tune-lr off"
    if not isinstance(wanted, str):
        return tuple(sorted({*wanted})), ""
    names = [arm.resolved.model.name for arm in plan.arms]
    grid = LARGE_GRID if any(defaults.model_family(name) != name for name in names) else SMALL_GRID
    if wanted == "on":
        return grid, ""
    if plan.request.minutes is not None:
        return grid, ""
    tuned, alone = replace(plan, grid=grid), replace(plan, grid=())
    tuned, alone = with_seconds(tuned), with_seconds(alone)
    if tuned.seconds is None:
        return (), "not measured: the runs compute elsewhere"
    more = (tuned.all_seconds - alone.all_seconds) / plan.sharing.jobs
    if more <= TUNING:
        return grid, ""
    return (), f"the additional runs take {console.duration(more)}, the limit of --tune-lr auto is an hour"


def build_arms(
    configs: Sequence[RunConfig], opened: OpenedImages, *, measured_with: int | None, queued: bool
) -> tuple[PlannedArm, ...]:
    """Build every model once, so that faults show before any of them trains.

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
        raise OptionError(f"two models are the same: {twins[0]}; each of --arms must differ from the others")
    return tuple(
        PlannedArm(name, slug, config, *rest)
        for name, slug, config, rest in zip(names, slugs(names), configs, found, strict=True)
    )


def refuse_what_cannot_be_shared(request: Request, *, queued: bool = False) -> None:
    """Raise OptionError for options that make no sense for several runs on one split."""
    train, labels = request.base.train, request.labels
    if len(request.arms) < 2:
        raise OptionError(f"a comparison needs two models or more, found {len(request.arms)}; see --arms")
    if request.base.data.folds is not None:
        raise OptionError("compare scores all models on one test split; leave out folds")
    if labels != (None,) and request.base.data.fraction is not None:
        raise OptionError("fraction and --labels-per-class both choose the training images; give one of them")
    if len(request.images_seen) not in (0, 1, len(labels)):
        raise OptionError(
            f"--images-seen has {len(request.images_seen)} numbers, --labels-per-class {len(labels)}: give one for all "
            "of them, or one for each"
        )
    if train.patience:
        raise OptionError("compare trains every model on as many images; leave out patience")
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
    """Find the folder of the same comparison where it was stopped, else a new one.

    Returns also whether it was there."""
    output, data = request.base.output, request.base.data.source
    begun = {"status": "running", "requested": to_dict(request)}  # the same again means the same comparison
    home, name = data_folder(output, data), output.run_name
    known = home.glob("[!.]*/compare.json") if name is None else [home / name / "compare.json"]
    for path in sorted(known, reverse=True):
        if begun.items() <= (read_if_whole(path) or {}).items():
            return path.parent, True
    return free_folder(output, data, "compare"), False
