"""Runs in other people's trackers: what their files say arrives, once."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints
from unittest.mock import create_autospec

import pytest
from fake_sets import save
from small_comparison import finished_run
from small_run import call

from commands.share import Options
from sharing import trackers
from sharing.replay import Replay, replay_of_run, replays_of_comparison
from sharing.share import read_all, share
from sharing.trackers import TRACKERS
from trainers.storage.run_folder import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
READERS = Path(__file__).resolve().parent / "tracker_contents.py"


class Recording:
    """A tracker that keeps what it is given; the shape of every other."""

    def __init__(self) -> None:
        self.runs: dict[str, Replay] = {}
        self.contents: dict[str, str] = {}
        self.writes = 0

    def has(self, replay: Replay) -> bool:
        return self.contents.get(replay.id) == replay.content

    def put(self, replay: Replay) -> None:
        self.runs[replay.id], self.contents[replay.id] = replay, replay.content
        self.writes += 1


def run_with_pictures(folder: Path, *, seed: int = 0) -> Path:
    finished_run(folder, labels=[0, 1, 2], correct=[True, True, False], seed=seed,
                 summary={"test": {"accuracy": 0.625, "loss": 1.25, "n": 3}})  # fmt: skip
    write_json(folder / "meta.json", read_json(folder / "meta.json") | {"started": "2026-01-02T03:04:05+00:00"})
    for name in ("attention_by_image_step_3", "attention_by_image_step_6", "overview"):
        save(folder / "figures" / f"{name}.png", seed=len(name))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison of one arm with two seeds; its first run."""
    folder = tmp_path_factory.mktemp("sharing") / "compare"
    for seed in (0, 1):
        run_with_pictures(folder / "from_scratch" / "all" / f"s{seed}", seed=seed)
    write_json(folder / "compare.json", {"status": "finished", "requested": {"seeds": 2, "base": {"lr": None}}})
    (folder / "table.csv").write_text("data,labels_per_class,arm,accuracy,p,verdict\nx,all,ViT 1,0.5,,better\n")
    save(folder / "figures" / "differences.png")
    return folder


@pytest.fixture
def comparison(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "compare"))


def test_everything_that_the_files_of_a_run_say_is_replayed(comparison):
    replay = replay_of_run(comparison / "from_scratch/all/s0")
    assert replay.steps == {
        step: {"epoch": epoch, "val_loss": 2 - 0.5 * epoch, "val_accuracy": 0.2 * epoch, "seconds": 0.5 * epoch,
               "memory_mb": 300 + epoch}
        for epoch, step in enumerate((0, 3, 6))
    }  # fmt: skip
    assert (replay.scores["test_accuracy"], replay.scores["best_val_loss"], replay.scores["best_epoch"]) == (
        0.625,
        1,
        2,
    )
    assert (replay.settings["train.lr"], replay.settings["model.name"]) == ("0.001", "vit_micro_4")
    assert {step: [*found] for step, found in replay.pictures.items()} == {
        3: ["attention_by_image"], 6: ["attention_by_image", "overview"],
    }  # fmt: skip


def test_a_comparison_is_its_runs_and_its_table(comparison):
    *runs, whole = replays_of_comparison(comparison)
    assert [run.name for run in runs] == ["compare/from_scratch/all/s0", "compare/from_scratch/all/s1"]
    assert whole.scores == {"ViT_1_all/accuracy": 0.5}
    assert whole.settings["ViT_1_all/verdict"] == "better"
    assert whole.settings["requested.seeds"] == "2"
    assert [*whole.pictures[0]] == ["differences"]
    assert len({run.id for run in (*runs, whole)}) == 3


def test_shared_twice_each_run_is_there_once(comparison):
    tracker = Recording()
    names = [str(comparison), str(comparison / "from_scratch/all/s0")]
    assert [new for _, new in share(read_all(names, comparison), tracker)] == [True] * 3
    first = dict(tracker.runs)
    assert [new for _, new in share(read_all(names, comparison), tracker)] == [False] * 3
    assert (tracker.runs, tracker.writes) == (first, 3)


def test_a_run_is_the_same_wherever_it_lies_and_its_seed_is_another(comparison, tmp_path):
    run = comparison / "from_scratch/all/s0"
    before = replay_of_run(run)
    moved = Path(shutil.copytree(run, tmp_path / "elsewhere"))
    there = replay_of_run(moved)
    assert (there.id, there.content) == (before.id, before.content)
    assert (there.name, before.name) == ("elsewhere", "compare/from_scratch/all/s0")
    assert replay_of_run(run.with_name("s1")).id != before.id


@pytest.mark.parametrize("change", ["a picture", "more epochs", "a score"])
def test_a_run_that_changed_takes_the_place_of_what_was_shared(comparison, change):
    run, tracker = comparison / "from_scratch/all/s0", Recording()
    [*share([replay_of_run(run)], tracker)]
    if change == "a picture":
        save(run / "figures/overview.png", seed=99)
    elif change == "more epochs":
        with open(run / "metrics.csv", "a") as file:
            file.write("3,9,,0.4,0.7,1.5,303\n")
        config = read_json(run / "config.json")
        config["train"]["epochs"] = 3
        write_json(run / "config.json", config)
    else:
        write_json(run / "summary.json", read_json(run / "summary.json") | {"seconds": 99.0})
    assert [new for _, new in share([replay_of_run(run)], tracker)] == [True]
    assert len(tracker.runs) == 1


@pytest.mark.parametrize("what", ["run", "comparison", "nothing", "link"])
def test_what_cannot_be_shared_is_one_line_and_nothing_is_shared(comparison, what, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sharing.trackers.open_tracker", lambda name: pytest.fail("a tracker was opened"))
    good, other = comparison / "from_scratch/all/s0", comparison / "from_scratch/all/s1"
    if what == "run":
        write_json(other / "summary.json", {"status": "stopped", "epochs": 1})
    elif what == "comparison":
        write_json(comparison / "compare.json", {"status": "running"})
        other = comparison
    elif what == "nothing":
        other = tmp_path / "no_run"
    else:
        (tmp_path / "secret.png").touch()
        (other / "figures/secret.png").symlink_to(tmp_path / "secret.png")
    code, out, err = call(capsys, "share", good, other, "--to", "mlflow")
    expected = {"run": "is stopped", "comparison": "is running", "nothing": "does not exist", "link": "leads out"}
    assert (code, out) == (3, "")
    assert expected[what] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_line_with_what_to_install(name, comparison, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, TRACKERS[name].package, None)
    for module in [module for module in sys.modules if module.startswith(f"{trackers.__name__}.in_")]:
        monkeypatch.delitem(sys.modules, module)
    code, out, err = call(capsys, "share", comparison, "--to", name)
    assert (code, out) == (2, "")
    assert err == f"error: {name} is not installed: pip install {name}\n"


@pytest.mark.parametrize("words", [["--to", "mlflow"], ["RUN"], ["RUN", "--to", "neptune"]])
def test_a_command_that_names_no_run_or_no_tracker_is_one_line(words, capsys):
    code, out, err = call(capsys, "share", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_command_names_every_tracker_and_prints_what_it_did(comparison, capsys, monkeypatch):
    choices, _ = get_args(get_type_hints(Options)["to"])
    assert get_args(choices) == (*TRACKERS,)
    tracker = Recording()
    monkeypatch.setattr("sharing.trackers.open_tracker", lambda name: tracker)
    for first in (True, False):
        code, out, _ = call(capsys, "share", comparison, "--to", "mlflow", "--project", "my pets")
        assert code == 0
        assert out.count("compare/from_scratch") == 2
        assert out.endswith(f"{3 * first} runs written to mlflow, {3 * (not first)} there already, unchanged\n")
    assert {run.project for run in tracker.runs.values()} == {"my_pets"}


def contents(tracker: str, folder: Path, run_ids: list[str]) -> dict:
    """What a tracker holds, read back with its own means in a process of its own."""
    done = subprocess.run([sys.executable, str(READERS), tracker, *run_ids], cwd=folder, env=store(folder),
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def store(folder: Path) -> dict[str, str]:
    """Settings that keep every tracker in one folder, without a network."""
    return os.environ | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_ERROR_REPORTING": "false",
        "TRACKIO_DIR": str(folder / "trackio"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_local_store_holds_each_run_once_with_all_that_it_found(name, comparison, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    replays = {replay.id: replay for replay in replays_of_comparison(comparison)}
    program = "import sys, main; sys.exit(main.main(sys.argv[1:]))"

    def shared(*names: Path) -> tuple[str, dict]:
        words = ["share", *map(str, names), "--to", name]
        done = subprocess.run([sys.executable, "-c", program, *words], cwd=tmp_path, env=store(tmp_path),
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()[-1], contents(name, tmp_path, [*replays])

    def expected() -> dict:
        return {
            key: [{
                "steps": {str(step): dict(found) for step, found in replay.steps.items()},
                "scores": dict(replay.scores),
                "pictures": sum(map(len, replay.pictures.values())),
                "settings": dict(replay.settings),
            }]
            for key, replay in replays.items()
        }  # fmt: skip

    said, first = shared(comparison)
    assert said.startswith("3 runs written")
    assert first == expected()
    said, second = shared(comparison, comparison / "from_scratch/all/s0")
    assert said.startswith("0 runs written")
    assert second == first
    run = comparison / "from_scratch/all/s1"
    write_json(run / "summary.json", read_json(run / "summary.json") | {"seconds": 99.0})
    replays = {replay.id: replay for replay in replays_of_comparison(comparison)}
    said, third = shared(comparison)
    assert said.startswith("1 run written")
    assert third == expected() != first


@pytest.mark.filterwarnings("ignore")  # its own
def test_clearml_is_called_as_its_interface_allows(comparison, monkeypatch):
    """No server is at hand: the calls are held against the signatures of the installed package."""
    clearml = pytest.importorskip("clearml", reason="clearml is not installed")
    from sharing.trackers import in_clearml

    task, logger = create_autospec(clearml.Task, instance=True), create_autospec(clearml.Logger, instance=True)
    made = create_autospec(clearml.Task)
    made.TaskTypes, task.comment, task.get_logger.return_value = clearml.Task.TaskTypes, "", logger
    made.create.return_value, made.get_tasks.side_effect = task, [[], [], [task]]
    monkeypatch.setattr(in_clearml, "Task", made)
    tracker, replay = in_clearml.ClearML(), replay_of_run(comparison / "from_scratch/all/s0")
    assert not tracker.has(replay)
    tracker.put(replay)
    assert logger.report_scalar.call_count == sum(map(len, replay.steps.values()))
    assert logger.report_image.call_count == 3
    task.comment = task.set_comment.call_args.args[0]
    assert tracker.has(replay)
