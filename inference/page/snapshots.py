"""Load a run's model as it was: untrained, after quarters, at its best."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from common.errors import report_damage
from inference.classifier import Classifier
from trainers.config import RunConfig
from trainers.engine.randomness import seed_everything
from trainers.storage.checkpoint_file import open_best, read_checkpoint
from trainers.storage.run_folder import SNAPSHOTS, untrusted_run
from vit.factory import Blueprint, local_pretrained_models
from vit.tensor_files import read_tree


class Snapshot(NamedTuple):
    """A model at one time, and how to have it.

    `share`: of the run's epochs before that time; its best counts as 1."""

    name: str
    share: float
    load: Callable[[], nn.Module]


def snapshots_of(classifier: Classifier) -> list[Snapshot]:
    """List a run's snapshots in time, the best last; else the model as it is."""
    now = lambda: classifier.model  # noqa: E731
    if (run := classifier.run) is None:
        return [Snapshot("as it is", 1.0, now)]
    config = run.config
    snapshots = [Snapshot(f"best: epoch {read_checkpoint(run.best)['epoch']}", 1.0, now)]
    with report_damage(run.path / SNAPSHOTS):
        kept = [read_tree(path) for path in (run.path / SNAPSHOTS).glob("step_*.safetensors")]
        for tree in sorted(kept, key=lambda tree: -tree["epoch"]):
            share = tree["epoch"] / (config.train.epochs or 1)
            snapshots.append(Snapshot(f"after {tree['epoch']} epochs", share, partial(kept_model, classifier, tree)))
    if can_be_rebuilt(config):
        name = "untrained" if config.model.weights == "none" else "before the first step"
        snapshots.append(Snapshot(name, 0.0, partial(untrained_model, classifier, config)))
    return snapshots[::-1]


def kept_model(classifier: Classifier, tree: dict[str, Any]) -> nn.Module:
    """Load the model with the weights of a quarter, kept in half precision.

    Raises CheckpointError: they are another's."""
    assert classifier.run is not None
    model = open_best(classifier.run).model
    with report_damage(classifier.run.path / SNAPSHOTS):
        model.load_state_dict(tree["model"])
    return model.to(classifier.device)


def can_be_rebuilt(config: RunConfig) -> bool:
    """Return whether a run's first weights can be had from what is here.

    That is without its images, a download, or a file that a stranger's run may name."""
    known = {(model.name, model.weights) for model in local_pretrained_models()}
    at_once = config.model.weights == "none" or (config.model.name, config.model.weights) in known
    return at_once and config.train.start_head not in ("probe", "fit")


def untrained_model(classifier: Classifier, config: RunConfig) -> nn.Module:
    """Build the model of a run before its first step, from its seed."""
    names = tuple(classifier.class_names)
    seed_everything(config.train.seed)
    with untrusted_run():
        return Blueprint(config.model).build(num_classes=len(names), class_names=names).eval().to(classifier.device)
