"""A model that was named, trained alone for a time, as it learns most in it."""

from typing import Any

from datasets.open import OpenedImages
from trainers.budget.networks import ON_FEATURES, STEP
from trainers.budget.pace import RUN, drawing, seconds_of_forward
from trainers.budget.planned_run import Budget, Start, part_of_plan, say_result, say_unused, with_deadline
from trainers.config import RunConfig, run_options
from trainers.options import defaults
from trainers.options.recipes import RECIPES, filled_in
from trainers.reporting import console
from trainers.setup import prepare
from trainers.storage.run_result import RunResult
from vit.config import EMBEDDED_WEIGHTS

DRAWING = 0.2
"""Share of the time that is left up to which pictures are drawn."""
BY_STEPS = {"lr", "optimizer", "augment", "mixup", "cutmix", "start_head", "cache_features"}
"""Options with which a head is to be trained by steps, or cannot be fitted."""


def suited(config: RunConfig) -> RunConfig:
    """Return the options with which a model learns in little time, but for those that were given.

    A frozen network gets a fitted head, a pretrained one begins with such a head, which the last pass has to beat
    (LP-FT: Kumar et al. 2022, arXiv:2202.10054), and the learning rate falls when the end is near."""
    train: dict[str, Any] = {"schedule": "cooldown"}
    if config.model.trainable == "head":
        if BY_STEPS.isdisjoint(option.name for option in run_options() if config.is_given(option)):
            return filled_in(config, ON_FEATURES)
    elif defaults.with_model(config).model.weights != "none":
        train["start_head"] = "probe"
        if config.model.name in EMBEDDED_WEIGHTS.values():
            train["layer_decay"] = RECIPES["finetune-small"].options["train"]["layer_decay"]
    return filled_in(config, {"train": train})


def one_model(config: RunConfig, start: Start, budget: Budget, opened: OpenedImages) -> RunResult:
    """Train a model for the time; a pretrained one without time for a pass over the images stays frozen.

    One without weights has part of a pass. Pictures are drawn where they take little of the time."""
    with console.quiet():
        setup = prepare(config.changed(train={"epochs": 1}), opened=opened)
    sizes, model = setup.data.dataset_sizes, setup.config.model
    features = seconds_of_forward(setup, sum(sizes.values()))
    an_image = features / sum(sizes.values())
    pictures = drawing(an_image, sizes["val"]) <= DRAWING * budget.left
    if not pictures and config.output.tb == "standard":
        console.say("no time for pictures: `explain` draws heat maps", label="plan")
    config = part_of_plan(config, "", pictures=pictures)
    a_pass = STEP * an_image * sizes["train"]
    scores = features if model.weights != "none" else an_image * (sum(sizes.values()) - sizes["train"])
    left = budget.left - RUN - scores  # and of a head, which is fitted to the training images
    if model.weights != "none" and model.trainable != "head" and left <= a_pass and features < budget.left:
        console.say(f"{model.name} stays frozen: a pass over the images takes too long", label="plan")
        config = config.changed(model={"trainable": "head"})
    config = suited(config)
    if config.train.start_head != "fit":
        return start(*with_deadline(config, max(left, 0.0) / a_pass, budget.until))
    result = start(config, ())
    say_result("frozen", result)
    say_unused(budget, "a head is fitted at once")
    return result
