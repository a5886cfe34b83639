"""One process at a time in a run directory; whoever comes second is told who is there, and a dead process is not."""

import os

import pytest
from ignite.engine import Events
from test_trainers_start import tiny_run

from trainers.errors import ConfigError
from trainers.resume import resume
from trainers.run import train


@pytest.mark.xfail(strict=True, reason="nothing keeps a second process out")
def test_a_run_that_is_being_trained_is_not_resumed(tmp_path):
    run_dir, refused = tmp_path / "digits" / "r", []

    def resume_meanwhile() -> None:
        with pytest.raises(ConfigError) as error:
            resume(run_dir)
        refused.append(str(error.value))

    train(
        tiny_run(tmp_path),
        handlers=[lambda trainer: trainer.add_event_handler(Events.ITERATION_STARTED(once=3), resume_meanwhile)],
    )
    assert f"{run_dir} is in use by process {os.getpid()} on " in refused[0]
