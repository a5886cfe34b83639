"""A run's folder: one process at a time in it, and each file is read once and judged there."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from ignite.engine import Events
from killed_runs import ROOT
from small_run import META, SUMMARY, call, tiny_run

import main
from common.errors import CheckpointError, OptionError
from comparison.compare import compare_arms
from comparison.plan import Request
from trainers.config import OutputConfig
from trainers.resume import resume
from trainers.run import train
from trainers.storage.data_folder import free_folder
from trainers.storage.run_folder import RunFolder, runs_below, write_json
from trainers.system import folder_lock

OF_A_RUN = ("config.json", "meta.json", "summary.json")
SCORES = {"accuracy": 0.5, "loss": 1.0, "macro_f1": 0.5, "ece": 0.1}


@pytest.fixture
def run(tmp_path):
    write_json(tmp_path / "meta.json", META)
    write_json(tmp_path / "summary.json", SUMMARY)
    return RunFolder(tmp_path)


def test_a_file_is_read_once_and_anew_by_a_new_object(run):
    assert run.is_finished is False  # no config.json
    assert (run.progress, run.about) == (SUMMARY, META)
    for name in ("summary", "meta"):
        (run.path / f"{name}.json").unlink()
    assert (run.summary, run.meta, run.progress["status"], run.moment) == (SUMMARY, META, "finished", META["started"])
    again = RunFolder(run.path)
    assert (again.about, again.progress, again.unfinished) == ({}, {"status": "running", "epochs": 0}, "")
    with pytest.raises(FileNotFoundError, match="no summary.json"):
        _ = again.summary


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(("meta", {name: None}) for name in META),
        *(("meta", change) for change in ({"class_names": []}, {"class_names": ["a", 3]}, {"directory": 3})),
        *(("summary", {name: "x"}) for name in ("epochs", "seconds", "best", "parameters", "images_seen", "images")),
        *(("summary", {"test": test}) for test in ({}, {"n": 3}, SCORES | {"loss": float("nan")}, [1])),
        ("summary", {"best": {"epoch": "1"}}),
        ("summary", {"test": SCORES}),  # whose images are not counted
    ],
    ids=str,
)
def test_a_damaged_file_of_a_run_is_named(run, name, changes):
    path = run.path / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    at_fault = "images" if changes == {"test": SCORES} else next(iter(changes))
    with pytest.raises(CheckpointError, match=rf"{name}.json is damaged: {at_fault} is "):
        getattr(run, name)
    assert (run.about == {}) is (name == "meta")
    assert (run.progress["status"] == "running") is (name == "summary")


def test_the_summary_picks_one_of_two_rows_of_an_epoch(run):
    worse = SCORES | {"accuracy": 0.4}
    rows = [{f"val_{name}": value for name, value in scores.items()} for scores in (worse, SCORES, worse)]
    run.write_history([{"epoch": 1, "step": step, **row} for step, row in enumerate(rows, 1)])
    assert run.validated(1) == SCORES


def test_a_run_that_is_not_finished_has_no_results_yet(run):
    write_json(run.path / "summary.json", {"status": "interrupted", "epochs": 2, "seconds": 1.0, "best": None})
    assert run.progress["epochs"] == 2
    assert "was interrupted after epoch 2" in run.unfinished


@pytest.fixture
def read(monkeypatch):
    """Count how often each JSON file of a run is read."""
    counts, original = Counter(), Path.read_text

    def counted(path, *args, **options):
        if path.name in OF_A_RUN:
            counts[path.name] += 1
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    return counts


def test_a_command_reads_each_file_of_a_run_once(tmp_path, capsys, read):
    run = train(tiny_run(tmp_path)).run_dir
    assert read == {"meta.json": 1}
    read.clear()
    assert call(capsys, "evaluate", run, "--device", "cpu")[0] == 0
    assert read == dict.fromkeys(OF_A_RUN, 1)


def hold_and_release(folder):
    with folder_lock.held(folder):
        assert folder_lock.path_of(folder).is_file()
        with pytest.raises(OptionError, match="in use"), folder_lock.held(folder):
            pass
    assert not folder_lock.path_of(folder).exists()


def test_links_that_lead_back_show_no_run_twice(tmp_path):
    (tmp_path / "set" / "run").mkdir(parents=True)
    (tmp_path / "set" / "run" / "config.json").touch()
    for name in ("back", "again"):
        (tmp_path / "set" / name).symlink_to(tmp_path)
    assert [*runs_below(tmp_path)] == [tmp_path / "set" / "run"]


def test_a_run_that_is_being_trained_is_not_resumed(tmp_path):
    run_dir, refused = tmp_path / "digits" / "r", []

    def resume_meanwhile() -> None:
        with pytest.raises(OptionError) as error:
            resume(run_dir)
        refused.append(str(error.value))

    train(
        tiny_run(tmp_path),
        handlers=[lambda trainer: trainer.add_event_handler(Events.ITERATION_STARTED(once=3), resume_meanwhile)],
    )
    assert f"process {os.getpid()}" in refused[0]
    assert [path.name for path in run_dir.parent.glob("[!.]*")] == ["r"]


def test_a_killed_holder_is_gone_before_its_children(tmp_path):
    """A forked loader process has the holder's files open until it has noticed its death."""
    program = (
        "import os, pathlib, sys, time; from trainers.system import folder_lock\n"
        "with folder_lock.held(pathlib.Path(sys.argv[1])):\n"
        "    if os.fork(): print('taken', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "r")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(OptionError, match=f"process {process.pid}"), folder_lock.held(tmp_path / "r"):
        pass
    process.send_signal(signal.SIGKILL)
    time.sleep(0.2)
    hold_and_release(tmp_path / "r")  # nobody has asked for its exit code yet
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_disk_without_locks_has_files_instead(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, "flock is not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    hold_and_release(tmp_path / "r")


def test_one_of_many_at_once_holds_the_folder(tmp_path):
    """Each holds it for a moment: what its end takes away is never the lock of the next one."""
    inside = []

    def try_to_hold(_):
        try:
            with folder_lock.held(tmp_path / "r"):
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.001)
                inside.pop()
        except OptionError:
            return 0
        return 1

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(try_to_hold, range(200))) >= 1


def test_a_folder_that_comes_or_goes_is_sought_again(tmp_path, monkeypatch):
    folder = tmp_path / "r"
    held = folder_lock.held
    folder.mkdir()
    with ExitStack() as holding:
        assert folder_lock.hold(folder, holding)
    with held(folder), ExitStack() as holding, pytest.raises(OptionError, match="in use by"):
        folder_lock.hold(folder, holding)
    folder.rmdir()
    monkeypatch.setattr(folder_lock, "held", lambda path: path.mkdir() or held(path))
    with held(folder), ExitStack() as holding:
        assert not folder_lock.hold(folder, holding)


def compare_it_with_itself(config):
    return compare_arms(Request(config, (config, config.changed(train={"lr": 0.1})), tune_lr="off"))


@pytest.mark.parametrize("start", [train, compare_it_with_itself])
def test_a_new_run_does_not_wait_for_a_held_name(tmp_path, start):
    with folder_lock.held(tmp_path / "digits" / "r"), pytest.raises(OptionError, match=f"process {os.getpid()}"):
        start(tiny_run(tmp_path))


@pytest.mark.parametrize("name", ["vit_micro_2_s0", "compare"])
def test_a_held_name_without_folder_is_taken(tmp_path, name):
    output, folder = OutputConfig(tmp_path), tmp_path / "digits" / name
    with folder_lock.held(folder):
        assert free_folder(output, "digits", name).name == f"{name}_2"
        assert folder_lock.path_of(folder).exists()
    folder_lock.path_of(folder).write_text("left by a process that was killed")
    assert free_folder(output, "digits", name) == folder


def test_a_disk_out_of_locks_is_named_with_a_remedy(tmp_path, monkeypatch):
    def none_left(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none_left)
    with pytest.raises(OSError, match="No locks") as caught, folder_lock.held(tmp_path / "r"):
        pass
    assert str(tmp_path) in main.reason(caught.value)
    assert "--output-dir" in main.reason(caught.value)
