"""`--minutes M`: the best classifier for the time there is, as one function that trains.

1. The pretrained networks on this machine whose features take at most 40 % of the time, frozen, under one fitted head.
2. All of the embedded ViT in half of the time that is left; the last stages of EfficientNet-Lite0 in the other half.
3. The mixture of the frozen and the trained networks, by weights that are fitted to the validation images.

A model that is named, or without weights, is trained alone; with weights it is judged frozen first.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from common.errors import OptionError
from common.options import InFits, InPlans, Training
from common.text import pluralise
from datasets.open import OpenedImages
from trainers.auto_resume import find_same_options
from trainers.budget.deadline import ending_at
from trainers.budget.networks import (
    FILES,
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
from trainers.budget.pace import seconds_of_forward
from trainers.calibration import losses, sharpness
from trainers.config import RunConfig, run_options
from trainers.heads.fit import PartScores, ranking, shares_of
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
"""Share of the time that all images may take with the quick networks; and of what is left then, with the others."""
MOST = 0.8
"""Share that they may take where other programs use the processors, too."""
LATE = 0.9
"""Share that the most useful network may take where nothing can follow it: without it the answer is much worse."""
SHORT = 30.0
"""Seconds that are too few for anything to be trained after the first answer."""
ANSWER = 0.004
"""Seconds expected for the fit and the scores of a head, for each feature."""
PICTURES = 8.0
"""Seconds of the pictures of a mixture without its heat maps."""
IDLE = 20.0
"""Seconds that may stay unused without a word; fewer are not enough to train a network."""

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

    def less(self, seconds: float) -> "Budget":
        """Return the budget that ends so many seconds earlier."""
        return replace(self, until=self.until - seconds)


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


def mixture(
    config: RunConfig, start: Start, budget: Budget, opened: OpenedImages, more: Sequence[Network]
) -> RunResult:
    """Train the mixture of the networks on this machine; where time is short, their frozen features alone."""
    networks = priced(config, [*local_networks(), *more], opened, rehearsed=budget.rehearsed)
    networks = replace(networks, drawn=config.output.tb != "scalars")
    useful = networks.quick()[:1]
    alone, mixing = networks.cost(useful), to_mix(networks, useful, 2 * ANSWER, 1.0)
    shown = alone + networks.cost(useful, networks.passes)
    if shown <= LATE * budget.left and budget.left - alone - mixing < SHORT:
        first, slower = compute_features(networks, useful, budget, share=LATE)  # nothing can follow it
    else:
        first, slower = compute_features(networks, networks.quick(), budget)
    if not first:
        console.say("no frozen networks: their features of all images would take the whole time", label="plan")
        return one_model(filled_in(config, cooling("finetune-small")), start, budget, opened)
    expected = slower * ANSWER
    mixing = to_mix(networks, first, expected, slower)
    if budget.left - expected * networks.features(first) - mixing < SHORT:
        order = [*networks.quick(), *networks.slow()]
        first += compute_features(networks, order, budget.less(mixing), known=first, share=MOST)[0]
        only, scores = fitted(config, start, networks, first)
        say_result("frozen", only, ranking(scores))
        say_left_out(networks, first)
        say_without_effect(config)
        return only
    before = budget.left
    answer, scores = fitted(config, start, networks, first, "frozen", pictures=False)
    a_feature = (before - budget.left) / networks.features(first)
    say_result("frozen", answer, ranking(scores))
    time_for_more = budget.less(to_mix(networks, first, a_feature, slower))
    cheapest = [*reversed(networks.quick()), *networks.slow()]
    rest, _ = compute_features(networks, cheapest, time_for_more, known=first)
    together = [*first, *rest]
    say_left_out(networks, together)
    for_training = budget.less(to_mix(networks, together, a_feature, slower))
    found = ways(frozen_accuracy(scores, first), networks, seconds=for_training.left)
    trained = train_each(config, start, found, for_training)
    if not trained:
        say_without_effect(config)
    together += map(network_of, trained)
    mixed, scores = fitted(config, start, networks, together, "mixed")
    say_result("mixed", mixed, [shares_of(scores)])
    return mixed


def fitted(
    config: RunConfig, start: Start, networks: Priced, used: Sequence[Network], kind: str = "", *, pictures: bool = True
) -> tuple[RunResult, PartScores]:
    """Fit one head to all of some networks; return the run, and the scores of its parts."""
    result = start(options_begun(part_of_plan(frozen(config, used, networks.canvas), kind, pictures=pictures)), ())
    return result, RunFolder(result.run_dir).heads


def compute_features(
    networks: Priced, order: Sequence[Network], budget: Budget, *, known: Sequence[Network] = (), share: float = FIRST
) -> tuple[list[Network], float]:
    """Compute features of all images with those networks of an order, the first ones first, that there is time for.

    With their heat maps they may take a share of the budget where they have the processor alone. Where other programs
    use it, all takes longer, which the first network shows: then up to `MOST` of it, for fewer would be worse. Return
    them, and how many times as long they took as alone. The quickest network may take all of the time of the command,
    if no other is known: better late than never."""
    before, chosen, images = budget.left, list[Network](), sum(networks.sizes.values())

    def slower() -> float:
        return max(1.0, (before - budget.left) / networks.cost(chosen)) if chosen else 1.0

    for network in (each for each in order if each not in known):
        more = [*chosen, network]
        expected = before - budget.left + slower() * (networks.cost([network]) + networks.cost(more, networks.passes))
        if networks.cost(more, images + networks.passes) <= share * before and expected <= max(share, MOST) * before:
            networks.compute(network)
            chosen.append(network)
    quickest = min(networks.prices, key=lambda network: networks.prices[network].seconds)
    if not chosen and not known and networks.cost([quickest]) <= 60 * budget.minutes:
        networks.compute(quickest)
        chosen.append(quickest)
    return chosen, slower()


def to_mix(networks: Priced, used: Sequence[Network], a_feature: float, slower: float) -> float:
    """Estimate the seconds of a fit and scores, `a_feature` for each feature, and of pictures with heat maps."""
    pictures = PICTURES * networks.drawn + networks.cost(used, networks.passes)
    return a_feature * networks.features(used) + slower * pictures


def train_each(config: RunConfig, start: Start, found: Sequence[Way], budget: Budget) -> list[RunResult]:
    """Train all of some networks, one after the other; return their runs. The budget is that of their mixing, too."""
    turns, results = list(shares(found, budget.left)), []
    for place, (way, _) in enumerate(turns):
        own = budget.less(sum(seconds for _, seconds in turns[place + 1 :]))
        training = own.less(way.mixing)
        if training.left < IDLE:
            console.say(f"{way.name} is not trained: less than {console.duration(IDLE)} are left for it", label="plan")
            continue
        options = part_of_plan(filled_in(config, way.options), way.name, pictures=False)
        passes = min(way.most, way.passes(own.left))
        result = start(*with_deadline(options, passes, training.until, most=way.most))
        say_result("trained", result)
        results.append(result)
    if budget.left > IDLE and (results or not turns):
        why = "more passes over the images gain no more" if results else "no network can gain on the best frozen one"
        console.say(f"{console.duration(budget.left)} stay unused: {why}", label="plan")
    return results


def one_model(config: RunConfig, start: Start, budget: Budget, opened: OpenedImages) -> RunResult:
    """Judge a model with weights frozen, if that takes a moment; then train it, and keep the better.

    Where there is no time for a pass over the images, it stays frozen; without weights it has part of a pass."""
    with console.quiet():
        setup = prepare(config.changed(train={"epochs": 1}), opened=opened)
    sizes = setup.data.dataset_sizes
    features = seconds_of_forward(setup, sum(sizes.values()))
    a_pass = STEP * features * sizes["train"] / sum(sizes.values())
    in_time, answer = budget.left - FILES - features > a_pass, None
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
    result = start(*with_deadline(config, (budget.left - FILES) / a_pass, budget.until))
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
