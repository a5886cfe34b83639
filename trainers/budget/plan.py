"""`--minutes M`: the best classifier for the time there is, as a list of steps with what each costs.

1. The pretrained networks on this machine whose features take at most 40 % of the time, frozen, under one fitted head.
2. All of the embedded ViT in half of the time that is left; the last stages of EfficientNet-Lite0 in the other half.
3. The mixture of the frozen and the trained networks, by weights that are fitted to the validation images.

A model that is named, or without weights, is trained alone; with weights it is judged frozen first.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import nn

from common.errors import OptionError
from common.options import InFits, InPlans, Training
from common.text import pluralise
from datasets.open import OpenedImages
from trainers.auto_resume import find_same_options
from trainers.budget.deadline import LATE, ending_at
from trainers.budget.networks import (
    ON_FEATURES,
    STEP,
    Priced,
    Way,
    asked_for,
    frozen,
    frozen_accuracy,
    local_networks,
    priced,
    shares,
    ways,
)
from trainers.budget.pace import RUN, cost_between, seconds_of_forward
from trainers.calibration import losses, sharpness
from trainers.config import RunConfig, run_options
from trainers.heads.fit import ranking, shares_of
from trainers.options.recipes import RECIPES, filled_in
from trainers.reporting import console
from trainers.run import Handler
from trainers.setup import RunSetup, prepare
from trainers.storage.data_folder import named_folder
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult, predictions_of
from trainers.system.process import launched
from vit.anatomy import anatomy_of
from vit.config import Network, embedded_weights
from vit.factory import image_spec

FIRST = 0.4
"""Share of the time that frozen networks may take where others are trained: the quick ones first, then the others."""
TRAINING = 20.0
"""Seconds that are enough to train a network."""
UNUSED = 0.05
"""Share of the time that may stay unused without a word."""

ROUNDED = 1e-12
"""Probability that stands for those that the file of predictions has rounded to 0."""

Start = Callable[[RunConfig, Sequence[Handler]], RunResult]
"""Trains one run and returns its result."""


@dataclass(frozen=True)
class Budget:
    """Minutes that a person gave, and the time of `time.monotonic` at which they end; a rehearsal takes none of it."""

    minutes: float
    until: float
    rehearsed: bool = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return 60 * self.minutes if self.rehearsed else self.until - time.monotonic()

    @property
    def late(self) -> float:
        """Seconds that it may be late."""
        return LATE * 60 * self.minutes

    def less(self, seconds: float) -> "Budget":
        """Return the budget that ends so many seconds earlier."""
        return replace(self, until=self.until - seconds)


@console.model_log()
@console.model_log()
def best_in(
    budget: Budget, config: RunConfig, start: Start, *, opened: OpenedImages | None = None, more: Sequence[str] = ()
) -> RunResult:
    """Train what makes the most of the time; return the run to keep.

    `more`: networks to use besides those on this machine, as `--with` names them. Raises OptionError: epochs are given
    too, or there are several runs or processes; and whatever `trainers.setup.prepare` raises."""
    require_one_run(config)
    opened, config = opened or OpenedImages(), without_luck(with_embedded_weights(config))
    console.say(f"the best model in {console.duration(60 * budget.minutes)}", label="plan")
    if config.model.name == "auto" and config.model.weights is None:
        return mixture(config, start, budget, opened, asked_for(more))
    if config.model.name == "auto":
        config = filled_in(config, cooling("scratch-small"))
    return one_model(filled_in(config, {"train": {"schedule": "cooldown"}}), start, budget, opened)


def cooling(recipe: str) -> dict[str, dict[str, Any]]:
    """Return the options of a recipe with a rate that stays until the run's end is near."""
    options = RECIPES[recipe].options
    return options | {"train": options["train"] | {"schedule": "cooldown"}}


@dataclass
class Plan:
    """A plan of a mixture: what it has to work with, what is done, and the pace that this showed."""

    config: RunConfig
    start: Start
    budget: Budget
    networks: Priced
    used: list[Network] = field(default_factory=list)
    """Frozen networks whose features are computed."""
    trained: list[RunResult] = field(default_factory=list)
    answer: RunResult | None = None
    accuracy: dict[str, float] = field(default_factory=dict)
    """That of each network of the first answer, by cross-validation."""
    slower: float = 1.0
    """How many times as long as measured alone the features took."""
    fixed: float = 0.0
    """Seconds of a network's features for any number of images."""
    fit: float | None = None
    """How many times as long as expected the latest fit took."""
    shown: int = 0
    """Networks of the latest answer with pictures."""
    found: bool = True
    """Whether a network can gain on the best frozen one."""

    @property
    def left(self) -> float:
        """Seconds that are left for more than the last fit."""
        return self.budget.left - self.end()

    def end(self, more: Sequence[Network] = ()) -> float:
        """Estimate the seconds of the last fit, with its pictures."""
        together = [*self.used, *more]
        return self.fitting(together) + self.slower * self.networks.pictures(together)

    def fitting(self, networks: Collection[Network]) -> float:
        """Estimate the seconds of a run that fits a head."""
        return (self.fit or self.slower) * (RUN + self.networks.fitting(networks))

    def features(self, network: Network) -> float:
        """Estimate the seconds of a network's features."""
        return self.fixed + self.slower * self.networks.cost([network])

    def compute(self, network: Network) -> None:
        """Compute a network's features, and take the pace of it from the smallest and the largest split.

        Where the smallest shows that there is no time for the others, they are left out, and so is the network."""
        times, sizes = list[tuple[int, float]](), self.networks.sizes
        images, alone, known = sum(sizes.values()), self.networks.cost([network]), self.networks.cost(self.used)
        for split in sorted(sizes, key=lambda split: sizes[split]):
            before = self.budget.left
            self.networks.compute(network, split)
            times.append((sizes[split], before - self.budget.left))
            cost = cost_between(times[0], times[-1])
            slower = max(1.0, (self.slower * known + cost.each * images) / (known + alone))
            rest = cost.each * (images - sum(count for count, _ in times))
            if len(times) == 1 and rest + slower * (RUN + self.networks.fitting([network])) > self.budget.left:
                self.slower = slower
                return
        self.slower, self.fixed = slower, len(times) * cost.fixed
        self.used.append(network)

    def compute_some(self, order: Iterable[Network], *, share: float) -> None:
        """Compute the features of those networks of an order, the first ones first, that there is time for.

        With their heat maps they may take a share of what is left, as long as they take alone: a busy processor makes
        fewer passes of training, not other networks."""
        left, chosen = self.budget.left - self.end() * (share < 1 and bool(self.used)), list[Network]()
        for network in (each for each in order if each not in self.used):
            more = [*chosen, network]
            alone = self.networks.cost(more) + self.networks.maps(self.networks.a_pass(more))
            if alone <= share * left and self.features(network) + self.end([network]) <= self.budget.left:
                self.compute(network)
                chosen = [each for each in more if each in self.used]

    def fit_head(self, kind: str, *, pictures: bool = True) -> None:
        """Fit one head to all networks so far, and say what it gave."""
        networks = [*self.used, *map(network_of, self.trained)]
        config = part_of_plan(frozen(self.config, networks, self.networks.canvas), kind, pictures=pictures)
        before, expected = self.budget.left, self.fitting(self.used) / (self.fit or self.slower)
        label = "frozen" if self.answer is None else "mixed"
        self.answer = self.start(options_begun(config), ())
        scores = self.answer.folder.heads
        if not pictures:
            self.fit = (before - self.budget.left) / expected or None
        say_result(label, self.answer, [shares_of(scores)] if self.trained else ranking(scores))
        self.accuracy = self.accuracy or frozen_accuracy(scores, self.used)


class Step(Protocol):
    """One step of the plan."""

    def seconds(self, plan: Plan) -> float:
        """Estimate what it takes at least; infinite where it makes no sense."""

    def run(self, plan: Plan) -> None:
        """Take it."""


class Quick:
    """Computes features with the quick networks; where nothing can follow, with all that there is time for."""

    def seconds(self, plan: Plan) -> float:
        return 0.0

    def run(self, plan: Plan) -> None:
        networks = plan.networks
        quick = networks.quick()
        useful, quickest = quick[0], min(networks.prices, key=lambda network: networks.prices[network].seconds)

        def alone(network: Network) -> float:
            return plan.features(network) + plan.fitting([network])

        if alone(useful) <= plan.budget.left < alone(useful) + TRAINING + plan.end([useful]):
            plan.compute(useful)
            plan.compute_some([*quick, *networks.slow()], share=1.0)
        else:
            plan.compute_some(quick, share=FIRST)
        if not plan.used and alone(quickest) <= plan.budget.left:
            plan.compute(quickest)


class Answer:
    """Fits a head without pictures where there is time to train after it, which its scores then decide."""

    def seconds(self, plan: Plan) -> float:
        return plan.fitting(plan.used) + TRAINING

    def run(self, plan: Plan) -> None:
        plan.fit_head("frozen", pictures=False)


class Others:
    """Computes features with the other networks that there is time for, the quickest first."""

    def seconds(self, plan: Plan) -> float:
        return 0.0

    def run(self, plan: Plan) -> None:
        quick, slow = plan.networks.quick(), plan.networks.slow()
        if plan.answer is None:
            plan.compute_some([*quick, *slow], share=1.0)
        else:
            plan.compute_some([*reversed(quick), *slow], share=FIRST)


class Train:
    """Trains networks that may do better than frozen, and mixes them in."""

    def seconds(self, plan: Plan) -> float:
        return math.inf if plan.answer is None or plan.trained else TRAINING

    def run(self, plan: Plan) -> None:
        found = ways(plan.accuracy, plan.networks, seconds=plan.left)
        plan.trained = train_each(plan.config, plan.start, found, plan.budget.less(plan.end()))
        plan.found = bool(found)


class Mix:
    """Fits the head of all networks, with pictures where there is time."""

    def seconds(self, plan: Plan) -> float:
        return -math.inf if plan.shown < len(plan.used) + len(plan.trained) else math.inf

    def run(self, plan: Plan) -> None:
        plan.shown = len(plan.used) + len(plan.trained)
        in_time = plan.left >= -plan.budget.late
        if not in_time:
            console.say("no time for pictures: `explain` draws heat maps", label="plan")
        plan.fit_head("mixed" if plan.answer else "", pictures=in_time)


STEPS: Sequence[Step] = (Quick(), Answer(), Others(), Train(), Mix())
SECOND_LOOK: Sequence[Step] = STEPS[2:]
"""Steps once more, with what the first ones took."""


def mixture(
    config: RunConfig, start: Start, budget: Budget, opened: OpenedImages, more: Sequence[Network]
) -> RunResult:
    """Train the mixture of the networks on this machine; where time is short, their frozen features alone."""
    networks = priced(config, [*local_networks(), *more], opened, rehearsed=budget.rehearsed)
    plan = Plan(config, start, budget, replace(networks, drawn=config.output.tb != "scalars"))
    for step in (*STEPS, *SECOND_LOOK):
        if step.seconds(plan) <= plan.left:
            step.run(plan)
        if not plan.used:
            console.say("no frozen networks: their features of all images would take the whole time", label="plan")
            return one_model(filled_in(config, cooling("finetune-small")), start, budget, opened)
    assert plan.answer is not None
    say_left_out(networks, plan.used)
    if budget.left > UNUSED * 60 * budget.minutes and not budget.rehearsed:
        why = "more passes over the images gain no more" if plan.found else "no network can gain on the best frozen one"
        why = "too little to train a network" if budget.left < TRAINING else why
        console.say(f"{console.duration(budget.left)} stay unused: {why}", label="plan")
    if not plan.trained:
        say_without_effect(config)
    return plan.answer


def train_each(config: RunConfig, start: Start, found: Sequence[Way], budget: Budget) -> list[RunResult]:
    """Train all of some networks, one after the other; return their runs. The budget is that of their mixing, too."""
    turns, results = list(shares(found, budget.left)), []
    for place, (way, _) in enumerate(turns):
        own = budget.less(sum(seconds for _, seconds in turns[place + 1 :]))
        training = own.less(way.mixing)
        if training.left < TRAINING:
            short = console.duration(TRAINING)
            console.say(f"{way.name} is not trained: less than {short} are left for it", label="plan")
            continue
        options = part_of_plan(filled_in(config, way.options), way.name, pictures=False)
        passes = min(way.most, way.passes(own.left))
        result = start(*with_deadline(options, passes, training.until, most=way.most))
        say_result("trained", result)
        results.append(result)
    return results


def one_model(config: RunConfig, start: Start, budget: Budget, opened: OpenedImages) -> RunResult:
    """Judge a model with weights frozen, if that takes a moment; then train it, and keep the better.

    Where there is no time for a pass over the images, it stays frozen; without weights it has part of a pass. With very
    little time left, no pictures are drawn."""
    config = part_of_plan(config, "", pictures=budget.left >= TRAINING)
    with console.quiet():
        setup = prepare(config.changed(train={"epochs": 1}), opened=opened)
    sizes = setup.data.dataset_sizes
    features = seconds_of_forward(setup, sum(sizes.values()))
    a_pass = STEP * features * sizes["train"] / sum(sizes.values())
    in_time, answer = budget.left - RUN - features > a_pass, None
    if (
        config.train.start_head in (None, "plain")
        and has_a_probe(setup)
        and features < budget.left * (FIRST if in_time else 1.0)
    ):
        probe = config.changed(model={"trainable": "head"}, **ON_FEATURES)
        answer = start(part_of_plan(probe, "frozen"), ())
        say_result("frozen", answer)
        if not in_time:
            console.say(f"{setup.config.model.name} stays frozen: a pass over the images takes too long", label="plan")
            return answer
    result = start(*with_deadline(config, (budget.left - RUN) / a_pass, budget.until))
    if answer is None:
        return result
    say_result("trained", result)
    return result if calibrated_loss(result) <= calibrated_loss(answer) else answer


def calibrated_loss(run: RunResult) -> float:
    """Return the log loss of a run on its validation images, after the best temperature."""
    path = run.run_dir / "eval" / "val_predictions.npz"
    if path.is_file():  # of many classes or images, whose logits are not kept
        with np.load(path, allow_pickle=False) as file:
            return float(file["losses"].mean(dtype=np.float64))
    _, labels, _, probabilities, _ = predictions_of(RunFolder(run.run_dir), "val")
    logits = np.log(np.maximum(probabilities, ROUNDED))
    return float(losses(sharpness(logits, labels) * logits, labels).mean())


def with_deadline(
    config: RunConfig, passes: float, until: float, *, most: float = math.inf
) -> tuple[RunConfig, list[Handler]]:
    """Return the options of about so many passes and the handler that ends them in time."""
    config = options_begun(config.changed(train={"epochs": rounded(passes)}))
    return config, [ending_at(until, most=most)]


def rounded(epochs: float) -> int | float:
    """Round to whole epochs where that changes the length by little, else to hundredths of one."""
    return int(epochs) if epochs >= 20 else max(0.01, int(100 * epochs) / 100)


def require_one_run(config: RunConfig) -> None:
    """Raises OptionError: the epochs are given, or there are several runs or processes."""
    if config.train.epochs is not None:
        raise OptionError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if launched() > 1:
        raise OptionError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        one = f"in a file, folds = {config.data.folds} and fold = 1"
        raise OptionError(f"--minutes plans one run; with --folds give --epochs, or one fold {one}")


def with_embedded_weights(config: RunConfig) -> RunConfig:
    """Let a model that is named start from the weights that come with it, unless the options say from which."""
    weights = embedded_weights(config.model)
    if weights is None:
        return config
    console.say(
        f"{config.model.name} from the weights that come with it, {weights}; --weights none: without", label="plan"
    )
    return config.changed(model={"weights": weights})


def without_luck(config: RunConfig) -> RunConfig:
    """Keep the last epoch of each run, unless a person chose otherwise or the rate stays high to the end.

    The best of many noisy scores is partly luck, and the rate falls to zero by plan."""
    train = config.train
    left_open = train.select == "auto" and not train.patience
    return config.changed(train={"select": "last"}) if left_open and train.schedule != "constant" else config


def has_a_probe(setup: RunSetup) -> bool:
    """Return whether a model that was named starts from weights, is to be trained, and can be judged frozen before."""
    model = setup.config.model
    if model.weights == "none" or model.trainable == "head":
        return False
    layers = [layer for part in anatomy_of(setup.model).head for layer in part.modules()]
    return sum(isinstance(layer, nn.Linear) for layer in layers) == 1


def part_of_plan(config: RunConfig, kind: str, *, pictures: bool = True) -> RunConfig:
    """Return the options of one of several runs: with a name of its own where one was given, and without pictures
    where another run has them."""
    output: dict[str, Any] = {} if pictures or config.output.tb != "standard" else {"tb": "scalars"}
    if config.output.run_name is not None and kind:
        output["run_name"] = f"{config.output.run_name}_{kind}"
    return config.changed(output=output)


def options_begun(config: RunConfig) -> RunConfig:
    """Return the options with which this very command began this run before it was stopped, else these.

    It is found by its name, or by its options but for the epochs."""
    output = config.output
    if not output.auto_resume:
        return config
    run = find_same_options(config, planned=True) if output.run_name is None else RunFolder(named_folder(config))
    begun = run.requested if run is not None and run.is_of_this_command else None
    return config if begun is None else replace(begun, output=output)


def network_of(result: RunResult) -> Network:
    """Return the network that a run has trained, for a mixture."""
    model = RunFolder(result.run_dir).config.model
    return Network(model.name, model.image_size or image_spec(model).image_size, weights=str(result.run_dir))


def say_left_out(networks: Priced, used: Collection[Network]) -> None:
    """Say which networks there is no time for."""
    if left_out := [str(network) for network in networks.prices if network not in used]:
        console.say(f"no time for the features of {', '.join(left_out)}", label="plan")


def say_without_effect(config: RunConfig) -> None:
    """Say which options of training were given, where no network is trained."""
    obeyed = {*run_options(InPlans), *run_options(InFits)}
    training = (o for o in run_options() if o.section in ("model", "train") or Training in o.marks)
    if idle := [option.said for option in training if option not in obeyed and config.is_given(option)]:
        console.say(f"no effect, as no network is trained: {', '.join(idle)}", label="note")


def say_result(label: str, result: RunResult, more: Iterable[str] = ()) -> None:
    """Say what a run of the plan gave, and more lines about it."""
    for line in more:
        console.say(line, label="")
    accuracy, loss = console.percent(result.val["accuracy"]), result.val["loss"]
    images = pluralise(result.images["val"], "validation image")
    console.say(f"{accuracy} of {images} right, log loss {loss:.3f}: {result.run_dir}", label=label)
