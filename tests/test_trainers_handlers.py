import io
import math
import sys

import pytest
import torch
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader

from trainers.engine.handlers import (
    StepClock,
    Sums,
    attach_early_stopping,
    attach_progress,
    attach_validation,
    best_row,
    endless_batches,
)


class Positions:
    """A batch sampler that yields its own position."""

    def __init__(self, length):
        self.length = length

    def set_position(self, epoch, start_batch=0):
        self.epoch, self.start = epoch, start_batch

    def __iter__(self):
        return iter([[(self.epoch, i)] for i in range(self.start, self.length)])

    def __len__(self):
        return self.length


class Echo(torch.utils.data.Dataset):
    def __getitem__(self, key):
        return key


def positions_from(start_iteration, n):
    loader = DataLoader(Echo(), batch_sampler=Positions(4), collate_fn=lambda keys: keys[0])
    stream = endless_batches(loader, start_iteration)
    return [next(stream) for _ in range(n)]


def test_batches_go_on_from_any_iteration_as_if_nothing_had_happened():
    whole = positions_from(0, 12)
    assert whole[3:5] == [(0, 3), (1, 0)]
    for start in range(9):
        assert positions_from(start, 3) == whole[start : start + 3]


def outputs_engine(outputs):
    trainer = Engine(lambda engine, batch: batch)
    Sums().attach(trainer)
    return trainer, outputs


def test_epoch_means_weigh_a_short_last_batch_by_its_size():
    trainer, outputs = outputs_engine(
        [
            {"loss": 1.0, "correct": 4, "grad_norm": 2.0, "n": 8, "lr": 0.1},
            {"loss": 4.0, "correct": 1, "grad_norm": 4.0, "n": 2, "lr": 0.1},
        ]
    )
    trainer.run(outputs, max_epochs=1)
    assert Sums.means(trainer.state.epoch_sums) == {"loss": 1.6, "accuracy": 0.5, "grad_norm": 3.0}


def test_sums_start_anew_each_epoch_and_survive_a_stop_in_mid_epoch():
    outputs = [{"loss": float(i), "correct": 0, "grad_norm": 0.0, "n": 1, "lr": 0.1} for i in range(4)]
    trainer, _ = outputs_engine(outputs)
    trainer.run(outputs, max_epochs=2)
    assert trainer.state.epoch_sums["loss"] == 6.0

    stopped, _ = outputs_engine(outputs)
    stopped.add_event_handler(Events.ITERATION_COMPLETED(once=6), lambda engine: engine.terminate())
    stopped.run(outputs, max_epochs=2)
    state = stopped.state_dict()

    resumed, _ = outputs_engine(outputs)
    resumed.load_state_dict(state)
    resumed.run(iter(outputs[2:]), max_epochs=2)
    assert resumed.state.epoch_sums == trainer.state.epoch_sums


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


def test_early_stopping_counts_epochs_without_a_better_score():
    assert validated_run([0.1, 0.5, 0.4, 0.3, 0.9], patience=2) == 3
    assert validated_run([0.1, 0.5, 0.4, 0.6, 0.5], patience=2) == 4
    assert validated_run([2.0, 1.0, 1.1, 1.2, 0.1], patience=2, select="loss") == 3


@pytest.mark.parametrize(("scores", "select"), [([9, 1, 2, 3, 4], "accuracy"), ([0, 4, 3, 2, 1], "loss")])
def test_a_start_that_is_better_than_the_first_epochs_does_not_count_for_early_stopping(scores, select):
    assert validated_run(scores, patience=2, select=select) == 4


def test_early_stopping_is_not_fooled_by_a_nan():
    assert validated_run([math.nan, math.nan, 0.5, 0.4, 0.3, 0.9], patience=2) == 4


def test_validation_runs_before_the_first_epoch_and_after_each():
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    steps = []
    evaluator.add_event_handler(Events.COMPLETED, lambda: steps.append(trainer.state.iteration))
    attach_validation(trainer, evaluator, [0])
    trainer.run([0, 1, 2], max_epochs=2)
    assert steps == [0, 3, 6]


def test_clock_counts_images_and_the_share_of_waiting():
    trainer = Engine(lambda engine, batch: {"n": batch})
    clock = StepClock()
    clock.attach(trainer)
    trainer.run([3, 5], max_epochs=1)
    rates = StepClock.rates(clock.epoch)
    assert clock.epoch[2] == 8
    assert rates["images_per_s"] == pytest.approx(8 / rates["seconds"])
    assert 0 <= rates["data_wait"] <= 1


def test_the_steps_of_an_epoch_are_a_bar_on_a_terminal_and_nothing_in_a_file(monkeypatch):
    for terminal in (True, False):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        trainer = Engine(lambda *_: None)
        attach_progress(trainer)
        trainer.run(range(10), max_epochs=2)
        shown = sys.stderr.getvalue()
        assert ("\repoch [1/2]: [5/10]" in shown, shown == "") == (terminal, not terminal)
