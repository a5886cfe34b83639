"""The command line as a person meets it: exit codes, one line per mistake, nothing left behind."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import binomtest
from small_images import image_folder
from small_run import call

from commands import train
from commands.output import verdict
from common.shell import TENSORBOARD
from datasets.open import OpenedImages
from trainers.config import RunConfig, TrainConfig
from trainers.storage.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent


def train_briefly(capsys, data: Path, folder: Path):
    return call(
        capsys, "train", "--data", data, "--output-dir", folder, "--model", "vit_micro_4", "--image-size", 16,
        "--epochs", 1, "--batch-size", 4, "--workers", 0, "--device", "cpu", "--tb", "scalars",
    )  # fmt: skip


def test_train_then_evaluate_notices_changed_images(capsys, tmp_path):
    data = image_folder(tmp_path / "pets")
    code, out, err = train_briefly(capsys, data, tmp_path / "runs")
    assert (code, err) == (0, "")  # no terminal, so no bar
    assert "\r" not in out
    screen, *_ = out.partition("epoch 1/1")
    for said in (
        "2 classes ('cat', 'dog')",
        "12 train, 12 val images",
        "vit_micro_4 at 16 px, 1,198,722 parameters, all trained, random weights",
        "1 epoch x 3 steps of 4 images, adamw lr 0.002 (cosine), on cpu",
        f"run  {tmp_path / 'runs' / 'pets' / 'vit_micro_4_s0'}; live: {TENSORBOARD} --logdir ",
    ):
        assert said in screen
    assert screen.count("\n") <= 12
    assert f"watch  {TENSORBOARD} --logdir {tmp_path / 'runs' / 'pets'}" in out
    code, out, err = call(capsys, "evaluate", "latest", "--output-dir", tmp_path / "runs")
    assert (code, "as logged" in out) == (0, True), err
    (data / "val" / "cat" / "0.jpg").unlink()
    code, _, err = call(capsys, "evaluate", "latest", "--output-dir", tmp_path / "runs")
    assert (code, "changed since the run" in err) == (3, True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "no reason given"),
        (MemoryError("Unable to allocate 1.53 MiB for an array"), "Unable to allocate 1.53 MiB for an array"),
        (RuntimeError("could not create a primitive"), "could not create a primitive"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("libx.so: failed to map segment from shared object: Cannot allocate memory\n"), "libx.so: .*"),
    ],
)
def test_memory_that_runs_out_is_one_line(capsys, monkeypatch, error, reason):
    def fail(_options):
        raise error

    monkeypatch.setattr("commands.summary.main", fail)
    code, _out, err = call(capsys, "summary", "--model", "vit_micro_2")
    assert code == 4
    assert re.fullmatch(f"error: out of memory \\({reason}\\); give the same command with more of it free\n", err)


def test_faulty_folders_get_one_line_and_leave_no_run(capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    hollow = image_folder(tmp_path / "hollow")
    (hollow / "train" / "emu").mkdir()
    (hollow / "train" / "emu" / "1.gif").touch()
    truncated = image_folder(tmp_path / "truncated")
    victim = truncated / "train" / "cat" / "3.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    for folder, message in ((empty, "empty"), (hollow, "emu"), (truncated, "3.jpg")):
        code, _out, err = train_briefly(capsys, folder, tmp_path / "runs")
        assert code == 3, (folder, err)
        assert message in err
        assert err.strip().count("\n") == 0, err
        assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("words", [["--help"], ["train", "--help-all"], ["check", "{}"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["noticed at the end", "noticed at the first line"])
def test_program_that_nobody_reads_ends_quietly(tmp_path, words, unbuffered):
    data = image_folder(tmp_path / "pets")
    process = subprocess.Popen(
        [sys.executable, ROOT / "main.py", *(word.format(data) for word in words)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 141
    assert "Traceback" not in err
    assert "error" not in err


def test_broken_pipe_to_another_program_is_an_error(capsys, monkeypatch):
    def fail(_options):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("commands.summary.main", fail)
    monkeypatch.setattr("main.reader_has_left", lambda: False)
    assert call(capsys, "summary", "--model", "vit_micro_2") == (4, "", "error: [Errno 32] Broken pipe\n")


@pytest.mark.parametrize("compiled", [False, True])
def test_compiled_run_is_not_timed_beforehand(compiled, tmp_path, monkeypatch):
    run = SimpleNamespace(setup=SimpleNamespace(config=RunConfig(train=TrainConfig(compile=compiled))))
    run.folder, measured = RunFolder(tmp_path), []
    trainer = SimpleNamespace(state=SimpleNamespace(run=run))
    monkeypatch.setattr("trainers.auto_resume.train_or_resume", lambda config, handlers, opened: handlers[0](trainer))
    monkeypatch.setattr("trainers.budget.pace.say_forecast", measured.append)
    monkeypatch.setattr(train, "report", lambda _: None)
    train.train(run.setup.config, OpenedImages())
    assert bool(measured) is not compiled


@pytest.mark.parametrize(("right", "images"), [(54, 60), (0, 3), (1_999, 2_000)])
def test_expected_accuracy_is_wilsons_interval(right, images):
    result = SimpleNamespace(test={"accuracy": right / images}, images={"test": images}, designs={})
    interval = binomtest(right, images).proportion_ci(method="wilson")
    assert f"expect {100 * interval.low:.0f} to {100 * interval.high:.0f}%" in verdict(result)
