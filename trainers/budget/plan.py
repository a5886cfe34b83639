"""`--minutes M`: the runs that make the most of the time, one after the other."""

import math
import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from common.errors import OptionError
from common.text import pluralise
from datasets.description import native_sizes
from datasets.opened import OpenedImages
from trainers.budget import side_by_side
from trainers.budget.candidates import AS_GIVEN, Candidate, fine_tuned, from_scratch
from trainers.budget.fine_tuning import LEAST_STEPS, PlannedRun, plan_fine_tuning, trial
from trainers.budget.local_weights import HINT, SAMPLE, Ranked, rank, with_best_weights
from trainers.budget.members import SHARED, Member, in_turn, members, why_idle
from trainers.budget.pace import Pace, measure, seconds_of_forward
from trainers.config import RunConfig, from_dict
from trainers.options.recipes import filled_in
from trainers.reporting import console
from trainers.setup import RunSetup
from trainers.storage.data_folder import data_folder
from trainers.storage.run_folder import command_line, read_if_whole
from trainers.storage.run_result import RunResult
from vit.config import PACKAGED_MODELS, embedded_weights
from vit.factory import local_pretrained_models
from vit.parts import parts

LOOKING = 0.3
"""Share of the time that may be spent on looking at the images with weights at hand."""
PROBING = 0.12
"""Share of what is left then that a linear probe on all images may take, where a model is to be trained after it."""
FIRST_ANSWER, OF_A_MINUTE = 0.4, 0.7
"""Share of the time that all images may take with frozen networks side by side; the second where there is less than
`SHARED`, too little to train much."""
QUICKER = 0.8
"""Features of all images take about this share of their price, which is measured on a few of them."""

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
    `one_network` the best linear probe comes first, and one of the two runs is kept. Raises OptionError: epochs are
    given too, or there are several runs or processes; and whatever `trainers.setup.prepare` raises.
    """
    require_one_run(config)
    images, config = images or OpenedImages(), without_luck(with_embedded_weights(config))
    with console.quiet():
        setup = trial(config, AS_GIVEN, images)
    count = setup.data.dataset_sizes["train"]
    console.say(f"{pluralise(minutes, 'minute')} for {pluralise(count, 'training image')}", label="plan")
    if config.train.start_head == "fit":
        yield PlannedRun(config)
        return
    is_open = config.model.name == "auto" and config.model.weights in (None, "none")
    if not is_open and config.train.start_head in (None, "plain") and has_a_probe(setup):
        yield from probed_first(config, setup, until, images)
        return
    candidates = list(from_scratch(shorter_side(setup))) if is_open else [AS_GIVEN]
    rows: list[Ranked] = []
    if is_open and config.model.weights is None:
        if not one_network:
            answered, rows = yield from mixed(config, setup, until, images, at_most=60 * minutes)
            if answered:
                return
        if not rows:
            rows = rank(config, seconds=LOOKING * (until - time.monotonic()), sample=SAMPLE, images=images)
            if without_packages():
                console.say(HINT, label="note")
            if not rows:
                console.say("no pretrained network is here, or in time: a ViT trains from random weights", label="plan")
    if rows:
        yield from better_of_two(config, setup, rows, until, images, at_most=60 * minutes)
    elif run := plan_fine_tuning(config, candidates, until, images):
        yield run


def require_one_run(config: RunConfig) -> None:
    """Raises OptionError: the epochs are given, or there are several runs or processes."""
    if config.train.epochs is not None:
        raise OptionError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise OptionError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        raise OptionError("--minutes plans one run; with --folds give --epochs, or one --fold")


def better_of_two(
    config: RunConfig, setup: RunSetup, rows: Sequence[Ranked], until: float, images: OpenedImages, *, at_most: float
) -> Runs:
    """A linear probe, and the network trained that may do better, as far as there is time for them. Where there is time
    for neither, the quickest probe, if features of all training images take it less than `at_most` seconds; else part
    of a pass."""
    sizes = setup.data.dataset_sizes
    candidates = fine_tuned(rows, images=sizes["train"], side=shorter_side(setup))
    probe = probe_first(rows, candidates, sizes, until - time.monotonic())
    if probe is not None:
        yield PlannedRun(named(probe_of(config, probe.options), "probe"))
    quickest = min(rows, key=lambda row: row.seconds / row.images)
    in_time = quickest.seconds / quickest.images * sizes["train"] < at_most
    run = plan_fine_tuning(config, candidates, until, images, least=LEAST_STEPS if in_time else 0)
    if run is not None:
        yield replace(run, favoured=probe is not None and candidates[0].weights == probe.name)
    elif probe is None:  # part of a pass would teach less than its features know
        yield PlannedRun(probe_of(config, quickest.options))


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


def with_local_weights(config: RunConfig, images: OpenedImages, *, one_network: bool) -> RunConfig:
    """`--weights auto`: the networks at hand that suit the training images best, frozen and side by side; with
    `one_network` the best one, as a linear probe. Raises OptionError: a model is named, too. MissingPackage: there are
    no weights at hand; the line says what to install."""
    if one_network or without_packages() or config.model.name != "auto":
        return with_best_weights(config, images)
    config = config.changed(model={"weights": None})
    with console.quiet():
        setup = trial(config, AS_GIVEN, images)
    found = side_by_side.look_with_all(config, setup, side=shorter_side(setup), images=images)
    return side_by_side.first_answer(config, found)


def has_a_probe(setup: RunSetup) -> bool:
    """Return whether a model that was named starts from weights, is to be trained, and may be judged frozen before."""
    model = setup.config.model
    if model.weights == "none" or model.trainable == "head":
        return False
    linears = [layer for part in parts(setup.model).head for layer in part.modules() if isinstance(layer, nn.Linear)]
    return len(linears) == 1


def probed_first(config: RunConfig, setup: RunSetup, until: float, images: OpenedImages) -> Runs:
    """The runs of a model that was named: frozen under a fitted head, if that takes a moment; then as it was asked for,
    where there is time for a pass over the images. Where there is time for neither, frozen all the same, if that
    ends in time; else part of a pass."""
    left, seconds = until - time.monotonic(), seconds_of_forward(setup, sum(setup.data.dataset_sizes.values()))
    probe = of_frozen(config).changed(model={"trainable": "head"}, train={"start_head": "fit"})
    frozen = PlannedRun(named(probe, "frozen"))
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
    config: RunConfig, setup: RunSetup, until: float, images: OpenedImages, *, at_most: float
) -> Generator[PlannedRun, RunResult | None, tuple[bool, list[Ranked]]]:
    """The runs of the networks at hand side by side, of networks that are trained where they may do better, and of a
    mixture of all; whether that is the answer, and what each network is worth frozen, if that is known. It is none
    where the first run would cost much and know no more than what is trained, or where even the quickest network would
    see all images in no less than `at_most` seconds: it comes first even where the time is over."""
    if without_packages():
        return False, []
    left, side = until - time.monotonic(), shorter_side(setup)
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
    frozen = yield PlannedRun(as_begun(named(side_by_side.first_answer(of_frozen(parts), found), "frozen")))
    fitting = max(0.0, time.monotonic() - started - QUICKER * features)
    seconds = FIRST_ANSWER * (until - time.monotonic() - fitting)
    wider = side_by_side.wider_look(config, found, seconds=seconds, images=images)
    if wider is not None:
        fitting *= max(1.0, wider.width / found.width) ** 1.5  # measured: 2.5 times, for 1.8 times the features
        until -= sum(map(found.hand.seconds, {*wider.taken} - {*found.taken}))  # less, where some are known
        found, to_train = wider, members(wider.rows, images=sizes["train"], side=side)
    until -= fitting + found.seconds_of_pictures()

    def pace_of(member: Member) -> Pace:
        return measure(trial(config, member.candidates[0], images))

    def mixing(member: Member) -> float:
        model = member.candidates[-1].options["model"]
        unseen = sum(sizes.values()) - sizes["train"]
        return side_by_side.seconds_to_mix(found, model["name"], model.get("image_size")) * unseen

    trained, spent = [], 0.0
    for member, end in in_turn(to_train, until=until, pace_of=pace_of, mixing=mixing):
        options = named(parts, member.kind)
        run = plan_fine_tuning(options, member.candidates, end, images, least=LEAST_STEPS)
        if run is None:
            continue
        result = yield run
        trained += [] if result is None else [result.run_dir]
        spent += mixing(member)
    idle = why_idle(found.rows, to_train, until - time.monotonic() - spent)
    if idle and (trained or not to_train):  # else the plan has said what there is no time for
        console.say(idle, label="plan")
    if trained or wider is not None or (frozen is not None and not drawn):  # one of the runs has pictures
        mixture = side_by_side.with_trained(of_frozen(config), found, trained)
        yield PlannedRun(as_begun(named(mixture, "mixed")), mixes=True)
    return True, list(found.rows)


def of_frozen(config: RunConfig) -> RunConfig:
    """Return the options for frozen networks: they take pictures as they are, whatever trained ones make of them."""
    return config.changed(data={"augment": "none"}, train={"mixup": 0.0, "cutmix": 0.0, "cache_features": "on"})


def named(config: RunConfig, kind: str) -> RunConfig:
    """The options with a name of its own for one of several runs, where a person gave one."""
    name = config.output.run_name
    return config if name is None else config.changed(output={"run_name": f"{name}_{kind}"})


def as_begun(config: RunConfig) -> RunConfig:
    """Return the options with which this very command began the run of this name before it was stopped, else these."""
    output = config.output
    if output.run_name is None or not output.auto_resume:
        return config
    folder = data_folder(output, config.data.source) / output.run_name
    begun = read_if_whole(folder / "meta.json", argv=list, requested=dict)
    if begun is None or not {*begun["argv"]} ^ {*command_line()} <= {"--auto-resume"}:
        return config
    return replace(from_dict(RunConfig, begun["requested"]), output=output)


def probe_of(config: RunConfig, options: dict[str, dict[str, Any]]) -> RunConfig:
    """Return the options of a linear probe, with a fitted head as in the ranking."""
    train = options.get("train", {}) | {"start_head": "fit"}
    return filled_in(of_frozen(config), options | {"train": train})
