"""The order in which everything hangs on the engines: an epoch ends in one stated sequence."""

import pytest
from ignite.engine import Events
from killed_runs import Crash, crash, demanding_config

from trainers.assembly import HANDLERS
from trainers.run import train


def test_what_an_epoch_saves_comes_after_what_it_must_hold():
    order = [attach.__name__ for attach, _writes in HANDLERS]
    epoch = [
        "validate",
        "note_history",
        "log_epochs",
        "save_best_weights",
        "write_metrics",
        "stop_early",
        "collect_states",
    ]
    step = ["set_learning_rate", "average_weights", "sum_up_steps", "log_scalars", "save_to_resume", "heed_signals"]
    for sequence in (epoch, step):
        assert sorted(sequence, key=order.index) == sequence
    assert [name for name in order if order.count(name) > 1] == []


def test_only_those_that_leave_something_behind_are_for_the_main_process_alone():
    writing = {attach.__name__ for attach, writes in HANDLERS if writes}
    assert writing == {
        "log_scalars", "log_epochs", "show_progress", "draw_pictures", "save_best_weights", "write_metrics",
        "print_epochs", "save_to_resume",
    }  # fmt: skip


def test_ignite_fires_them_in_that_order_when_an_epoch_ends(tmp_path):
    """The private table of Ignite 0.5.5 is read, for nothing else tells the order."""
    fired = []

    def look(trainer):
        fired.extend(handler.__qualname__ for handler, *_ in trainer._event_handlers[Events.EPOCH_COMPLETED])
        trainer.add_event_handler(Events.STARTED, crash)

    with pytest.raises(Crash):
        train(demanding_config(tmp_path), handlers=[look])
    expected = [
        "attach_validation.<locals>.<lambda>",
        "attach_history.<locals>.append",
        "attach_epoch_scalars.<locals>.write",
        "BestOutputs.keep_if_best",
        "BestCheckpoint.save_if_best",
        "attach_files.<locals>.write",
        "attach_epoch_lines.<locals>.line",
        "ResumeCheckpoint.save_epoch",
        "Record.attach.<locals>.note",
    ]
    assert [name for name in fired if name in expected] == expected
