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
from common.shell import PROGRAM, TENSORBOARD
from datasets.open import OpenedImages
from trainers.config import RunConfig, TrainConfig
from trainers.storage.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent


def train_briefly(capsys, data: Path, folder: Path, *argv):
    return call(
        capsys, "train", "--data", data, "--output-dir", folder, "--model", "vit_micro_4", "--image-size", 16,
        "--epochs", 1, "--batch-size", 4, "--workers", 0, "--device", "cpu", "--tb", "scalars", *argv,
    )  # fmt: skip


def test_train_then_evaluate_a_folder_of_images(capsys, tmp_path):
    data = image_folder(tmp_path / "pets")
    code, out, err = train_briefly(capsys, data, tmp_path / "runs")
    assert code == 0, err
    assert err == ""  # no terminal, so no bar
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
    assert code == 0, err
    assert "as logged" in out
    assert "logged: 0" not in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["tain"], 2, "unknown command 'tain'; did you mean train?"),
        (["train", "--model", "vit_tinny_16"], 2, "did you mean vit_tiny_16?"),
        (["train", "--data", "digit"], 2, "did you mean digits?"),
        (["train", "digit"], 2, "did you mean digits?"),
        (["train", "digits", "--data", "fashion_mnist"], 2, "digits and --data fashion_mnist: name one set of images"),
        (["train", "digits", "fashion_mnist"], 2, "unrecognized arguments: fashion_mnist"),
        (["train", "--images", "digits"], 2, "unknown option --images"),
        (["check", "digit"], 2, "did you mean digits?"),
        (["check", "--data", "digit"], 2, "did you mean digits?"),
        (["pack", "out", "--data=digit"], 2, "did you mean digits?"),
        (["rank", "--data", "digit"], 2, "did you mean digits?"),
        (["check", "--data"], 2, "--data: expected one"),
        (["check"], 2, f"name the images: {PROGRAM} check path/to/images"),
        (["train", "--model", "xyzzy"], 2, "unknown model 'xyzzy'. Known: vit_micro_2"),
        (["train", "--epoch", "3"], 2, "unknown option --epoch; did you mean --epochs?"),
        (["train", "--learning-rate", "3"], 2, "unknown option --learning-rate; here it is --lr."),
        (["train", "--batch_size", "3"], 2, "unknown option --batch_size; here it is --batch-size."),
        (["train", "--resume", "x"], 2, "unknown option --resume; here it is the command `resume RUN`."),
        (["train", "--model", "vit_tiny_16", "--image-size", "225"], 2, "nearest: 224, 240"),
        (["train", "--epochs", "many"], 2, "--epochs: 'many' is not INT or FLOAT"),
        (["train", "--config", "linear"], 2, "did you mean linear-probe?"),
        (["train", "--seeds", "2.5"], 2, "--seeds: '2.5' is not INT"),
        (["train", "--device"], 2, "--device: expected one"),
        (["train", "--device", "gpu"], 2, "unknown device 'gpu'; known: auto, cpu, cuda, cuda:N, mps"),
        (["train", "--device", "cpu", "--amp", "fp16"], 2, "--amp fp16 needs a GPU; on this device use bf16 or off"),
        (["train", "--split", "split.csv", "--folds", "3"], 2, "folds draw their own split; leave out split"),
        (["train", "--minutes", "5", "--folds", "3"], 2, "with --folds give --epochs, or one fold"),
        (["train", "--minutes", "5", "--seeds", "2"], 2, "with --seeds give --epochs"),
        (["train", "--mean", "0.5"], 2, "--config FILE with the line model.mean = VALUE"),
        (["compare", "--pool", "mean"], 2, "--arms MODEL,pool=VALUE"),
        (["evaluate", "latest", "--pool", "mean"], 2, "unknown option --pool"),
        (["compare", "digits"], 2, "digits is not a run directory; to train models on images: compare --data digits"),
        (["compare", "."], 2, ". is not a run directory; to train models on images: compare --data ."),
        (["explain", "latest", "a.png", "--head", "1"], 2, "head=1 needs --layer"),
        (["evaluate", "latest", "again"], 2, "unrecognized arguments: again"),
        (["train", "--device", "cuda:99"], 2, "device 'cuda:99' is not there"),
        (["train", "--weights", "nothing.pth"], 3, "nothing.pth"),
        (["train", "--config", "nothing.json"], 2, "nothing.json"),
        (["evaluate", "nowhere"], 3, "nowhere is not a run directory: it does not exist"),
        (["evaluate", "latest"], 3, "no run in runs/"),
        (["evaluate"], 2, "RUN"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(capsys, tmp_path, monkeypatch, argv, code, message):
    monkeypatch.chdir(tmp_path)
    exit_code, _out, err = call(capsys, *argv)
    assert exit_code == code, err
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_train_takes_its_images_by_their_place_as_check_does(capsys, tmp_path):
    data = image_folder(tmp_path / "pets")
    words = f"--output-dir {tmp_path / 'runs'} --model vit_micro_2 --image-size 8 --epochs 1 --device cpu --workers 0"
    code, out, err = call(capsys, "train", data, *words.split(), "--tb", "scalars")
    assert code == 0, err
    assert (tmp_path / "runs" / "pets" / "vit_micro_2_s0" / "summary.json").is_file()
    assert "12 train, 12 val" in out


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
def test_memory_that_runs_out_in_any_command_is_one_line(capsys, monkeypatch, error, reason):
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


def test_changed_images_are_noticed_by_evaluate(capsys, tmp_path):
    data = image_folder(tmp_path / "pets")
    assert train_briefly(capsys, data, tmp_path / "runs", "--run-name", "r")[0] == 0
    (data / "val" / "cat" / "0.jpg").unlink()
    code, _out, err = call(capsys, "evaluate", tmp_path / "runs" / "pets" / "r")
    assert code == 3
    assert "changed since the run" in err


@pytest.mark.parametrize("words", [["--help"], ["train", "--help-all"], ["check", "{}"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["noticed at the end", "noticed at the first line"])
def test_output_that_nobody_reads_any_more_ends_the_program_quietly(tmp_path, words, unbuffered):
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


def test_a_pipe_to_another_program_that_breaks_is_an_error_while_somebody_reads_the_output(capsys, monkeypatch):
    def fail(_options):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("commands.summary.main", fail)
    monkeypatch.setattr("main.reader_has_left", lambda: False)
    assert call(capsys, "summary", "--model", "vit_micro_2") == (4, "", "error: [Errno 32] Broken pipe\n")


@pytest.mark.parametrize("compiled", [False, True])
def test_no_copy_is_compiled_to_say_how_long_a_run_takes(compiled, tmp_path, monkeypatch):
    run = SimpleNamespace(setup=SimpleNamespace(config=RunConfig(train=TrainConfig(compile=compiled))))
    run.folder, measured = RunFolder(tmp_path), []
    trainer = SimpleNamespace(state=SimpleNamespace(run=run))
    monkeypatch.setattr("trainers.auto_resume.train_or_resume", lambda config, handlers, opened: handlers[0](trainer))
    monkeypatch.setattr("trainers.budget.pace.say_forecast", measured.append)
    monkeypatch.setattr(train, "report", lambda _: None)
    train.train(run.setup.config, OpenedImages())
    assert bool(measured) is not compiled


@pytest.mark.parametrize(("right", "images"), [(54, 60), (0, 3), (1_999, 2_000)])
def test_what_to_expect_of_new_images_is_wilsons_interval(right, images):
    result = SimpleNamespace(test={"accuracy": right / images}, images={"test": images}, designs={})
    interval = binomtest(right, images).proportion_ci(method="wilson")
    assert f"expect {100 * interval.low:.0f} to {100 * interval.high:.0f}%" in verdict(result)
