"""The order in which everything hangs on the engines: a step and an epoch end in one stated sequence."""

import pytest
from ignite.engine import Events
from killed_runs import Crash, crash, demanding_config

from trainers.run import train
from trainers.system import distributed


def attached(folder, event) -> list[str]:
    """What a run attaches to an event. The private table of Ignite 0.5.5 is read, for nothing else tells the order."""
    names = []

    def look(trainer):
        handlers = [getattr(handler, "__wrapped__", handler) for handler, *_ in trainer._event_handlers[event]]
        names.extend(getattr(handler, "__qualname__", type(handler).__name__) for handler in handlers)
        trainer.add_event_handler(Events.STARTED, crash)

    with pytest.raises(Crash):
        train(demanding_config(folder, tb="standard"), handlers=[look])
    return names


AT_THE_END_OF_AN_EPOCH = [
    "attach_validation.<locals>.<lambda>",
    "attach_history.<locals>.append",
    "attach_best_scores.<locals>.keep_if_best",
    "OutputHandler",
    "attach.<locals>.keep_quarter",
    "attach_handlers.<locals>.<lambda>",
    "attach_epoch_lines.<locals>.line",
    "attach_learning_note.<locals>.note",
    "RunCheckpoints.save_epoch",
    "RunStatus.attach.<locals>.note",
    "Signals.check",
]
AT_THE_END_OF_A_STEP = [
    "AveragedModel.update_parameters",
    "Timer.pause",
    "StepSums.take_time",
    "OutputHandler",
    "end_within_epoch",
    "RunCheckpoints.save_within_epoch",
    "Signals.check",
]
WRITING = ("OutputHandler", "keep_quarter", "attach_handlers", "epoch_lines", "learning", "RunCheckpoints")


@pytest.mark.parametrize(
    ("event", "order"),
    [(Events.EPOCH_COMPLETED, AT_THE_END_OF_AN_EPOCH), (Events.ITERATION_COMPLETED, AT_THE_END_OF_A_STEP)],
)
def test_what_is_saved_comes_after_what_it_must_hold(tmp_path, monkeypatch, event, order):
    assert attached(tmp_path / "main", event) == order
    # Of several processes, the others leave out what leaves something behind.
    monkeypatch.setattr(distributed, "is_main_process", lambda: False)
    assert attached(tmp_path / "other", event) == [name for name in order if not any(word in name for word in WRITING)]
