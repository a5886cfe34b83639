"""Train every arm of a comparison under one protocol. Each run is an ordinary run; a stopped comparison goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.arms import Arm
from comparison.plan import Plan, Request
from datasets.shared_split import PRETRAINED_ON, copies_of_training_images
from datasets.splits import write_split
from trainers import console, process
from trainers.config import to_dict
from trainers.errors import Diverged, Interrupted, TrainingError
from trainers.result import RunResult, read_result
from trainers.resume import resume
from trainers.run import train
from trainers.run_directory import read_json, write_json


@dataclass(frozen=True)
class Trained:
    """Runs of one arm under one condition, one per seed, and what its learning rate was chosen from."""

    arm: Arm
    labels: int | None
    results: tuple[RunResult, ...]
    tuning: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Finished:
    """All runs of a comparison, with the protocol they followed, in words."""

    folder: Path
    trained: tuple[Trained, ...]
    protocol: tuple[str, ...]
    warnings: tuple[str, ...]
    scored: str
    """What the scored images are called, where that is not simply test."""


def compare_arms(request: Request) -> Finished:
    """Train all arms, seed by seed, and say how.

    Raises:
        ConfigError, DataError, WeightsError: before anything is trained or written.
        TrainingError, Interrupted: the same command goes on where this one stopped.
    """
    console.show_model_log()
    plan = Plan(request)
    announce(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_json(plan.folder / "compare.json", {"status": "running", "requested": to_dict(request)})
    if not plan.continued:
        write_split(plan.split_file, plan.split.samples)
    warnings = tuple(known_problems(plan))
    for line in warnings:
        console.say(f"{'warning':>9}  {line}")
    trained = tuple(train_all(plan))
    scored = "held-out validation" if plan.split.halved else ""
    return Finished(plan.folder, trained, tuple(protocol(plan)), warnings, scored)


def mark_finished(folder: Path) -> None:
    """The report is there: the same command starts another comparison from now on."""
    path = folder / "compare.json"
    write_json(path, read_json(path) | {"status": "finished"})


def announce(plan: Plan) -> None:
    """One screen before the first run."""
    request, split = plan.request, plan.split
    sizes = ", ".join(f"{split.size(name):,} {name}" for name in ("train", "val", "test"))
    held_out = "; the set has no test images: half of val was held out" if split.halved else ""
    rows = [("data", f"{request.base.data.source}: {sizes}{held_out}")]
    for arm in plan.arms:
        rates = plan.rates(arm)
        shown = "lr " + ", ".join("default" if rate is None else f"{rate:g}" for rate in rates)
        size = f"{arm.parameters:,} parameters, {arm.trainable:,} trainable, {arm.flops / 1e9:.2g} GFLOPs per image"
        rows.append(("arm", f"{arm.name}: {size}, {shown}"))
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        which = f"{labels} labels per class" if labels else "all labels"
        rows.append(("budget", f"{which}: {images:,} images x {epochs} epochs = {images * epochs:,} images per run"))
    tuned = "each arm tries every rate at its first seed" if plan.tuned else "rates are not tuned"
    rows += [
        ("rates", f"{tuned} ({plan.why_tuned})"),
        ("runs", f"{plan.number_of_runs}, seeds {', '.join(map(str, plan.seeds))}, device {plan.device}"),
        ("folder", f"{plan.folder}{' (continued)' if plan.continued else ''}"),
        ("watch", f"tensorboard --logdir {request.base.output.output_dir}"),
    ]
    for label, text in rows:
        console.say(f"{label:>9}  {text}")
    console.say()


def train_all(plan: Plan) -> Iterator[Trained]:
    """Condition by condition, arm by arm: all rates at the first seed, then the other seeds at the best of them."""
    progress = Progress(plan.number_of_runs, plan.all_work)
    for condition, labels in enumerate(plan.request.labels):
        for arm in plan.arms:
            first, *others = plan.seeds
            tried = [(lr, one_run(plan, arm, condition, first, lr, progress)) for lr in plan.rates(arm)]
            usable = [(lr, result) for lr, result in tried if result is not None]
            if not usable:
                raise TrainingError(f"{arm.name} diverged at every learning rate of {_listed(plan.rates(arm))}")
            lr, best = max(usable, key=lambda pair: _score(pair[1], arm.config.train.select))
            rest = [one_run(plan, arm, condition, seed, lr, progress) for seed in others]
            if None in rest:
                raise TrainingError(f"{arm.name} diverged at lr {lr}, which was the best rate at seed {first}")
            results = (best, *(result for result in rest if result is not None))
            tuning = tuple(_tuning_rows(tried, lr, arm, labels)) if len(tried) > 1 else ()
            yield Trained(arm, labels, results, tuning)


def _score(result: RunResult, select: str) -> tuple[float, float]:
    value = result.val[select]
    return (-value if select == "loss" else value), -result.val["loss"]


def _tuning_rows(
    tried: Sequence[tuple[float | None, RunResult | None]], chosen: float | None, arm: Arm, labels: int | None
) -> Iterator[dict[str, Any]]:
    for lr, result in tried:
        found = {f"val_{name}": result.val[name] if result else None for name in ("accuracy", "loss")}
        yield {"labels_per_class": labels, "arm": arm.name, "lr": lr, **found, "chosen": lr == chosen}


def _listed(values: Sequence[float | None]) -> str:
    return ", ".join("default" if value is None else f"{value:g}" for value in values)


class Progress:
    """One line per run, and how long the rest takes at the pace of what was trained so far."""

    def __init__(self, runs: int, work: float) -> None:
        self.runs, self.work = runs, work
        self.done, self.work_done, self.work_trained = 0, 0.0, 0.0
        self.started = time.perf_counter()

    def line(self, text: str, *, work: float, trained: bool) -> None:
        self.done += 1
        self.work_done += work
        self.work_trained += work if trained else 0
        left = ""
        if self.work_trained and self.done < self.runs:
            pace = (time.perf_counter() - self.started) / self.work_trained
            left = f", about {console.duration(pace * (self.work - self.work_done))} left"
        console.say(f"{self.done:>3}/{self.runs}  {text}{left}")


def one_run(plan: Plan, arm: Arm, condition: int, seed: int, lr: float | None, progress: Progress) -> RunResult | None:
    """Train one run, take it up where it stopped, or read what it found; None when it diverged."""
    config = plan.run_config(arm, condition, seed=seed, lr=lr)
    folder = plan.folder.parent / str(config.output.run_name)
    labels = plan.request.labels[condition]
    title = f"{arm.name}, {f'{labels} labels per class' if labels else 'all labels'}, seed {seed}"
    title += f", lr {lr:g}" if lr is not None else ""
    known, work = (folder / "summary.json").is_file(), plan.work(arm, condition)
    try:
        if known and read_json(folder / "summary.json")["status"] == "finished":
            result, trained = read_result(folder), False
        else:
            process.give_back_freed_memory()
            with console.quiet():
                result, trained = (resume(folder) if known else train(config)), True
    except Interrupted as stop:
        stop.args = (f"{stop.args[0].split(';')[0]}; the same compare command goes on where this one stopped",)
        raise
    except TrainingError as error:
        if not isinstance(error.__cause__, Diverged):
            raise
        progress.line(f"{title}: diverged", work=work, trained=True)
        return None
    seconds = read_json(folder / "summary.json")["seconds"]
    text = f"{title}: val {result.val['accuracy']:.1%}, epoch {result.best_epoch}, {seconds:.0f} s"
    progress.line(text if trained else f"{text} (was finished)", work=work, trained=trained)
    return result


def known_problems(plan: Plan) -> Iterator[str]:
    """What a reader of the result must know about the data."""
    source = plan.request.base.data.source
    pretrained = [arm.name for arm in plan.arms if "pretrained" in arm.name]
    if pretrained and source in PRETRAINED_ON:
        yield f"{PRETRAINED_ON[source]}: a pretrained arm may have seen the test images"
    copies = copies_of_training_images(plan.split.samples)
    if copies is None:
        yield f"too many images to look for copies between train and test; `python main.py check {source}` does"
    elif copies:
        of = plan.split.size("test")
        yield f"{len(copies)} of {of} test images are near-duplicates of training images, first {copies[0]!r}"


def protocol(plan: Plan) -> Iterator[str]:
    """How the arms were treated, one sentence each."""
    request, split = plan.request, plan.split
    sizes = ", ".join(f"{split.size(name):,} {name}" for name in ("train", "val", "test"))
    yield f"All runs use one split, saved as {plan.split_file.name}: {sizes} images."
    if split.halved:
        yield "The set has no test split: half of its validation images, drawn per class, were held out as test images."
    for labels, images, epochs in zip(request.labels, plan.train_images, plan.epochs, strict=True):
        what = f"{labels} labels per class" if labels else "all training labels"
        yield (
            f"With {what} ({images:,} images) every run takes {epochs} epochs: {images * epochs:,} images seen, the "
            f"same for all arms. Choices used {split.size('val'):,} validation labels beside them."
        )
    first = plan.seeds[0]
    if plan.tuned:
        yield (
            f"Every arm tried the peak learning rates {_listed(plan.grid)} at seed {first}; the one with the best "
            f"validation {request.base.train.select} (ties: lower loss) served its other seeds too."
        )
    else:
        yield f"Learning rates are the defaults or as given, not tuned ({plan.why_tuned})."
    given = [arm.name for arm in plan.arms if arm.config.train.lr is not None]
    if given:
        yield f"The learning rate of {', '.join(given)} was given, not tuned."
    yield (
        f"The epoch is chosen by validation {request.base.train.select} alone; its weights are scored on the test "
        "images once, by the evaluator that training uses."
    )
