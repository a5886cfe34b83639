"""How runs start: no stop at any moment of it costs what was there before, or is in the way of the same command."""

import errno
import shutil
from pathlib import Path

import pytest
from every_state import every_state
from ignite.engine import Events
from killed_runs import Crash, assert_same_content, crash, crash_after, run_content
from small_run import few_digits

from common.errors import CheckpointError, OptionError, TrainingError
from trainers import checkpointing
from trainers.auto_resume import train_or_resume
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import checkpoints
from trainers.storage.run_folder import read_json, write_json
from vit.config import ModelConfig


def tiny_run(folder: Path, **output) -> RunConfig:
    """Two epochs of two steps."""
    return RunConfig(
        model=ModelConfig(name="vit_micro_2"),
        data=few_digits(labels_per_class=3, batch_size=15),
        train=TrainConfig(epochs=2, device="cpu", log_every=1),
        output=OutputConfig(**{"output_dir": folder, "run_name": "r", "tb": "scalars"} | output),
    )


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    return train(tiny_run(tmp_path_factory.mktemp("finished"))).run_dir


@pytest.fixture
def finished(finished_once, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(finished_once, tmp_path / "digits" / "r")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remove_checkpoints(run_dir: Path) -> None:
    for path in checkpoints(run_dir / "checkpoints", "step"):
        path.unlink()


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_finished_run_whose_checkpoints_were_cleaned_away_is_not_started_over(finished):
    remove_checkpoints(finished)
    before = files(finished)
    with pytest.raises(CheckpointError, match=r"has done 2 epochs and has no step_\* to go on from"):
        resume(finished, epochs=5, handlers=[crash_after(1)])
    assert files(finished) == before


@pytest.fixture
def started(finished):
    """A run that was killed before its first checkpoint, with a note that somebody put beside its files."""
    remove_checkpoints(finished)
    for path in checkpoints(finished / "checkpoints", "best"):
        path.unlink()
    write_json(finished / "summary.json", {"status": "running", "epochs": 0, "seconds": 0.5, "best": None})
    (finished / "note.txt").write_text("seen on Monday")
    return finished


def test_a_resumed_run_that_stops_before_its_first_checkpoint_is_not_removed(started, finished_once, capsys):
    with pytest.raises(Crash):
        resume(started, handlers=[crash_after(1)])
    assert f"resuming {started}: it has no checkpoint yet, so it starts over" in capsys.readouterr().out
    assert (started / "note.txt").read_text() == "seen on Monday"
    assert read_json(started / "summary.json")["status"] == "failed"
    assert resume(started).epochs[-1]["val_loss"] == resume(finished_once).epochs[-1]["val_loss"]


def test_a_full_disk_at_the_first_checkpoint_of_a_resumed_run_removes_nothing(started, monkeypatch):
    monkeypatch.setattr(checkpointing.RunCheckpoints, "save", full_disk)
    with pytest.raises(TrainingError, match="No space left on device; resume with: python main.py resume"):
        resume(started)
    assert (started / "note.txt").is_file()


def test_a_new_run_that_stops_before_its_first_checkpoint_leaves_nothing(tmp_path):
    with pytest.raises(Crash):
        train(tiny_run(tmp_path), handlers=[crash_after(1)])
    assert not (tmp_path / "digits").exists()


def test_a_run_whose_head_is_fitted_leaves_nothing_either(tmp_path):
    fitted = {"data": {"augment": "none"}, "model": {"trainable": "head"}, "train": {"start_head": "fit"}}
    with pytest.raises(Crash):
        train(tiny_run(tmp_path).changed(**fitted), handlers=[lambda trainer: crash()])
    assert not (tmp_path / "digits" / "r").exists()


def test_a_new_run_into_which_somebody_put_a_file_is_not_removed(tmp_path):
    run_dir = tmp_path / "digits" / "r"

    def put_a_note_there() -> None:
        (run_dir / "note.txt").write_text("look at this one")

    with pytest.raises(Crash):
        train(
            tiny_run(tmp_path),
            handlers=[
                lambda trainer: trainer.add_event_handler(Events.ITERATION_STARTED(once=1), put_a_note_there),
                crash_after(1),
            ],
        )
    assert (run_dir / "note.txt").read_text() == "look at this one"


def test_a_run_that_stops_as_it_is_taken_up_still_says_what_it_has_done(finished):
    before = read_json(finished / "summary.json")
    with pytest.raises(Crash):
        resume(finished, epochs=5, handlers=[crash_after(5)])
    after = read_json(finished / "summary.json")
    assert after["status"] == "failed"
    assert {name: after[name] for name in ("epochs", "best", "images_seen")} == {
        name: before[name] for name in ("epochs", "best", "images_seen")
    }


class AnyMoment:
    """Every state that a kill can leave of a run, and a way back to each."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.mkdir()
        with every_state(self.runs, folder / "states") as self.states:
            self.whole = run_content(train(tiny_run(self.runs, auto_resume=True)).run_dir)
        self.start = [state for state in self.states if not list(state.glob("digits/r/checkpoints/step_*"))]

    def bring_back(self, state: Path) -> Path:
        """Make the folder of runs what it was, and name the one that was killed."""
        shutil.rmtree(self.runs)
        shutil.copytree(state, self.runs)
        return self.runs / "digits" / "r"


@pytest.fixture(scope="module")
def any_moment(tmp_path_factory):
    return AnyMoment(tmp_path_factory.mktemp("killed"))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_resume_takes_up_a_run_that_was_killed_at_any_moment(any_moment, every):
    assert len(any_moment.states) > 30
    for state in any_moment.states[::every]:
        run_dir = any_moment.bring_back(state)
        if run_dir.exists():
            resume(run_dir)
            assert_same_content(any_moment.whole, run_content(run_dir))


@pytest.mark.slow  # its siblings bring the same states back by other commands
def test_auto_resume_takes_up_or_starts_over_a_run_that_was_killed_in_its_start(any_moment):
    assert len(any_moment.start) > 15
    for state in any_moment.start:
        run_dir = any_moment.bring_back(state)
        assert train_or_resume(tiny_run(any_moment.runs, auto_resume=True)).run_dir == run_dir
        assert_same_content(any_moment.whole, run_content(run_dir))
        assert [path.name for path in run_dir.parent.glob("[!.]*")] == ["r"]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_same_train_starts_a_run_over_that_was_killed_in_its_start(any_moment, every):
    for state in any_moment.start[::every]:
        any_moment.bring_back(state)
        assert_same_content(any_moment.whole, run_content(train_or_resume(tiny_run(any_moment.runs)).run_dir))


def test_the_same_train_does_not_start_a_run_over_that_has_a_checkpoint(finished, any_moment):
    with pytest.raises(OptionError, match=r"digits/r exists already; add --auto-resume to go on"):
        train_or_resume(tiny_run(finished.parent.parent))


@pytest.mark.slow  # its siblings bring the same states back by other commands
def test_more_epochs_may_be_asked_for_again_after_a_kill_at_any_moment(finished, tmp_path):
    before = shutil.copytree(tmp_path / "digits", tmp_path / "before")
    with every_state(tmp_path / "digits", tmp_path / "states") as states:
        whole = run_content(resume(finished, epochs=3).run_dir)
    assert len(states) > 10
    for number, state in enumerate([before, *states]):
        shutil.rmtree(finished.parent)
        shutil.copytree(state, finished.parent)
        if number % 2:
            resume(finished)
        resume(finished, epochs=3)
        assert_same_content(whole, run_content(finished))
