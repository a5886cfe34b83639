"""Every file that a command writes appears whole or not at all: yesterday's stays until today's is complete."""

import errno
import os
import shutil
import stat
import subprocess
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
from full_disk import full_disk
from small_comparison import arm_in_memory
from small_run import labelled_photos, make_run, photo

import main
from common.files import matching, remove_leftovers, settle, temporary_folder, temporary_path, write_bytes, write_text
from common.image_spec import ImageSpec
from comparison.drawing import write_events
from comparison.results import compared
from datasets import build_dataloaders
from datasets.config import DataConfig
from datasets.split_csv import write_split
from trainers.rehearsal import draw_curve
from trainers.reporting.figures.results import save
from trainers.reporting.tensorboard import RunLoggers
from trainers.storage.run_folder import RunFolder, write_json
from trainers.system.process import leave_full_disks_to_writers

YESTERDAY = "yesterday's table\n"


def a_figure():
    figure = matplotlib.figure.Figure()
    figure.subplots().plot([1, 2])
    return figure


def a_split():
    return build_dataloaders(DataConfig(labels_per_class=5, workers=0), ImageSpec(8, (0.5,), (0.5,), in_channels=1))


def add_picture(path):
    loggers = RunLoggers.__new__(RunLoggers)
    loggers.figures = path.parent
    loggers.add_picture(path.name.removesuffix("_step_7.png"), bytes(1000), 7)


WRITERS = {
    "a_step_7.png": add_picture,
    "figure.png": lambda path: save(a_figure(), path),
    "lr_find.png": lambda path: draw_curve([1e-3, 1e-2, 1e-1], [3.0, 2.0, 1.0], 1e-2, path),
    "metrics.csv": lambda path: RunFolder(path.parent).write_history([{"epoch": epoch} for epoch in range(99)]),
    "split.csv": lambda path: write_split(path, a_split()),
    "summary.json": lambda path: write_json(path, {"numbers": list(range(99))}),
}


def test_full_disk_keeps_the_old_file_alone(tmp_path):
    lost = []
    for name, write in WRITERS.items():
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_text(YESTERDAY)
        with full_disk(), pytest.raises(OSError, match="File too large"):
            write(path)
        if path.read_bytes() != YESTERDAY.encode() or list(path.parent.iterdir()) != [path]:
            lost.append(name)
    assert not lost


def test_table_that_does_not_fit_leaves_the_old_one(tmp_path, capsys):
    run, pictures, table = make_run(tmp_path / "run"), labelled_photos(tmp_path / "photos"), tmp_path / "table.csv"
    photo(pictures / "ant" / "copy.png", seed=0)
    for words in (["predict", run, pictures, "--output", table], ["check", pictures, "--output", table]):
        table.write_text(YESTERDAY)
        with full_disk():
            code = main.main([str(word) for word in words])
        assert code != 0
        assert f"error: cannot write {table}: File too large" in capsys.readouterr().err
        assert table.read_text() == YESTERDAY
    assert not list(tmp_path.glob(".*"))


def test_new_file_or_folder_has_the_mode_of_the_umask(tmp_path):
    """A link stays one."""
    (tmp_path / "link.csv").symlink_to("table.csv")
    umask = os.umask(0o027)
    try:
        write_text(tmp_path / "link.csv", "new\n")
        with temporary_folder(tmp_path / "set") as aside:
            settle(aside, tmp_path / "set")
    finally:
        os.umask(umask)
    assert (tmp_path / "link.csv").is_symlink()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("table.csv", "set")] == [0o640, 0o750]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        write_bytes(pipe, b"through")
        assert reader.communicate()[0] == b"through"
    assert list(tmp_path.iterdir()) == [pipe]


def leave(place, kind):
    """What a killed process leaves of a file, or of a folder."""
    aside = temporary_path(place)
    if kind == "file":
        aside.touch()
    else:
        with temporary_folder(place) as content:
            (content / "picture.png").touch()
            shutil.copytree(content.parent, aside)
    return aside


def test_a_link_is_nothing_that_a_killed_writer_left_whatever_it_is_called(tmp_path):
    (notes := tmp_path / "notes").touch()
    (link := temporary_path(tmp_path / "table.csv")).symlink_to(notes)
    remove_leftovers([link], age=0)
    assert link.is_symlink()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_of_a_killed_writer_go_after_a_day(tmp_path, kind):
    fresh, old = leave(tmp_path / "table.csv", kind), leave(tmp_path / "table.csv", kind)
    os.utime(old, (0, time.time() - 90_000))
    if kind == "file":
        write_text(tmp_path / "table.csv", "whole\n")
    else:
        with temporary_folder(tmp_path / "table.csv") as aside:
            settle(aside, tmp_path / "table.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", fresh.name}


def test_equal_process_numbers_make_no_equal_names(tmp_path, monkeypatch):
    """Containers of one disk number their processes alike."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with temporary_folder(tmp_path / "set") as one, temporary_folder(tmp_path / "set") as other:
        (one / "a").touch()
        (other / "b").touch()
        settle(one, tmp_path / "set")
        settle(other, tmp_path / "set")
    assert [path.name for path in tmp_path.rglob("*")] == ["set", "a"]


@pytest.mark.parametrize("length", [236, 255])
def test_longest_file_names_are_written_to(tmp_path, length):
    table, folder = (tmp_path / f"{letter * (length - 4)}.csv" for letter in "ab")
    write_text(table, "whole\n")
    with temporary_folder(folder) as aside:
        settle(aside, folder)
    assert sorted(tmp_path.iterdir()) == [table, folder]


@pytest.mark.parametrize("fault", [errno.EINVAL, errno.ENOTSUP, errno.EIO], ids=errno.errorcode.get)
def test_disk_that_cannot_flush_a_folder_takes_files(tmp_path, monkeypatch, fault):
    def no_folder(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "fsync", no_folder)
    write_text(tmp_path / "table.csv", "whole\n")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize(("fault", "passes"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_disk_without_flushing_passes_and_a_fault_not(tmp_path, monkeypatch, fault, passes):
    def broken(descriptor):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "fsync", broken)
    with nullcontext() if passes else pytest.raises(OSError, match="table.csv"):
        write_text(tmp_path / "table.csv", "whole\n")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"] * passes


def test_a_full_device_is_named(tmp_path):
    with pytest.raises(OSError, match="/dev/full"):
        write_text(Path("/dev/full"), "too much")


def test_export_to_a_full_disk_leaves_nothing(tmp_path, capsys):
    run, target = make_run(tmp_path / "run"), tmp_path / "model.safetensors"
    with full_disk(4096):
        code = main.main(["export", str(run), "--output", str(target)])
    assert code == 4
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {target}: File too large"
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def curves_of_a_run(folder):
    with RunLoggers(folder) as loggers:
        for step in range(9):
            loggers.train.add_scalar("loss", 1.0, step)
        loggers.flush()


def means_of_a_comparison(folder):
    history = [{"step": step, "val_accuracy": 0.5, "val_loss": 1.0} for step in range(9)]
    arms = [arm_in_memory(name, np.ones((1, 4), bool)) for name in "ab"]
    runs = [replace(run, history=history) for arm in arms for run in arm]
    write_events(folder, "# the verdict", (), compared("small", runs))


@pytest.fixture
def printed(monkeypatch):
    """What the program prints of its threads that fail."""
    found = []
    monkeypatch.setattr(threading, "__excepthook__", found.append)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back afterwards
    leave_full_disks_to_writers()
    return found


@pytest.mark.parametrize("write", [curves_of_a_run, means_of_a_comparison])
def test_curves_that_do_not_fit_print_no_traceback(tmp_path, printed, write):
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write(tmp_path / "tb")
    assert not printed


def test_error_in_a_programs_own_thread_is_printed(printed):
    def lose_the_server():
        raise ConnectionResetError("my label server is down")

    thread = threading.Thread(target=lose_the_server)
    thread.start()
    thread.join()
    assert [str(failed.exc_value) for failed in printed] == ["my label server is down"]


def test_a_bracket_in_a_name_means_itself(tmp_path):
    for name in ("my [set]/0.tar", "my [set]/1.tar", "img1.png", "img2.png", "a[1]/b1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for pattern, count in {"my [set]/*.tar": 2, "img[12].png": 2, "a[1]/b*": 1}.items():
        assert len(matching(str(tmp_path / pattern))) == count, pattern
