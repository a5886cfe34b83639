"""`--minutes M`: the plan of a run or two out of the candidates, by the pace on this machine."""

import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from torch import nn

from datasets.description import native_sizes
from datasets.opened import OpenedImages
from datasets.text import pluralise
from trainers.auto_resume import find_same_options
from trainers.budget.candidates import AS_GIVEN, Candidate, fine_tuned, from_scratch
from trainers.budget.deadline import Deadline, DeadlineHandler
from trainers.budget.local_weights import HINT, SAMPLE, Ranked, rank, with_best_weights
from trainers.budget.members import SHARED, Member, in_turn, members, why_idle
from trainers.budget.pace import Pace, measure, seconds_of_forward
from trainers.budget.threads import with_threads
from trainers.config import RunConfig, from_dict
from trainers.errors import ConfigError
from trainers.options.recipes import filled_in
from trainers.reporting import console
from trainers.run_engines import Run
from trainers.setup import RunSetup, prepare
from trainers.storage.run_folder import read_json
from trainers.storage.run_result import RunResult
from trainers.system import heartbeat
from vit.config import PACKAGED_MODELS, embedded_weights
from vit.local_models import local_pretrained_models
from vit.parts import parts


@dataclass(frozen=True)
class Plan:
    """Plan for the time there is, and its reasons."""

    candidate: Candidate
    epochs: int | float
    reasons: tuple[str, ...]


def choose(candidates: Sequence[Candidate], epochs: Sequence[float]) -> Plan:
    """The richest candidate that sees the images often enough in the time; `epochs` says how often each would."""
    chosen = max((n for n, candidate in enumerate(candidates) if epochs[n] >= candidate.wants), default=0)
    best, enough = candidates[chosen], epochs[chosen] > candidates[chosen].most
    planned = rounded(min(epochs[chosen], best.most))
    reasons = [
        f"train {best.name} for {planned:g} epochs, {'all that it gains by' if enough else 'all there is time for'}"
    ]
    if chosen + 1 < len(candidates) and not enough:
        larger = candidates[chosen + 1]
        reasons.append(
            f"{larger.name} needs {larger.wants:g} epochs, and there is time for {rounded(epochs[chosen + 1]):g}"
        )
    return Plan(best, planned, tuple(reasons))


def rounded(epochs: float) -> int | float:
    """Whole epochs where that changes the length by little, else hundredths of one."""
    return int(epochs) if epochs >= 20 else max(0.01, int(100 * epochs) / 100)


LOOKING = 0.3
"""Share of the time that may be spent on looking at the images with weights at hand."""
PROBING = 0.12
"""Share of what is left then that a linear probe on all images may take, where a model is to be trained after it."""
FIRST_ANSWER, OF_A_MINUTE = 0.4, 0.7
"""Share of the time that all images may take with frozen networks side by side; the second where there is less than
`SHARED`, too little to train much."""
PROBE_STEPS = 1500
LEAST_STEPS = 100
"""Minimum steps for fine-tuning after a probe (or one epoch, if that is fewer): in fewer it would not come near it."""


@dataclass(frozen=True)
class PlannedRun:
    """The options of a run, and what is to be called with it before its steps (see `trainers.run.train`)."""

    config: RunConfig
    before_steps: Callable[[Run], object] | None = None
    favoured: bool = False
    """True if it is kept where the validation images cannot tell it from the run before it."""
    mixes: bool = False
    """True if it is a mixture of those before it, which is then kept."""


Runs = Generator[PlannedRun, RunResult | None, None]
"""Runs to train, one after the other; who trains them sends back what each found, or None for a rehearsal."""


def planned(
    config: RunConfig,
    *,
    minutes: float,
    until: float,
    images: OpenedImages | None = None,
    one_network: bool = False,
) -> Runs:
    """The runs that make the most of the time until `until` (of `time.monotonic`), each planned when it is asked for;
    the best of them is to be kept.

    Where the model was left open and there are weights at hand, the networks that suit the images come first, frozen
    and side by side; a model that is trained follows where it may do better, and then a mixture of both. With
    `one_network` the best linear probe comes first, and one of the two runs is kept. Raises ConfigError: epochs are
    given too, or there are several runs or processes; and whatever `trainers.setup.prepare` raises.
    """
    if config.train.epochs is not None:
        raise ConfigError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        raise ConfigError("--minutes plans one run; with --folds give --epochs, or one --fold")
    heartbeat.at_work_on("opening the images")
    images, config = images or OpenedImages(), without_luck(with_embedded_weights(config))
    with console.quiet():
        setup = trial(config, AS_GIVEN, images)
    count, per_epoch = setup.data.dataset_sizes["train"], setup.steps_per_epoch
    console.say(f"{pluralise(minutes, 'minute')} for {pluralise(count, 'training image')}", label="plan")
    if config.train.start_head == "fit":
        yield PlannedRun(config)
        return
    candidates = [AS_GIVEN]
    if config.model.name == "auto" and config.model.weights in (None, "none"):
        side = shorter_side(setup)
        candidates = list(from_scratch(side))
    if candidates == [AS_GIVEN] and has_a_probe(setup):
        yield from probed_first(config, setup, until, images)
        return
    heartbeat.at_work_on("measuring with how many threads the model is quickest")
    config = with_threads(config, partial(trial, config, candidates[0], images))
    rows: list[Ranked] = []
    probe: Ranked | None = None
    if candidates != [AS_GIVEN] and config.model.weights is None and not one_network:
        answered, rows = yield from mixed(config, side, setup, until, images, at_most=60 * minutes)
        if answered:
            return
    if candidates != [AS_GIVEN] and config.model.weights is None and not rows:
        rows = rank(config, seconds=LOOKING * (until - time.monotonic()), sample=SAMPLE, images=images)
        if without_packages():
            console.say(HINT, label="note")
    if rows:
        candidates = fine_tuned(rows, images=count, side=side)
        probe = probe_first(rows, candidates, setup.data.dataset_sizes, until - time.monotonic())
    if probe:
        yield PlannedRun(named(probe_of(config, probe.options, per_epoch), "probe"))
    quickest = min(rows, key=lambda row: row.seconds / row.images, default=None)
    in_time = quickest is not None and quickest.seconds / quickest.images * count < 60 * minutes
    run = plan_fine_tuning(config, candidates, until, images, least=LEAST_STEPS if in_time else 0)
    if run is not None:
        yield replace(run, favoured=probe is not None and candidates[0].weights == probe.name)
    elif quickest is not None and probe is None:  # part of a pass would teach less than its features know
        yield PlannedRun(probe_of(config, quickest.options, per_epoch))


def with_embedded_weights(config: RunConfig) -> RunConfig:
    """Options by which a model that is named starts from the weights that come with it, unless they say from which."""
    weights = embedded_weights(config.model)
    if weights is None:
        return config
    console.say(
        f"{config.model.name} from the weights that come with it, {weights}; --weights none: without", label="plan"
    )
    return config.changed(model={"weights": weights})


def without_luck(config: RunConfig) -> RunConfig:
    """Options by which each run keeps its last epoch, unless a person chose by what an epoch is kept, or the rate stays
    high to the end. The best of many noisy scores is partly luck, and the rate falls to zero by plan."""
    train = config.train
    left_open = train.select == "auto" and not train.patience
    return config.changed(train={"select": "last"}) if left_open and train.schedule != "constant" else config


def probe_first(
    rows: Sequence[Ranked], candidates: Sequence[Candidate], sizes: Mapping[str, int], seconds: float
) -> Ranked | None:
    """The best weights of which a linear probe fits the time, of which training takes most where there is something to
    train: then None where even the probe of what is to be trained takes too long, else the quickest."""

    def takes(row: Ranked) -> float:
        looked_at = row.images if row.images == sizes["train"] else 0  # features of a part are not used again
        return row.seconds / row.images * (sum(sizes.values()) - looked_at)

    if not candidates:  # the head and its pictures take time, too
        return next((row for row in rows if takes(row) <= 0.8 * seconds), min(rows, key=takes))
    names: list[str | None] = [row.name for row in rows]
    for row in rows[: 1 + names.index(candidates[0].weights)]:
        if takes(row) <= PROBING * seconds:
            return row
        console.say(f"no probe of {row.name}: all images would take it {console.duration(takes(row))}", label="plan")
    return None


def without_packages() -> bool:
    """Return whether ImageNet's weights are not installed."""
    return all(model.name not in PACKAGED_MODELS for model in local_pretrained_models())


def mixtures() -> ModuleType | None:
    """Return the module that ranks the local networks side by side; None where there is but one kind of them, or this
    copy of the application has no mixtures."""
    if without_packages():
        return None
    try:
        from trainers.budget import side_by_side
    except ModuleNotFoundError as error:
        if not {"side_by_side", "heads", "mixture"} & {*str(error.name).split(".")}:
            raise
        return None
    return side_by_side


def with_local_weights(config: RunConfig, images: OpenedImages, *, one_network: bool) -> RunConfig:
    """`--weights auto`: the networks at hand that suit the training images best, frozen and side by side; with
    `one_network` the best one, as a linear probe. Raises ConfigError: a model is named, too. MissingPackage: there are
    no weights at hand; the line says what to install."""
    side_by_side = None if one_network else mixtures()
    if side_by_side is None or config.model.name != "auto":
        return with_best_weights(config, images)
    heartbeat.at_work_on("opening the images")
    config = config.changed(model={"weights": None})
    with console.quiet():
        setup = trial(config, AS_GIVEN, images)
    found = side_by_side.look_with_all(config, setup, side=shorter_side(setup), images=images)
    return side_by_side.first_answer(config, found)


def has_a_probe(setup: RunSetup) -> bool:
    """Return whether a model that was named starts from weights, is to be trained, and may be judged frozen before."""
    train, model = setup.config.train, setup.config.model
    if mixtures() is None or model.weights == "none" or model.trainable == "head" or train.loop != "ignite":
        return False
    linears = [layer for part in parts(setup.model).head for layer in part.modules() if isinstance(layer, nn.Linear)]
    return train.start_head == "plain" and train.teacher is None and len(linears) == 1


def probed_first(config: RunConfig, setup: RunSetup, until: float, images: OpenedImages) -> Runs:
    """The runs of a model that was named: frozen under a fitted head, if that takes a moment; then as it was asked for,
    where there is time for a pass over the images."""
    config = with_threads(config, lambda: setup)
    left, seconds = until - time.monotonic(), seconds_of_forward(setup, sum(setup.data.dataset_sizes.values()))
    train = {"start_head": "fit", "mixup": 0.0, "cutmix": 0.0}
    frozen = PlannedRun(
        named(config.changed(model={"trainable": "head"}, data={"augment": "none"}, train=train), "frozen")
    )
    judged = seconds < FIRST_ANSWER * left
    if judged:
        yield frozen
    else:
        console.say(f"not judged frozen first: that would take about {console.duration(seconds)}", label="plan")
    run = plan_fine_tuning(config, [AS_GIVEN], until, images, least=math.inf if seconds < left else 0)
    if run is not None:
        yield replace(run, favoured=True)
    elif not judged:
        yield frozen


def shorter_side(setup: RunSetup) -> float:
    """The median, in pixels, of the images of a setup."""
    return float(np.median(native_sizes(setup.data).min(axis=1)))


def mixed(
    config: RunConfig, side: float, setup: RunSetup, until: float, images: OpenedImages, *, at_most: float
) -> Generator[PlannedRun, RunResult | None, tuple[bool, list[Ranked]]]:
    """The runs of the networks at hand side by side, of networks that are trained where they may do better, and of a
    mixture of all; whether that is the answer, and what each network is worth frozen, if that is known. It is none
    where the first run would cost much and know no more than what is trained, or where even the quickest network would
    see all images in no less than `at_most` seconds: it comes first even where the time is over."""
    side_by_side = mixtures()
    if side_by_side is None:
        return False, []
    left = until - time.monotonic()
    limit = left * (FIRST_ANSWER if left >= SHARED else OF_A_MINUTE)
    found = side_by_side.first_look(config, setup, side=side, seconds=limit, at_most=at_most, images=images)
    if found is None:
        return False, []
    sizes = setup.data.dataset_sizes
    to_train = members(found.rows, images=sizes["train"], side=side)
    features = found.seconds_of_features(sizes)
    left = until - time.monotonic()
    alone = (
        bool(to_train) and to_train[0].kind == "trained" and {each.name for each in found.taken} == {to_train[0].model}
    )
    if alone and PROBING * left < features < left / 2:
        why = f"no other network helps {to_train[0].model} here, and its frozen features would take"
        console.say(f"all of the time is for training: {why} {console.duration(features)}", label="plan")
        return False, list(found.rows)
    drawn = config.output.tb != "standard" or not to_train or left < SHARED
    parts = config if drawn else config.changed(output={"tb": "scalars"})  # the mixture has the pictures
    started = time.monotonic()
    frozen = yield PlannedRun(named(side_by_side.first_answer(parts, found), "frozen"))
    fitting = max(0.0, time.monotonic() - started - features)
    first = None if frozen is None else frozen.run_dir
    seconds = FIRST_ANSWER * (until - time.monotonic() - fitting)
    wider = side_by_side.wider_look(config, found, seconds=seconds, images=images, first=first)
    if wider is not None:  # else the mixture finds the head of its frozen networks beside their features
        until -= fitting + sum(map(found.hand.seconds, {*wider.taken} - {*found.taken}))  # less, where some are known
        found, to_train = wider, members(wider.rows, images=sizes["train"], side=side)
    until -= found.seconds_of_pictures()

    def pace_of(member: Member) -> Pace:
        heartbeat.at_work_on(f"measuring the pace of {member.name}")
        return measure(trial(config, member.candidates[0], images))

    def mixing(member: Member) -> float:
        model = member.candidates[-1].options["model"]
        unseen = sum(sizes.values()) - sizes["train"]
        return side_by_side.seconds_to_mix(found, model["name"], model.get("image_size")) * unseen

    trained, spent = [], 0.0
    for member, end in in_turn(to_train, until=until, first=first, pace_of=pace_of, mixing=mixing):
        options = named(member.config(parts), member.kind)
        run = plan_fine_tuning(options, member.candidates, end, images, least=LEAST_STEPS)
        if run is None:
            continue
        result = yield run
        trained += [] if result is None else [result.run_dir]
        spent += mixing(member)
    idle = why_idle(found.rows, to_train, until - time.monotonic() - spent)
    if idle and (trained or not to_train):  # else the plan has said what there is no time for
        console.say(idle, label="plan")
    if trained or wider is not None:
        yield PlannedRun(named(side_by_side.with_trained(config, found, trained), "mixed"), mixes=True)
    return True, list(found.rows)


def named(config: RunConfig, kind: str) -> RunConfig:
    """The options with a name of its own for one of several runs, where a person gave one."""
    name = config.output.run_name
    return config if name is None else config.changed(output={"run_name": f"{name}_{kind}"})


def probe_of(config: RunConfig, options: dict[str, dict[str, Any]], per_epoch: int) -> RunConfig:
    """A linear probe with enough steps, each of which takes milliseconds."""
    probe = filled_in(config, options)
    return probe.changed(train={"epochs": min(100, max(20, -(-PROBE_STEPS // per_epoch)))})


def plan_fine_tuning(
    config: RunConfig, candidates: Sequence[Candidate], until: float, images: OpenedImages, *, least: float = 0
) -> PlannedRun | None:
    """The run of the best of the candidates, and what fits its end to the time; one that was stopped has its plan.
    None where there is time for neither one pass over the images nor so many steps."""
    for candidate in candidates:
        stopped = find_same_options(filled_in(config, candidate.options), planned=True)
        if stopped is not None:
            requested = from_dict(RunConfig, read_json(stopped / "meta.json")["requested"])
            return PlannedRun(replace(requested, output=config.output))
    if not candidates:
        return None
    with console.quiet():
        plan, pace = plan_for(config, candidates, until, images)
    if plan.epochs < min(1, least / pace.steps_per_epoch):
        too_few = f"{plan.candidate.name} would get {plan.epochs:g} epochs"
        console.say(f"no time is left to train more: {too_few}", label="plan")
        return None
    console.say("; ".join(plan.reasons), label="plan")
    chosen = filled_in(config, plan.candidate.options).changed(train={"epochs": plan.epochs})
    return PlannedRun(chosen, partial(DeadlineHandler, deadline=Deadline(until, pace, most=plan.candidate.most)))


def plan_for(
    config: RunConfig, candidates: Sequence[Candidate], until: float, images: OpenedImages
) -> tuple[Plan, Pace]:
    """Measure one candidate after the other, until one would see the images too seldom."""
    paces, epochs = [], []
    for candidate in candidates:
        heartbeat.at_work_on(f"measuring the pace of {candidate.name}")
        paces.append(measure(trial(config, candidate, images)))
        epochs.append(paces[-1].epochs(until - time.monotonic()))
        if epochs[-1] < candidate.wants:
            break
    plan = choose(candidates[: len(epochs)], epochs)
    return plan, paces[candidates.index(plan.candidate)]


def trial(config: RunConfig, candidate: Candidate, images: OpenedImages) -> RunSetup:
    return prepare(filled_in(config, candidate.options).changed(train={"epochs": 1}), images=images)
