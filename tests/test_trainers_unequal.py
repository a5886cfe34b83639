"""Unequal classes, and runs that learn nothing: chosen by what counts, weighed within bounds, and said."""

from types import SimpleNamespace

import numpy as np
import pytest
from ignite.engine import Engine, Events

from datasets.loaders import class_weights
from trainers.config import TrainConfig
from trainers.options import defaults
from trainers.reporting import console


def test_unequal_classes_are_chosen_by_balanced_accuracy_unless_asked_otherwise():
    unequal, equal = np.repeat([0, 1], [280, 6]), np.repeat([0, 1, 3], [50, 60, 55])
    assert TrainConfig().select == "auto"
    assert defaults.resolve_select("auto", unequal) == "balanced_accuracy"
    assert defaults.resolve_select("auto", equal) == "accuracy"
    assert defaults.resolve_select("loss", unequal) == "loss"


def test_a_loss_weight_is_at_most_ten_times_another():
    def of(counts):
        return SimpleNamespace(samples=SimpleNamespace(counts=lambda split: counts))

    few = class_weights(of(np.array([280, 6])))
    assert few.tolist() == pytest.approx([286 / (280 + 6 * 10), 10 * 286 / (280 + 6 * 10)])
    counts = np.array([50, 60, 7])
    assert class_weights(of(counts)).tolist() == pytest.approx((counts.sum() / (3 * counts)).tolist(), rel=1e-7)


def lines_of_a_run(capsys, val_accuracies, *, train_accuracy=0.12, epochs=10, warmup=1, select="accuracy"):
    trainer = Engine(lambda engine, batch: None)
    val = SimpleNamespace(dataset=SimpleNamespace(labels=np.repeat(range(3), [30, 30, 40])))
    train = TrainConfig(epochs=epochs, warmup_epochs=warmup, lr=2e-3, select=select)
    config = SimpleNamespace(train=train, data=SimpleNamespace(balance="none"))
    data = SimpleNamespace(dataloaders={"val": val}, class_names=("a", "b", "c"))
    console.attach_learning_note(trainer, SimpleNamespace(config=config, data=data))
    trainer.state.history = []

    @trainer.on(Events.EPOCH_STARTED)
    def epoch(engine):
        accuracy = val_accuracies[min(engine.state.epoch, len(val_accuracies)) - 1]
        row = {"epoch": engine.state.epoch, f"val_{select}": accuracy, "train_accuracy": train_accuracy}
        engine.state.history.append(row)

    trainer.run([0], max_epochs=epochs)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("accuracies", "options", "said"),
    [
        ([0.3, 0.5], {}, ""),
        ([0.2, 0.41], {}, "--lr 0.0005"),
        ([0.2, 0.2, 0.2, 0.5], {"warmup": 3.3}, ""),
        ([0.2, 0.448], {}, "not learning"),  # a standard error of 100 images is 4.9 points
        ([0.2, 0.45], {}, ""),
        ([0.2, 0.38], {"train_accuracy": 0.99}, "training images alone"),
        ([0.3, 0.39], {"select": "balanced_accuracy"}, ""),
        ([0.3, 0.34], {"select": "balanced_accuracy"}, "33.3%"),
    ],
)
def test_a_run_that_learns_nothing_says_so_once_after_a_fifth(capsys, accuracies, options, said):
    words = lines_of_a_run(capsys, accuracies, **options)
    assert (said in words, bool(words)) == (True, bool(said))
    assert words.count("after 2 of 10") == bool(said)
