"""One process at a time in a run directory; whoever comes second is told who is there, and a dead process is not."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ignite.engine import Events
from killed_runs import ROOT
from test_trainers_start import tiny_run

from trainers import lock
from trainers.errors import ConfigError
from trainers.resume import resume
from trainers.run import train

DEAD = 2**22 + 1  # above the largest process number that Linux gives


def holder(folder, **changes):
    """Put a lock there as another process would have left it."""
    (folder / lock.NAME).write_text(json.dumps(lock.describe_me() | changes))


def take_and_release(folder):
    lock.take(folder)
    with lock.kept(folder):
        assert (folder / lock.NAME).is_file()
    assert not list(folder.iterdir())


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
    assert f"{run_dir} is in use by process {os.getpid()} on {lock.describe_me()['host']}" in refused[0]
    assert not (run_dir / lock.NAME).exists()


def test_a_killed_holder_is_gone_at_once_even_while_nobody_has_asked_for_its_exit_code(tmp_path):
    program = (
        f"import sys, time; from pathlib import Path; from trainers import lock; lock.take(Path({str(tmp_path)!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}; print('taken', flush=True); time.sleep(60)"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(ConfigError, match=f"in use by process {process.pid} on"):
        lock.take(tmp_path)
    process.send_signal(signal.SIGKILL)
    time.sleep(0.2)
    take_and_release(tmp_path)
    process.communicate()


def test_the_number_of_a_dead_process_given_to_another_one_holds_nothing(tmp_path):
    holder(tmp_path, start_time=1)
    take_and_release(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_half_a_lock_holds_nothing_for_long(tmp_path, monkeypatch, content):
    monkeypatch.setattr(lock, "SECONDS_TO_WRITE", 0.1)
    (tmp_path / lock.NAME).write_text(content)
    take_and_release(tmp_path)


def test_a_holder_on_another_machine_is_gone_when_it_gives_no_sign_of_life(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lock, "SECONDS_OF_SILENCE", 0.2)
    holder(tmp_path, host="node7", machine="another", pid=DEAD)
    take_and_release(tmp_path)
    assert f"process {DEAD} on node7" in capsys.readouterr().out


def test_a_holder_on_another_machine_that_gives_signs_of_life_is_respected(tmp_path):
    holder(tmp_path, host="node7", machine="another", pid=DEAD)
    beat = threading.Timer(0.3, os.utime, [tmp_path / lock.NAME])
    beat.start()
    with pytest.raises(ConfigError, match=f"in use by process {DEAD} on node7"):
        lock.take(tmp_path)
    beat.join()


def test_a_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "SECONDS_BETWEEN_SIGNS", 0.05)
    lock.take(tmp_path)
    os.utime(tmp_path / lock.NAME, (0, 0))
    with lock.kept(tmp_path):
        time.sleep(0.3)
        assert (tmp_path / lock.NAME).stat().st_mtime > 0


def test_of_many_that_find_a_dead_holder_one_takes_its_place(tmp_path):
    for number in range(15):
        folder = tmp_path / str(number)
        folder.mkdir()
        holder(folder, pid=DEAD)
        together = threading.Barrier(6)

        def try_to_take(_, folder=folder, together=together):
            together.wait()
            try:
                lock.take(folder)
            except ConfigError:
                return 0
            return 1

        with ThreadPoolExecutor(6) as pool:
            assert sum(pool.map(try_to_take, range(6))) == 1
