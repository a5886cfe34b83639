"""Unequal classes, and runs that learn nothing: chosen by what counts, weighed within bounds, and said."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events
from sklearn.metrics import balanced_accuracy_score
from test_trainers_metrics import score

from datasets.loaders import class_weights
from trainers.config import TrainConfig
from trainers.options import defaults
from trainers.reporting import console


def test_balanced_accuracy_of_a_pass_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(100, 8, generator=generator), torch.randint(0, 7, (100,), generator=generator)
    logits[:, 7] = -9  # a class without an image, and never predicted
    assert score(logits, labels)["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels, logits.argmax(1)), rel=1e-12
    )


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


def test_a_run_that_learns_nothing_says_so_once_after_a_fifth_and_what_to_type(capsys):
    assert lines_of_a_run(capsys, [0.3, 0.5]) == ""
    words = lines_of_a_run(capsys, [0.2, 0.41])
    assert words.count("not learning") == 1
    assert "after 2 of 10 epochs" in words
    assert "accuracy 41.0%, always 'c' would have 40.0%" in words
    assert "--lr 0.0005" in words
    assert lines_of_a_run(capsys, [0.2, 0.2, 0.2, 0.5], warmup=3.3) == ""
    assert "not learning" in lines_of_a_run(capsys, [0.2, 0.448])  # a standard error of 100 images is 4.9 points
    assert lines_of_a_run(capsys, [0.2, 0.45]) == ""
    words = lines_of_a_run(capsys, [0.2, 0.38], train_accuracy=0.99)
    assert "learns its training images alone" in words
    assert "--lr" not in words
    assert lines_of_a_run(capsys, [0.3, 0.39], select="balanced_accuracy") == ""
    words = lines_of_a_run(capsys, [0.3, 0.34], select="balanced_accuracy")
    assert "balanced accuracy 34.0%, always 'c' would have 33.3%; it may call everything so" in words


def test_the_last_lines_show_balanced_accuracy_beside_accuracy(capsys, tmp_path):
    from commands.train import report

    (tmp_path / "config.json").write_text("{}")
    metrics = {"accuracy": 0.98, "balanced_accuracy": 0.5, "loss": 0.1, "macro_f1": 0.49, "ece": 0.01}
    report(SimpleNamespace(val=metrics, test=None, best_epoch=3, run_dir=tmp_path, images={"val": 200}, designs={}))
    assert "accuracy  balanced" in capsys.readouterr().out
