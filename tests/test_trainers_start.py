"""How runs start: no stop at any moment of it costs what was there before, or is in the way of the same command."""

import io
import shutil
import sys
import time
from pathlib import Path

import pytest
from every_state import every_state
from killed_runs import Crash, assert_same_content, crash, crash_after, run_content
from small_run import tiny_run

import main
from common.errors import CheckpointError, OptionError
from trainers.auto_resume import train_or_resume
from trainers.reporting.tensorboard import keep_in_order
from trainers.resume import resume
from trainers.run import train
from trainers.storage.run_folder import RunFolder, read_json, write_json


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
    for path in RunFolder(run_dir).checkpoints("step"):
        path.unlink()


def test_finished_run_without_states_stays(finished):
    remove_checkpoints(finished)
    before = files(finished)
    with pytest.raises(CheckpointError, match="2 epochs"):
        resume(finished, epochs=5, handlers=[crash_after(1)])
    assert files(finished) == before


@pytest.fixture
def started(finished):
    """A run that was killed before its first checkpoint, with a note that somebody put beside its files."""
    remove_checkpoints(finished)
    for path in RunFolder(finished).checkpoints("best"):
        path.unlink()
    write_json(finished / "summary.json", {"status": "running", "epochs": 0, "seconds": 0.5, "best": None})
    (finished / "note.txt").write_text("seen on Monday")
    return finished


def test_resumed_run_that_stops_early_is_not_removed(started, finished_once):
    with pytest.raises(Crash):
        resume(started, handlers=[crash_after(1)])
    assert (started / "note.txt").read_text() == "seen on Monday"
    assert read_json(started / "summary.json")["status"] == "failed"
    assert resume(started).epochs[-1]["val_loss"] == resume(finished_once).epochs[-1]["val_loss"]


FITTED_HEAD = {"data": {"augment": "none"}, "model": {"trainable": "head"}, "train": {"start_head": "fit"}}


@pytest.mark.parametrize(("changes", "stop"), [({}, crash_after(1)), (FITTED_HEAD, lambda trainer: crash())])
def test_new_run_that_stops_early_leaves_nothing(tmp_path, changes, stop):
    with pytest.raises(Crash):
        train(tiny_run(tmp_path).changed(**changes), handlers=[stop])
    assert not (tmp_path / "digits" / "r").exists()


def test_run_without_steps_has_no_empty_row(tmp_path):
    folders = []
    for name, changes in (("trained", {}), ("fitted", FITTED_HEAD)):
        run = train(tiny_run(tmp_path, run_name=name).changed(**changes)).run_dir
        folders.append({path.parent.name for path in run.glob("tb/*/events*")})
    assert folders == [{"train", "val"}, {"val"}]


def test_event_files_of_later_seconds_become_earlier(tmp_path):
    copy, later = (tmp_path / f"events.out.tfevents.{name}" for name in ("copy", f"{int(time.time()) + 100}.host.1"))
    copy.touch()
    later.touch()
    keep_in_order(tmp_path)
    (moved,) = tmp_path.glob("*.host.1")
    assert int(moved.name.split(".")[3]) < int(time.time())
    assert copy.exists()


class BrokenPipe(io.StringIO):
    """Output whose reader leaves at a word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word, self.gone = word, False

    def write(self, text: str) -> int:
        self.gone |= self.word in text
        self.flush()
        return super().write(text)

    def flush(self) -> None:
        if self.gone:
            raise BrokenPipeError


@pytest.mark.parametrize(("word", "kept"), [("digits: 10 classes", False), ("epoch 2/2", True)])
def test_broken_pipe_ends_a_run(tmp_path, monkeypatch, capsys, word, kept):
    monkeypatch.setattr(sys, "stdout", BrokenPipe(word))
    monkeypatch.setattr(main, "reader_has_left", lambda: True)
    monkeypatch.setattr(main.os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    words = ["--model", "vit_micro_2", "--labels-per-class", "3", "--epochs", "2", "--device", "cpu", "--workers", "0"]
    code = main.main(["train", "digits", *words, "--tb", "scalars", "--run-name", "r", "--output-dir", str(tmp_path)])
    assert code == 141
    assert (tmp_path / "digits" / "r").exists() is kept
    assert ("resume" in capsys.readouterr().err) is kept
    if kept:
        monkeypatch.undo()
        assert resume(tmp_path / "digits" / "r").epochs[-1]["epoch"] == 2


def test_run_stopped_as_it_resumes_keeps_its_summary(finished):
    before = read_json(finished / "summary.json")
    with pytest.raises(Crash):
        resume(finished, epochs=5, handlers=[crash_after(5)])
    after = read_json(finished / "summary.json")
    assert after["status"] == "failed"
    assert all(after[name] == before[name] for name in ("epochs", "best", "images_seen"))


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


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_run_killed_at_any_moment_ends_like_the_whole(any_moment, every):
    """One that has no checkpoint yet may also be started over, by the same command with --auto-resume."""
    assert len(any_moment.states) > 30
    assert len(any_moment.start) > 15
    for number, state in enumerate(any_moment.states[::every]):
        run_dir = any_moment.bring_back(state)
        if number % 2 and state in any_moment.start:
            assert train_or_resume(tiny_run(any_moment.runs, auto_resume=True)).run_dir == run_dir
        elif run_dir.exists():
            resume(run_dir)
        else:
            continue
        assert_same_content(any_moment.whole, run_content(run_dir))
        assert [path.name for path in run_dir.parent.glob("[!.]*")] == ["r"]


def test_without_auto_resume_no_run_is_started_over(any_moment):
    any_moment.bring_back(any_moment.states[-1])
    with pytest.raises(OptionError, match="auto-resume"):
        train_or_resume(tiny_run(any_moment.runs))
