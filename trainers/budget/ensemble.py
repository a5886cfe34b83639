"""The ensemble of a plan, as a list of steps with what each costs.

1. The pretrained networks on this machine whose features take at most 40 % of the time, frozen, under one fitted head.
2. All of the embedded ViT in half of the time that is left; the last stages of EfficientNet-Lite0 in the other half.
3. The ensemble of the frozen and the trained networks, by weights that are fitted to the validation images.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from common.options import InFits, InPlans, Training
from datasets.open import OpenedImages
from trainers.budget.named import one_model
from trainers.budget.networks import (
    Priced,
    Way,
    frozen,
    frozen_accuracy,
    local_networks,
    priced,
    shares,
    ways,
)
from trainers.budget.pace import RUN, cost_between
from trainers.budget.planned_run import (
    TRAINING,
    Budget,
    Start,
    options_begun,
    part_of_plan,
    say_result,
    say_unused,
    with_deadline,
)
from trainers.config import RunConfig, run_options
from trainers.heads.fit import ranking, shares_of
from trainers.options.recipes import cooling, filled_in
from trainers.reporting import console
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult
from vit.config import Network
from vit.factory import image_spec

FIRST = 0.4
"""Share of the time that frozen networks may take where others are trained: the quick ones first, then the others."""


@dataclass
class Plan:
    """A plan of an ensemble: what it works with, what is done, and its pace."""

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
    fit: tuple[float, float] | None = None
    """Seconds that the latest fit without pictures took with its run, and those that it was priced at."""
    shown: int = 0
    """Networks of the latest answer with pictures."""
    unused: str = "too little to train a network"
    """Why time stays unused."""

    @property
    def left(self) -> float:
        """Return the seconds that are left for more than the last fit."""
        return self.budget.left - self.end()

    def end(self, more: Sequence[Network] = ()) -> float:
        """Estimate the seconds of the last fit, with its pictures."""
        together = [*self.used, *more]
        return self.fitting(together) + self.slower * self.networks.pictures(together)

    def fitting(self, networks: Collection[Network]) -> float:
        """Estimate the seconds of a run that fits a head, from the latest one."""
        priced = RUN + self.networks.fitting(networks)
        if self.fit is None:
            return self.slower * priced
        seconds, known = self.fit
        return seconds + max(self.slower, seconds / known) * (priced - known)

    def features(self, network: Network) -> float:
        """Estimate the seconds of a network's features."""
        return self.fixed + self.slower * self.networks.cost([network])

    def compute(self, network: Network) -> None:
        """Compute a network's features, and measure the pace on the smallest and largest split.

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
        """Compute the features of the first networks of an order that there is time for.

        With their heat maps they may take a share of what is left, as long as they take alone: a busy processor makes
        fewer passes of training, not other networks."""
        left, chosen = self.budget.left - self.end() * (share < 1 and bool(self.used)), list[Network]()
        for network in (each for each in order if each not in self.used):
            more = [*chosen, network]
            alone = self.networks.cost(more) + self.networks.maps(more)
            if alone <= share * left and self.features(network) + self.end([network]) <= self.budget.left:
                self.compute(network)
                chosen = [each for each in more if each in self.used]

    def fit_head(self, kind: str, *, pictures: bool = True) -> None:
        """Fit one head to all networks so far, and say what it gave."""
        networks = [*self.used, *map(network_of, self.trained)]
        config = part_of_plan(frozen(self.config, networks, self.networks.canvas), kind, pictures=pictures)
        before = self.budget.left
        label = "frozen" if self.answer is None else "mixed"
        self.answer = self.start(options_begun(config), ())
        scores = self.answer.folder.heads
        if not pictures:
            self.fit = (before - self.budget.left, RUN + self.networks.fitting(self.used))
        say_result(label, self.answer, [shares_of(scores)] if self.trained else ranking(scores))
        self.accuracy = self.accuracy or frozen_accuracy(scores, self.used)


class Step(Protocol):
    """One step of the plan."""

    def seconds(self, plan: Plan) -> float:
        """Estimate what it takes at least; infinite where it makes no sense."""

    def run(self, plan: Plan) -> None:
        """Take it."""


class Quick:
    """Computes features with the quick networks, or with all where nothing can follow."""

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
    """Fits a head without pictures where there is time to train after it.

    Its scores decide what is trained."""

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
        if plan.trained or not found:
            no_more = "more passes over the images gain no more"
            plan.unused = no_more if found else "no network can gain on the best frozen one"


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


def ensemble(
    config: RunConfig, start: Start, budget: Budget, opened: OpenedImages, more: Sequence[Network]
) -> RunResult:
    """Train the ensemble of the networks on this machine.

    Where time is short, it is one of their frozen features alone."""
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
    say_unused(budget, "too little to train a network" if budget.left < TRAINING else plan.unused)
    if not plan.trained:
        say_without_effect(config)
    return plan.answer


def train_each(config: RunConfig, start: Start, found: Sequence[Way], budget: Budget) -> list[RunResult]:
    """Train all of some networks, one after the other; return their runs.

    The budget is that of their mixing, too."""
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


def network_of(result: RunResult) -> Network:
    """Return the network that a run has trained, for an ensemble."""
    model = RunFolder(result.run_dir).config.model
    return Network(model.name, model.image_size or image_spec(model).image_size, weights=str(result.run_dir))


def say_left_out(networks: Priced, used: Collection[Network]) -> None:
    """Say which networks there is no time for."""
    if left_out := [str(network) for network in networks.prices if network not in used]:
        console.say(f"not tried, for lack of time: {', '.join(left_out)}", label="plan")


def say_without_effect(config: RunConfig) -> None:
    """Say which options of training were given, where no network is trained."""
    obeyed = {*run_options(InPlans), *run_options(InFits)}
    training = (o for o in run_options() if o.section in ("model", "train") or Training in o.marks)
    if idle := [option.said for option in training if option not in obeyed and config.is_given(option)]:
        console.say(f"no effect, as no network is trained: {', '.join(idle)}", label="note")
