import io
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events
from torch.amp import GradScaler

from datasets.loaders import class_weights
from trainers.config import TrainConfig
from trainers.engine.engines import Trainer
from trainers.engine.handlers import (
    attach_early_stopping,
    attach_progress,
    attach_validation,
    best_row,
)
from trainers.engine.metrics import Step, StepSums
from trainers.options import defaults
from trainers.reporting import screen


class Measured:
    """Training steps without a model, whose batches are what they measure: loss, hits, images, norm of the gradient."""

    def __init__(self):
        self.scaler = GradScaler("cpu", enabled=False)
        self.sums = StepSums(torch.device("cpu"), self.scaler)

    def __call__(self, engine, batch):
        loss, correct, n, norm = batch
        self.sums.unread.append(Step(engine.state.iteration, n, 0.1, torch.tensor([loss, correct, norm])))
        return self.sums.unread[-1].output()


def summed(outputs, *, epochs=1, stop_at=None, state=None):
    trainer = Trainer(Measured())
    trainer.sums.attach(trainer)
    if stop_at:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop_at), lambda engine: engine.terminate())
    if state:
        trainer.load_state_dict(state)
    trainer.run(outputs, max_epochs=epochs)
    return trainer


def learnt(trainer):
    return [trainer.sums.epoch_means()[name] for name in ("loss", "accuracy", "grad_norm")]


def test_sums_start_anew_each_epoch_and_survive_a_stop():
    assert learnt(summed([(1.0, 4, 8, 2.0), (4.0, 1, 2, 4.0)])) == [1.6, 0.5, 3.0]  # a short last batch counts less
    outputs = [(float(i), 0, 1, float(i)) for i in range(4)]
    whole = summed(outputs, epochs=2)
    assert learnt(whole) == [1.5, 0.0, 1.5]
    stopped = summed(outputs, epochs=2, stop_at=6)
    assert learnt(stopped) == [0.5, 0.0, 0.5]
    resumed = summed(iter(outputs[2:]), epochs=2, state=stopped.state_dict())
    assert learnt(resumed) == learnt(whole)
    assert resumed.sums.seconds > stopped.sums.seconds


def test_a_window_begins_where_the_last_one_was_taken():
    trainer, found = Trainer(Measured()), []
    trainer.sums.attach(trainer)
    window = Events.ITERATION_COMPLETED(every=2)
    trainer.add_event_handler(window, lambda: found.append(trainer.sums.take_window()))
    trainer.run([(1.0, 1, 2, 1.0), (3.0, 1, 2, 3.0), (5.0, 2, 2, 5.0), (7.0, 2, 2, 7.0)], max_epochs=1)
    assert [[row["loss"], row["accuracy"], row["grad_norm"]] for row in found] == [[2.0, 0.5, 2.0], [6.0, 1.0, 6.0]]
    assert all(row["images_per_s"] == pytest.approx(4 / row["seconds"]) for row in found)
    assert all(0 <= row["data_wait"] <= 1 for row in found)


def rows(*scores):
    return [
        {"epoch": epoch, "val_accuracy": accuracy, "val_loss": loss} for epoch, (accuracy, loss) in enumerate(scores)
    ]


def test_best_row_prefers_score_then_loss_then_earlier():
    history = rows((0.99, 0.0), (0.8, 0.5), (0.9, 0.4), (0.9, 0.3), (0.9, 0.3))
    assert best_row(history, "accuracy", None)["epoch"] == 3
    assert best_row(rows((0, 0), (0.9, 0.5), (0.8, 0.2)), "loss", None)["epoch"] == 2
    assert best_row(history, "last", None) == history[-1]
    assert best_row(history, "accuracy", "probe") == best_row(history, "last", "probe") == history[0]  # a fitted head
    assert best_row(rows((0.7, 0.5), (0.8, 0.6), (0.6, 0.4)), "last", "probe")["epoch"] == 2
    assert best_row(rows((0.7, 0.5), (0.8, 0.4), (0.6, 0.6)), "last", "probe")["epoch"] == 0  # whatever was between


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_never_best(bad):
    assert best_row(rows((0, 0), (bad, 0.1), (0.7, 0.2)), "accuracy", None)["epoch"] == 2
    assert best_row(rows((0, 0), (0.9, bad), (0.7, 0.2)), "accuracy", None)["epoch"] == 2
    assert best_row(rows((0, 0), (bad, bad)), "accuracy", None) is None
    assert best_row(rows((0, 0), (0.7, 0.2), (bad, bad)), "last", None)["epoch"] == 1
    assert best_row(rows((0.6, 0.5), (0.7, 0.2), (bad, bad)), "last", "probe")["epoch"] == 0  # 1 has no file of weights


def validated_run(scores, patience, select="accuracy"):
    """Epochs that a run with these validation scores takes; the first score is the untrained model's."""
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    stream = iter(scores)
    evaluator.add_event_handler(Events.COMPLETED, lambda engine: engine.state.metrics.update({select: next(stream)}))
    attach_validation(trainer, evaluator, [0])
    attach_early_stopping(trainer, evaluator, patience=patience, select=select)
    trainer.run([0, 1], max_epochs=len(scores) - 1)
    return trainer.state.epoch


@pytest.mark.parametrize(
    ("scores", "options", "epochs"),
    [
        ([0.1, 0.5, 0.4, 0.3, 0.9], {}, 3),
        ([0.1, 0.5, 0.4, 0.6, 0.5], {}, 4),
        ([2.0, 1.0, 1.1, 1.2, 0.1], {"select": "loss"}, 3),
        ([9, 1, 2, 3, 4], {}, 4),  # a start that is better than the first epochs does not count
        ([0, 4, 3, 2, 1], {"select": "loss"}, 4),
        ([math.nan, math.nan, 0.5, 0.4, 0.3, 0.9], {}, 4),
        ([0.1, 0.5, math.nan, 0.4, 0.9], {}, 3),
    ],
)
def test_early_stopping_counts_epochs_without_gain(scores, options, epochs):
    assert validated_run(scores, patience=2, **options) == epochs


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_alone(monkeypatch, terminal):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    trainer = Engine(lambda *_: None)
    attach_progress(trainer)
    trainer.run(range(10), max_epochs=2)
    assert ("[5/10]" in sys.stderr.getvalue()) == bool(sys.stderr.getvalue()) == terminal


def test_auto_selects_unequal_classes_by_balance():
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
    screen.attach_learning_note(trainer, SimpleNamespace(config=config, data=data))
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
        ([0.2, 0.38], {"train_accuracy": 0.99}, "training images alone"),
        ([0.3, 0.34], {"select": "balanced_accuracy"}, "33.3%"),
    ],
)
def test_a_run_that_learns_nothing_says_so_once(capsys, accuracies, options, said):
    words = lines_of_a_run(capsys, accuracies, **options)
    assert (said in words, bool(words)) == (True, bool(said))
    assert words.count("after 2 of 10") == bool(said)
