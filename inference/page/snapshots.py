"""A run's model as it learned: before its first step, after each quarter where it kept its weights, and at its best."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from inference.classifier import Classifier
from trainers.config import RunConfig
from trainers.engine.randomness import seed_everything
from trainers.errors import report_damage
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.finished_run import open_best, read_run_config, untrusted_run
from vit.at_hand import at_hand
from vit.factory import Blueprint
from vit.tensor_files import read_tree


class Snapshot(NamedTuple):
    """When a model was so, after which share of the run's epochs (its best counts as 1), and how to have it."""

    name: str
    share: float
    load: Callable[[], nn.Module]


def snapshots_of(classifier: Classifier) -> list[Snapshot]:
    """In the order of time, the best last; of what is no run, the model as it is."""
    now = lambda: classifier.model  # noqa: E731
    if classifier.run_dir is None:
        return [Snapshot("as it is", 1.0, now)]
    run_dir, config = classifier.run_dir, read_run_config(classifier.run_dir)
    moments = [Snapshot(f"best: epoch {read_checkpoint(best_of(run_dir))['epoch']}", 1.0, now)]
    with report_damage(run_dir / "moments"):
        kept = [read_tree(path) for path in (run_dir / "moments").glob("step_*.safetensors")]
        for tree in sorted(kept, key=lambda tree: -tree["epoch"]):
            share = tree["epoch"] / (config.train.epochs or 1)
            moments.append(Snapshot(f"after {tree['epoch']} epochs", share, partial(kept_model, classifier, tree)))
    if can_be_rebuilt(config):
        name = "untrained" if config.model.weights == "none" else "before the first step"
        moments.append(Snapshot(name, 0.0, partial(untrained_model, classifier, config)))
    return moments[::-1]


def kept_model(classifier: Classifier, tree: dict[str, Any]) -> nn.Module:
    """The model with the weights of a quarter, which a run keeps in half precision. Raises CheckpointError: they are
    another's."""
    assert classifier.run_dir is not None
    model = open_best(best_of(classifier.run_dir)).model
    with report_damage(Path(classifier.run_dir, "moments")):
        model.load_state_dict(tree["model"])
    return model.to(classifier.device)


def can_be_rebuilt(config: RunConfig) -> bool:
    """Whether a run's first weights can be had without its images, a download, or a file that a stranger's run may
    name."""
    known = {(model.name, model.weights) for model in at_hand()}
    at_once = config.model.weights == "none" or (config.model.name, config.model.weights) in known
    return at_once and config.train.start_head == "plain"


def untrained_model(classifier: Classifier, config: RunConfig) -> nn.Module:
    """The model of a run before its first step, to the last bit: built from its seed once more."""
    names = tuple(classifier.class_names)
    seed_everything(config.train.seed)
    with untrusted_run():
        return Blueprint(config.model).build(num_classes=len(names), class_names=names).eval().to(classifier.device)
