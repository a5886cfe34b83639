"""A model that was named, trained alone for a time, as it learns most in it."""

import math
from typing import Any

from common.errors import OptionError
from datasets.open import OpenedImages
from trainers.budget.networks import ON_FEATURES, STEP
from trainers.budget.pace import RUN, drawing, seconds_of_forward, times_in_float32
from trainers.budget.planned_run import TRAINING, Budget, Start, part_of_plan, say_result, say_unused, with_deadline
from trainers.config import RunConfig, run_options
from trainers.options import defaults
from trainers.options.recipes import RECIPES, filled_in
from trainers.reporting import console
from trainers.setup import prepare
from trainers.storage.run_result import RunResult
from vit.config import EMBEDDED_WEIGHTS, ModelConfig

DRAWING = 0.2
"""Share of the time that is left up to which pictures are drawn."""
BY_STEPS = {"lr", "optimizer", "augment", "mixup", "cutmix", "start_head", "cache_features"}
"""Options with which a head is to be trained by steps, or cannot be fitted."""


def suited(config: RunConfig, *, heads: bool = True) -> RunConfig:
    """Return the options with which a model learns in little time; given ones stay.

    A frozen network gets a fitted head, a pretrained one begins with such a head, which the last pass has to beat
    (LP-FT: Kumar et al. 2022, arXiv:2202.10054), and the learning rate falls when the end is near. `heads`: whether
    there is time to fit one."""
    train: dict[str, Any] = {"schedule": "cooldown"}
    if config.model.trainable == "head":
        if BY_STEPS.isdisjoint(option.name for option in run_options() if config.is_given(option)):
            return filled_in(config, ON_FEATURES)
    elif defaults.with_model(config).model.weights != "none":
        train["start_head"] = "probe" if heads else "plain"
        if config.model.name in EMBEDDED_WEIGHTS.values():
            train["layer_decay"] = RECIPES["finetune-small"].options["train"]["layer_decay"]
    return filled_in(config, {"train": train})


def require_time(budget: Budget, model: ModelConfig, *, held_out: float, features: float, a_pass: float) -> None:
    """Raise OptionError where scores, or a frozen network's features, take longer than there is time."""
    frozen = model.trainable == "head"
    least = features if frozen else held_out
    if least > max(budget.left, TRAINING):
        rest = a_pass if model.weights == "none" else features - held_out
        minutes = math.ceil(budget.minutes + (RUN + held_out + rest - budget.left) / 60)
        what = "its features of all images" if frozen else "the scores of the validation and test images"
        takes = f"{what} alone take {console.duration(least)}"
        raise OptionError(
            f"--minutes {budget.minutes:g} is too little for {model.name}: {takes}; give {minutes} or more"
        )


def one_model(config: RunConfig, start: Start, budget: Budget, opened: OpenedImages) -> RunResult:
    """Train a model for the time.

    A pretrained one without time for a pass over the images stays frozen. One without weights has part of a pass.
    Pictures are drawn where they take little of the time. Raises OptionError: nothing can be trained in it."""
    with console.quiet():
        setup = prepare(config.changed(train={"epochs": 1}), opened=opened)
    sizes, model = setup.data.dataset_sizes, setup.config.model
    features = seconds_of_forward(setup, sum(sizes.values()))
    an_image = features / sum(sizes.values())
    a_pass, held_out = STEP * an_image * sizes["train"], an_image * (sum(sizes.values()) - sizes["train"])
    require_time(budget, model, held_out=held_out, features=features, a_pass=a_pass)
    pictures = drawing(times_in_float32(setup) * an_image, sizes["val"]) <= DRAWING * budget.left
    if not pictures and config.output.tb == "standard":
        console.say("no time for pictures: `explain` draws heat maps", label="plan")
    config = part_of_plan(config, "", pictures=pictures)
    heads = model.weights != "none" and features < budget.left
    left = budget.left - RUN - (features if heads else held_out)
    if heads and model.trainable != "head" and left <= a_pass:
        console.say(f"{model.name} stays frozen: a pass over the images takes too long", label="plan")
        config = config.changed(model={"trainable": "head"})
    config = suited(config, heads=heads)
    if config.train.start_head != "fit":
        result = start(*with_deadline(config, max(left, 0.0) / a_pass, budget.until))
        say_unused(budget, "the end was set, by the pace until then, when the rate began to fall")
        return result
    result = start(config, ())
    say_result("frozen", result)
    say_unused(budget, "a head is fitted at once")
    return result
