import io
import math
import sys

import pytest
import torch
from ignite.engine import Engine, Events
from torch.amp import GradScaler

from trainers.engine.engines import Trainer
from trainers.engine.handlers import (
    attach_early_stopping,
    attach_progress,
    attach_validation,
    best_row,
)
from trainers.engine.step_sums import StepOutput, StepSums


class Measured:
    """Training steps without a model, whose batches are what they measure: loss, hits, images, norm of the gradient."""

    def __init__(self):
        self.scaler = GradScaler("cpu", enabled=False)
        self.sums = StepSums(torch.device("cpu"), self.scaler)

    def __call__(self, engine, batch):
        loss, correct, n, norm = batch
        self.sums.unread.append(StepOutput(engine.state.iteration, n, 0.1, torch.tensor([loss * n, correct, norm])))
        return self.sums.unread[-1]


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


def test_sums_start_anew_each_epoch_and_survive_a_stop_in_mid_epoch():
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


def test_best_epoch_prefers_score_then_lower_loss_then_the_earlier_epoch():
    history = rows((0.99, 0.0), (0.8, 0.5), (0.9, 0.4), (0.9, 0.3), (0.9, 0.3))
    assert best_row(history, "accuracy")["epoch"] == 3
    assert best_row(rows((0, 0), (0.9, 0.5), (0.8, 0.2)), "loss")["epoch"] == 2
    assert best_row(history, "last") == history[-1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_never_best(bad):
    assert best_row(rows((0, 0), (bad, 0.1), (0.7, 0.2)), "accuracy")["epoch"] == 2
    assert best_row(rows((0, 0), (0.9, bad), (0.7, 0.2)), "accuracy")["epoch"] == 2
    assert best_row(rows((0, 0), (bad, bad)), "accuracy") is None
    assert best_row(rows((0, 0), (0.7, 0.2), (bad, bad)), "last")["epoch"] == 1


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
def test_early_stopping_counts_epochs_without_a_better_score(scores, options, epochs):
    assert validated_run(scores, patience=2, **options) == epochs


@pytest.mark.parametrize("terminal", [True, False])
def test_the_steps_of_an_epoch_are_a_bar_on_a_terminal_and_nothing_in_a_file(monkeypatch, terminal):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    trainer = Engine(lambda *_: None)
    attach_progress(trainer)
    trainer.run(range(10), max_epochs=2)
    assert ("[5/10]" in sys.stderr.getvalue()) == bool(sys.stderr.getvalue()) == terminal
