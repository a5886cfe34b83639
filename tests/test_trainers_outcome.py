"""Commands that train several runs: they go on where they stopped, a table sums them up, `latest` is the best."""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from child_processes import ROOT, environment, wait_until
from fake_sets import class_folders
from killed_runs import assert_same_content, rows_of, run_content
from other_process import train_and_count
from small_images import image_folder
from small_run import META, call, digits_run, tiny_run

import main
from trainers import run
from trainers.budget import plan
from trainers.engine.engines import TrainStep
from trainers.multirun import runs, seeds_and_folds
from trainers.multirun.runs import Planned, training
from trainers.multirun.sharing import Sharing
from trainers.storage.run_folder import RunFolder, write_json
from trainers.storage.run_result import best_of_several, read_result
from trainers.system import process

OPTIONS = "--epochs 1 --device cpu --workers 0 --tb scalars"
SMALL = ["--model", "vit_micro_2", "--image-size", "8", *OPTIONS.split()]


@pytest.fixture
def pets(tmp_path):
    return class_folders(tmp_path / "pets", {"a": 12, "b": 12})


def result(val: float, loss: float) -> SimpleNamespace:
    return SimpleNamespace(val={"accuracy": val, "loss": loss})


def empty_run(folder: Path, *, started: int) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "summary.json"):
        write_json(folder / name, {})
    write_json(folder / "meta.json", META | {"started": f"2026-11-28T05:00:0{started}.000000+00:00"})
    return folder


def test_ties_go_to_the_lower_loss_then_the_first():
    runs = [result(0.5, 0.9), result(0.7, 0.8), result(0.7, 0.6), result(0.7, 0.6)]
    assert best_of_several(runs, select="accuracy") is runs[2]
    assert best_of_several(runs, select="loss") is runs[2]


@pytest.mark.parametrize("name", ["a", "compare/x/all/s0", "a/b/c/d/e/f"])
def test_latest_finds_a_run_of_any_name(tmp_path, name):
    run, older = empty_run(tmp_path / "pets" / name, started=2), tmp_path / "pets" / "older"
    empty_run(older, started=1)
    empty_run(tmp_path / "pets" / ".aside", started=3)
    empty_run(tmp_path / "tuning" / "pets" / "compare" / "x" / "all" / "s0_lr1", started=4)  # it only tried a rate
    assert RunFolder.find("latest", tmp_path).path == run
    called_tuning = empty_run(tmp_path / "tuning" / "r", started=5)
    assert RunFolder.find("latest", tmp_path).path == called_tuning


def test_latest_does_not_depend_on_file_times(tmp_path):
    for number, name in enumerate("bca", 1):
        empty_run(tmp_path / "runs" / "pets" / name, started=number)
    for kept in ("a", "b"):
        for number, path in enumerate(sorted(tmp_path.rglob("*.json"), reverse=True)):
            os.utime(path, (number, number))
        assert RunFolder.find("latest", tmp_path / "runs").path.name == kept
        RunFolder(tmp_path / "runs" / "pets" / "b").keep()


@pytest.mark.parametrize("kept", ["probe", "all"])
def test_latest_is_the_run_that_a_plan_keeps(tmp_path, capsys, monkeypatch, pets, kept):
    """It kept A, and evaluate, export and resume opened B."""

    def same_scores_twice(budget, config, start, **more):
        options = {name: config.changed(train={"epochs": 1}, output={"run_name": name}) for name in ("probe", "all")}
        return {name: start(each, ()) for name, each in options.items()}[kept]

    monkeypatch.setattr(plan, "best_in", same_scores_twice)
    words = ["train", "--data", pets, *(word for word in SMALL if word not in ("--epochs", "1"))]
    code, out, err = call(capsys, *words, "--minutes", 1, "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert RunFolder.find("latest", tmp_path / "runs").path == tmp_path / "runs" / "pets" / kept
    code, out, err = call(capsys, "evaluate", "latest", "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert out.startswith(f"{tmp_path / 'runs' / 'pets' / kept}: ")


def test_latest_is_the_best_seed_or_the_first_fold(tmp_path, capsys, pets):
    """Folds share no validation images, on which one could be the best."""
    for words in (["--val-fraction", 0.5, "--seeds", 3], ["--folds", 2]):
        code, out, err = call(capsys, "train", "--data", pets, *SMALL, *words, "--output-dir", tmp_path / "runs")
        assert code == 0, err
        latest = RunFolder.find("latest", tmp_path / "runs").path
        assert f"latest  {latest}" in out
        if "--seeds" in words:
            results = [read_result(RunFolder(tmp_path / "runs" / "pets" / f"vit_micro_2_s{seed}")) for seed in range(3)]
            assert latest == best_of_several(results, select="accuracy").run_dir
    assert latest.name.endswith("_fold1")


def test_latest_is_the_best_seed_of_the_best_arm(tmp_path, capsys):
    data = class_folders(tmp_path / "pets", {f"{split}/{name}": 8 for split in ("train", "val") for name in "ab"})
    words = ["compare", "--data", data, "--arms", "vit_nano_8", "vit_nano_8,pool=mean", "--labels-per-class", 4, "all"]
    words += ["--seeds", 2, "--tune-lr", "off", "--image-size", 16, *OPTIONS.split()]
    code, out, err = call(capsys, *words, "--output-dir", tmp_path / "runs")
    assert code == 0, err
    folder = tmp_path / "runs" / "pets" / "compare"
    latest = RunFolder.find("latest", tmp_path / "runs").path
    assert f"latest  {latest}" in out
    arms = [  # on validation
        [read_result(RunFolder(folder / arm / "all" / f"s{seed}")) for seed in (0, 1)]
        for arm in ("pool_cls", "pool_mean")
    ]
    scores = [[(run.val["accuracy"], -run.val["loss"], run.run_dir) for run in runs] for runs in arms]
    means = [tuple(sum(column) / 2 for column in list(zip(*rows, strict=True))[:2]) for rows in scores]
    assert latest == max(scores[means.index(max(means))])[2]


def test_folds_are_runs_and_a_table_of_them(tmp_path, capsys, monkeypatch):
    given_back = []
    monkeypatch.setattr(process, "give_back_freed_memory", lambda: given_back.append(1))
    words = ["train", "digits", *SMALL, "--folds", 3, "--labels-per-class", 10, "--run-name", "cv"]
    code, out, err = call(capsys, *words, "--output-dir", tmp_path)
    assert code == 0, err
    assert len(given_back) == 3  # no fold shows the memory of the one before
    runs = [tmp_path / "digits" / f"cv_fold{fold}" for fold in (1, 2, 3)]
    assert all((run / "summary.json").is_file() for run in runs)
    validated = [row["path"] for run in runs for row in rows_of(run / "split.csv") if row["split"] == "val"]
    assert len(validated) == len(set(validated)) == 1797 - 360
    table = rows_of(tmp_path / "digits" / "cv_folds.csv")
    assert [row["fold"] for row in table] == ["1", "2", "3", "mean", "standard deviation"]
    scores = [float(row["val_accuracy"]) for row in table]
    assert scores[3] == pytest.approx(statistics.mean(scores[:3]), rel=1e-12)
    assert scores[4] == statistics.stdev(scores[:3])
    assert "3 folds" in out


def test_auto_resume_finds_folds_without_a_name(tmp_path):
    data = {"folds": 2, "labels_per_class": 3, "val_fraction": None, "test_fraction": None}
    folds = digits_run(tmp_path, data=data, output={"auto_resume": True})
    first, again = (seeds_and_folds.train_all(seeds_and_folds.of_folds(folds)) for _ in range(2))
    assert [result.run_dir for result in again] == [result.run_dir for result in first]
    assert first[0].run_dir.name.endswith("_s0_fold1")


WORDS = "train digits --model vit_micro_2 --labels-per-class 9 --batch-size 15 --epochs 1 --device cpu --workers 0"
SHORT = [*WORDS.split(), "--tb", "scalars", "--val-fraction", "0.03", "--test-fraction", "0.03"]
"""Six steps a run."""


def runs_in(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(folder.rglob("config.json"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bits of each run of a command that nobody stopped."""

    @cache
    def contents(*words):
        folder = tmp_path_factory.mktemp("whole")
        assert main.main([*SHORT, *words, "--output-dir", str(folder)]) == 0
        return [run_content(run) for run in runs_in(folder).values()]

    return contents


def stop_at(patch: pytest.MonkeyPatch, owner: object, name: str, number: int) -> None:
    """Receive a signal in one of the calls of a function, counted over all runs of this process."""
    original, calls = getattr(owner, name), count(1)

    def called(*args, **options):
        if next(calls) == number:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **options)

    patch.setattr(owner, name, called)


AFTER_A_RUN, IN_A_RUN = (run, "prepare", 2), (TrainStep, "__call__", 10)


@pytest.mark.parametrize(
    ("place", "words", "name"),
    [
        pytest.param(AFTER_A_RUN, ("--seeds", "2"), (), id="after a run-seeds-unnamed"),
        pytest.param(AFTER_A_RUN, ("--folds", "2"), ("--run-name", "r"), id="after a run-folds-named"),
        pytest.param(IN_A_RUN, ("--seeds", "2"), ("--run-name", "r"), id="in a run-seeds-named"),
        pytest.param(IN_A_RUN, ("--folds", "2"), (), id="in a run-folds-unnamed"),
    ],
)
def test_same_command_goes_on_to_the_same_bits(tmp_path, capsys, monkeypatch, whole, words, place, name):
    command = [*SHORT, *words, *name, "--output-dir", tmp_path]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, *place)
        code, _, err = call(capsys, *command)
    assert (code, "same command" in err) == (143, True)
    in_a_run = place is IN_A_RUN
    assert len(runs_in(tmp_path)) == 1 + in_a_run
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--jobs", "1"])  # as it is advised where memory runs out
    code, out, err = call(capsys, *command)
    assert code == 0, err
    assert ("after step 4 of 6" in out) == in_a_run
    for expected, found in zip(whole(*words), runs_in(tmp_path).values(), strict=True):
        assert_same_content(expected, run_content(found))


def test_finished_command_starts_anew(tmp_path, capsys, monkeypatch):
    for words in (["--seeds", "2"], ["--seed", "1"], ["--seeds", "2"]):  # another takes up nothing, either
        monkeypatch.setattr(sys, "argv", ["main.py", *words])
        code, _, err = call(capsys, *SHORT, *words, "--output-dir", tmp_path)
        assert code == 0, err
    assert [*runs_in(tmp_path)] == [f"vit_micro_2_s{name}" for name in ("0", "0_2", "1", "1_2", "1_3")]


def test_changed_images_start_every_run_anew(tmp_path, capsys):
    folder = image_folder(tmp_path / "pets")
    command = ["train", folder, "--model", "vit_micro_4", "--image-size", 16, "--seeds", 2, *OPTIONS.split()]
    command += ["--output-dir", tmp_path / "runs"]
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, run, "prepare", 2)
        assert call(capsys, *command)[0] == 143
    shutil.copy(folder / "train" / "cat" / "0.jpg", folder / "train" / "dog" / "new.jpg")
    code, out, err = call(capsys, *command)
    assert code == 0, err
    assert "1 image new" in " ".join(out.split())
    assert [*runs_in(tmp_path)] == ["vit_micro_4_s0", "vit_micro_4_s0_2", "vit_micro_4_s1"]


def test_named_command_reads_what_is_finished(tmp_path, capsys):
    command = [*SHORT, "--seeds", "2", "--run-name", "r", "--output-dir", tmp_path]
    said = [call(capsys, *command)[1] for _ in range(2)]
    assert [*runs_in(tmp_path)] == ["r_s0", "r_s1"]
    scores = [re.findall(r"val .*%.*", text)[-1] for text in said]
    assert scores == 2 * scores[:1]
    code, _, err = call(capsys, *command, "--lr", "0.5")
    assert (code, "r_s0 exists already" in err) == (2, True)


@pytest.mark.slow
def test_killed_processes_go_on_to_the_same_bits(tmp_path, whole):
    command = [sys.executable, "main.py", *SHORT, "--seeds", "3", "--jobs", "2", "--output-dir", str(tmp_path)]
    begun = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    wait_until(lambda: len([*tmp_path.rglob("metrics.csv")]) >= 2, seconds=120)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait(timeout=60)
    again = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    for expected, found in zip(whole("--seeds", "3"), runs_in(tmp_path).values(), strict=True):
        assert_same_content(expected, run_content(found))


@pytest.mark.slow
def test_worker_opens_the_images_once_for_its_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "train_one", train_and_count)
    config = tiny_run(tmp_path, run_name=None)
    plans = [Planned(f"run {seed}", config.changed(train={"seed": seed, "threads": 1})) for seed in range(4)]
    with training(Sharing(2, 1)) as train:
        opened = [outcome.seconds for _, outcome in train(plans)]
    assert sorted(opened) == [1, 1, 1, 1], "in each worker as many after its second run as after its first"
