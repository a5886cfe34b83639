"""A run that was stopped ends as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from child_processes import environment, lives, processes_of, wait_until
from ignite.engine import Events
from killed_runs import (
    ROOT,
    Crash,
    assert_same_content,
    crash,
    crash_after,
    demanding_config,
    run_content,
    set_workers,
    signal_in,
    signal_myself,
    stopped_in_validation,
)

from common.errors import CheckpointError, Interrupted, OptionError
from common.files import temporary_path
from trainers import run, run_engines
from trainers.auto_resume import train_or_resume
from trainers.options.recipes import recipe_config
from trainers.resume import resume
from trainers.run import train
from trainers.storage.run_folder import RunFolder, read_json
from trainers.system import distributed
from vit.tensor_files import from_bytes, to_bytes


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The demanding run that nothing stopped; for reading only."""
    return train(demanding_config(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def whole(finished):
    return run_content(finished.run_dir)


def assert_ends_like(whole, run_dir):
    assert_same_content(whole, run_content(resume(run_dir).run_dir))


def train_until(step, folder, **data_options):
    """The directory of a run that crashed after its `step`-th step."""
    with pytest.raises(Crash):
        train(demanding_config(folder, **data_options), handlers=[crash_after(step)])
    return folder / "digits" / "r"


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory):
    return train_until(7, tmp_path_factory.mktemp("crashed"))


@pytest.fixture
def crashed(crashed_once, tmp_path):
    """A copy of a run that crashed in the middle of its second epoch."""
    return shutil.copytree(crashed_once, tmp_path / "digits" / "r")


@pytest.mark.parametrize("step", [6, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 4, 7, 8, 11))])
def test_a_run_that_crashed_ends_like_the_whole_one(tmp_path, whole, step):
    assert_ends_like(whole, train_until(step, tmp_path))


def test_resume_keeps_momentum_and_batch_statistics(tmp_path):
    recipe, contents = recipe_config("scratch-small"), []
    for name, ends in (("whole", ()), ("crashed", [crash_after(3)])):
        few = demanding_config(tmp_path / name)
        config = replace(few, model=recipe.model, train=replace(recipe.train, epochs=1, save_every=2, device="cpu"))
        if ends:
            with pytest.raises(Crash):
                train(config, handlers=ends)
            resume(tmp_path / name / "digits" / "r")
        else:
            train(config)
        contents.append(run_content(tmp_path / name / "digits" / "r"))
    assert_same_content(*contents)


@pytest.mark.parametrize("step", [3, 4])
def test_a_signal_saves_after_the_step(tmp_path, whole, step):
    with pytest.raises(Interrupted, match="resume") as stop:
        train(demanding_config(tmp_path), handlers=[signal_in(step)])
    assert stop.value.exit_code == 143
    run_dir = tmp_path / "digits" / "r"
    assert read_json(run_dir / "summary.json")["status"] == "interrupted"
    assert RunFolder(run_dir).checkpoints("step")[0].stem == f"step_{step}"
    assert_ends_like(whole, run_dir)


@pytest.mark.parametrize("stop", [crash, signal_myself])
def test_a_stop_in_validation_loses_nothing(tmp_path, whole, stop):
    with pytest.raises((Crash, Interrupted)), stopped_in_validation(8, stop):
        train(demanding_config(tmp_path))
    assert_ends_like(whole, tmp_path / "digits" / "r")


def test_a_run_crashed_often_ends_like_the_whole_one(tmp_path, whole):
    run_dir = train_until(3, tmp_path, workers=2)
    for step, workers in ((6, 0), (8, 2), (11, 0)):
        set_workers(run_dir, workers)
        with pytest.raises(Crash):
            resume(run_dir, handlers=[crash_after(step)])
    assert_ends_like(whole, run_dir)


def test_a_damaged_checkpoint_yields_to_an_older_one(crashed, whole, capsys):
    newest, _ = RunFolder(crashed).checkpoints("step")
    flip_a_bit(newest)
    assert_ends_like(whole, crashed)
    assert str(newest) in capsys.readouterr().out


def test_resume_refuses_a_run_of_damaged_checkpoints(crashed):
    for path in RunFolder(crashed).checkpoints("step"):
        flip_a_bit(path)
    with pytest.raises(CheckpointError, match="whole"):
        resume(crashed)


def test_resume_outlives_a_clock_set_back_and_litter(crashed, whole):
    """Points of the resumed run come last, and what the killed one had begun to write goes."""
    left = [temporary_path(crashed / name) for name in ("metrics.csv", "figures/x.png", "checkpoints/step_2")]
    of_another_command = temporary_path(crashed / "eval/x")
    for path in (*left, of_another_command):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for path in crashed.glob("tb/*/events.*"):
        words = path.name.split(".")
        path.rename(path.with_name(".".join([*words[:3], f"{int(words[3]) + 86_400}", *words[4:]])))
    assert_ends_like(whole, crashed)
    assert [path.exists() for path in (*left, of_another_command)] == [False] * 3 + [True]


def test_a_moved_run_resumes_where_it_lies_now(crashed, tmp_path, whole, monkeypatch):
    """In a process that another one tells the checkpoint, too."""
    monkeypatch.setattr(distributed, "broadcast", lambda make: from_bytes(to_bytes({"made": make()}))["made"])
    moved = tmp_path / "elsewhere" / "under another name"
    moved.parent.mkdir()
    crashed.rename(moved)
    assert resume(moved).run_dir == moved
    assert_same_content(whole, run_content(moved))
    assert not (tmp_path / "digits" / "r").exists()


def test_a_finished_run_resumed_is_a_no_op(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.run_dir.rglob("*")}
    again = resume(finished.run_dir)
    assert {path: path.stat().st_mtime_ns for path in finished.run_dir.rglob("*")} == before
    assert (again.best_epoch, again.val, again.test) == (finished.best_epoch, finished.val, finished.test)


def test_more_epochs_replan_and_too_few_are_refused(crashed, capsys):
    with pytest.raises(OptionError, match="epochs=1"):
        resume(crashed, epochs=1)
    result = resume(crashed, epochs=4)
    assert result.epochs[-1]["epoch"] == 4
    assert "learning rate" in capsys.readouterr().out
    assert read_json(crashed / "config.json")["train"]["epochs"] == 4


def test_auto_resume_takes_up_the_same_options_alone(tmp_path, whole):
    run_dir = train_until(3, tmp_path)
    config = demanding_config(tmp_path)
    config = replace(config, output=replace(config.output, auto_resume=True))
    other = replace(
        config, train=replace(config.train, seed=7, epochs=1), output=replace(config.output, run_name="other")
    )
    assert train_or_resume(other).run_dir != run_dir
    result = train_or_resume(config)
    assert result.run_dir == run_dir
    assert_same_content(whole, run_content(run_dir))
    assert train_or_resume(config).run_dir == run_dir


def test_a_full_disk_keeps_the_old_checkpoint(monkeypatch, tmp_path, whole):
    original = run_engines.RunCheckpoints.save
    saves = []

    def full_disk(self):
        saves.append(1)
        if len(saves) == 3:
            raise OSError(28, "No space left on device")
        original(self)

    with monkeypatch.context() as patch, pytest.raises(run.TrainingError, match="No space left.*resume"):
        patch.setattr(run_engines.RunCheckpoints, "save", full_disk)
        train(demanding_config(tmp_path))
    run_dir = tmp_path / "digits" / "r"
    assert read_json(run_dir / "summary.json")["status"] == "failed"
    assert_ends_like(whole, run_dir)


def start(folder):
    """A long run in a session of its own, with two loader processes and a checkpoint."""
    argv = "train --data digits --epochs 200 --run-name r --device cpu --workers 2 --output-dir"
    process = subprocess.Popen(
        [sys.executable, "main.py", *argv.split(), folder],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=environment(),
    )  # fmt: skip
    wait_until(lambda: RunFolder(folder / "digits" / "r").checkpoints("step"), seconds=90)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "signum", "code"),
    [
        (os.kill, signal.SIGINT, 130),
        (os.killpg, signal.SIGINT, 130),
        (os.kill, signal.SIGTERM, 143),
        (os.killpg, signal.SIGTERM, 143),
        (os.kill, signal.SIGKILL, -9),
    ],
)
def test_an_outer_signal_saves_and_leaves_no_process(tmp_path, end, signum, code):
    process = start(tmp_path)
    loaders = processes_of(process.pid)
    end(process.pid, signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert (f"resume {tmp_path / 'digits' / 'r'}" in err) == (err.count("\n") == 1) == (code > 0), err
    assert loaders
    wait_until(lambda: not any(map(lives, loaders)), seconds=10)


@pytest.mark.slow
def test_a_killed_worker_is_named_and_resume_advised(tmp_path):
    process = start(tmp_path)
    os.kill(processes_of(process.pid)[-1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (4, 1), err
    assert "loader process" in err
    assert "resume" in err


def test_a_run_that_ended_early_is_not_trained_further(tmp_path):
    def impatient(folder):
        config = demanding_config(folder)
        return replace(config, train=replace(config.train, epochs=6, patience=1, lr=1e-50))

    whole = train(impatient(tmp_path / "whole"))
    last = whole.epochs[-1]["epoch"]
    assert last < 6
    for stop in (crash, signal_myself):
        folder = tmp_path / stop.__name__
        with pytest.raises((Crash, Interrupted)):
            train(
                impatient(folder),
                handlers=[lambda trainer: trainer.add_event_handler(Events.EPOCH_COMPLETED(once=last), stop)],  # noqa: B023
            )
        assert_ends_like(run_content(whole.run_dir), folder / "digits" / "r")
