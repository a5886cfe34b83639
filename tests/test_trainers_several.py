"""Several runs of one command: it goes on by itself where it was stopped, and its processes open the images once."""

import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from child_processes import ROOT, environment, wait_until
from killed_runs import assert_same_content, run_content
from other_process import train_and_count
from small_images import image_folder
from small_run import call, tiny_run

import main
from trainers import run
from trainers.engine.engines import TrainStep
from trainers.multirun import runs
from trainers.multirun.runs import Planned, training
from trainers.multirun.sharing import Sharing

WORDS = "train digits --model vit_micro_2 --labels-per-class 9 --batch-size 15 --epochs 1 --device cpu --workers 0"
SHORT = [*WORDS.split(), "--tb", "scalars", "--val-fraction", "0.03", "--test-fraction", "0.03"]
"""Six steps a run."""


def runs_in(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(folder.rglob("config.json"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bits of each run of three seeds, and of two folds, that nobody stopped."""
    found = {}
    for words in (("--seeds", "3"), ("--folds", "2")):
        folder = tmp_path_factory.mktemp("whole")
        assert main.main([*SHORT, *words, "--output-dir", str(folder)]) == 0
        found[words] = {name: run_content(run) for name, run in runs_in(folder).items()}
    return found


def stop_at(patch: pytest.MonkeyPatch, owner: object, name: str, number: int) -> None:
    """Receive a signal in one of the calls of a function, counted over all runs of this process."""
    original, calls = getattr(owner, name), count(1)

    def called(*args, **options):
        if next(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **options)

    patch.setattr(owner, name, called)


@pytest.mark.parametrize("name", [(), ("--run-name", "r")], ids=["unnamed", "named"])
@pytest.mark.parametrize("words", [("--seeds", "3"), ("--folds", "2")], ids=" ".join)
@pytest.mark.parametrize("place", [(run, "prepare", 2), (TrainStep, "__call__", 10)], ids=["after a run", "in a run"])
def test_the_same_command_goes_on_with_several_runs_to_the_same_bits(
    tmp_path, capsys, monkeypatch, whole, words, place, name
):
    command = [*SHORT, *words, *name, "--output-dir", tmp_path]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, *place)
        code, _, err = call(capsys, *command)
    assert (code, "same command" in err) == (143, True)
    in_a_run = place[0] is TrainStep
    assert len(runs_in(tmp_path)) == 1 + in_a_run
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--jobs", "1"])  # as it is advised where memory runs out
    code, out, err = call(capsys, *command)
    assert code == 0, err
    assert ("after step 4 of 6" in out) == in_a_run
    for (_, expected), found in zip(whole[words].items(), runs_in(tmp_path).values(), strict=True):
        assert_same_content(expected, run_content(found))


def test_a_command_that_has_come_to_its_end_starts_anew_and_another_takes_up_nothing(tmp_path, capsys, monkeypatch):
    for words in (["--seeds", "2"], ["--seed", "1"], ["--seeds", "2"]):
        monkeypatch.setattr(sys, "argv", ["main.py", *words])
        code, _, err = call(capsys, *SHORT, *words, "--output-dir", tmp_path)
        assert code == 0, err
    assert [*runs_in(tmp_path)] == [f"vit_micro_2_s{name}" for name in ("0", "0_2", "1", "1_2", "1_3")]


def test_where_the_images_have_changed_every_run_starts_anew(tmp_path, capsys):
    folder = image_folder(tmp_path / "pets")
    command = [
        "train",
        folder,
        "--model",
        "vit_micro_4",
        "--image-size",
        16,
        "--epochs",
        1,
        "--seeds",
        2,
        "--device",
        "cpu",
    ]
    command += ["--workers", 0, "--tb", "scalars", "--output-dir", tmp_path / "runs"]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, run, "prepare", 2)
        assert call(capsys, *command)[0] == 143
    shutil.copy(folder / "train" / "cat" / "0.jpg", folder / "train" / "dog" / "new.jpg")
    code, out, err = call(capsys, *command)
    assert code == 0, err
    assert "1 image new" in " ".join(out.split())
    assert [*runs_in(tmp_path)] == ["vit_micro_4_s0", "vit_micro_4_s0_2", "vit_micro_4_s1"]


def test_with_a_name_the_same_command_reads_what_is_finished(tmp_path, capsys):
    command = [*SHORT, "--seeds", "2", "--run-name", "r", "--output-dir", tmp_path]
    said = [call(capsys, *command)[1] for _ in range(2)]
    assert [*runs_in(tmp_path)] == ["r_s0", "r_s1"]
    scores = [re.findall(r"val .*%.*", text)[-1] for text in said]
    assert scores == 2 * scores[:1]
    code, _, err = call(capsys, *command, "--lr", "0.5")
    assert (code, "r_s0 exists already" in err) == (2, True)


@pytest.mark.slow
def test_killed_processes_side_by_side_go_on_to_the_same_bits(tmp_path, whole):
    command = [sys.executable, "main.py", *SHORT, "--seeds", "3", "--jobs", "2", "--output-dir", str(tmp_path)]
    begun = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    wait_until(lambda: len([*tmp_path.rglob("metrics.csv")]) >= 2, seconds=120)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait(timeout=60)
    again = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    for (_, expected), found in zip(whole["--seeds", "3"].items(), runs_in(tmp_path).values(), strict=True):
        assert_same_content(expected, run_content(found))


@pytest.mark.slow
def test_a_worker_opens_the_images_once_for_all_of_its_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "train_one", train_and_count)
    config = tiny_run(tmp_path, run_name=None)
    plans = [Planned(f"run {seed}", config.changed(train={"seed": seed, "threads": 1})) for seed in range(4)]
    with training(Sharing(2, 1)) as train:
        opened = [outcome.seconds for _, outcome in train(plans)]
    assert sorted(opened) == [1, 1, 1, 1], "in each worker as many after its second run as after its first"
