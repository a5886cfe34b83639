"""A model that was named, trained alone for a time; with weights it is judged frozen first."""

import numpy as np
from torch import nn

from datasets.open import OpenedImages
from trainers.budget.networks import ON_FEATURES, STEP
from trainers.budget.pace import RUN, seconds_of_forward
from trainers.budget.planned_run import FIRST, TRAINING, Budget, Start, part_of_plan, say_result, with_deadline
from trainers.calibration import losses, sharpness
from trainers.config import RunConfig
from trainers.reporting import console
from trainers.setup import RunSetup, prepare
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult, predictions_of
from vit.anatomy import anatomy_of

ROUNDED = 1e-12
"""Probability that stands for those that the file of predictions has rounded to 0."""


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


def has_a_probe(setup: RunSetup) -> bool:
    """Return whether a model that was named starts from weights, is to be trained, and can be judged frozen before."""
    model = setup.config.model
    if model.weights == "none" or model.trainable == "head":
        return False
    layers = [layer for part in anatomy_of(setup.model).head for layer in part.modules()]
    return sum(isinstance(layer, nn.Linear) for layer in layers) == 1
