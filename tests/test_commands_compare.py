"""`compare` as a person meets it: arms trained under one protocol, continued, or taken from finished runs."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_sets import class_folders
from small_run import call

import main
from comparison import planning as plan
from comparison.announcement import known_problems
from comparison.planning import default_arms
from comparison.shared_split import shared_split
from datasets.config import DataConfig
from trainers.config import RunConfig
from trainers.system import process
from vit.config import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--image-size", 16, "--epochs", 1, "--workers", 0, "--device", "cpu", "--tb", "scalars")
TWO_ARMS = ("--arms", "vit_nano_8,batch_size=4", "vit_nano_8,pool=mean,batch_size=4")


def runs_below(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("config.json"))


def photographs(folder: Path) -> Path:
    return class_folders(folder / "pets", {"train/cat": 6, "train/dog": 6, "val/cat": 6, "val/dog": 6})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of two arms and two seeds, with three rates tried at the first: 8 runs."""
    folder = tmp_path_factory.mktemp("compare")
    data = photographs(folder)
    argv = ["compare", *TWO_ARMS, "--data", data, "--seeds", 2, *SMALL, "--output-dir", folder / "runs"]
    given_back = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "give_back_freed_memory", lambda: given_back.append(1))
        assert main.main([str(word) for word in argv]) == 0
    assert len(given_back) == 8  # no run shows the memory of the one before
    return folder


def test_all_runs_have_one_split_and_equal_budgets(finished):
    runs = runs_below(finished / "runs")
    assert len(runs) == 8
    assert len({(run / "split.csv").read_text() for run in runs}) == 1
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    assert {summary["images_seen"] for summary in summaries} == {12}
    assert {summary["test"]["n"] for summary in summaries} == {6}  # half of val


def test_rate_of_other_seeds_is_the_best_of_the_first(finished):
    rates: dict[str, dict[int, dict[float, tuple[float, float]]]] = {}
    for run in runs_below(finished / "runs"):
        config, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("config", "summary"))
        of_seed = rates.setdefault(config["model"]["pool"], {}).setdefault(config["train"]["seed"], {})
        of_seed[config["train"]["lr"]] = (summary["best"]["accuracy"], -summary["best"]["loss"])
    for arm in rates.values():
        assert sorted(arm[0]) == [3e-4, 1e-3, 3e-3]
        assert list(arm[1]) == [max(arm[0], key=arm[0].__getitem__)]


def test_tensorboard_shows_each_run_once(finished):
    """It follows links: one of them would show its run again. Runs that only tried a rate lie apart."""
    folders = [Path(root) for root, _, _ in os.walk(finished / "runs", followlinks=True)]
    shown = [folder for folder in folders if list(folder.glob("events.out.tfevents.*"))]
    assert len(shown) == len({folder.resolve() for folder in shown}) == 2 * (4 + 4) + 3
    compared = finished / "runs" / "pets" / "compare"
    rows = {folder.relative_to(compared).as_posix() for folder in shown if compared in folder.parents}
    assert {row for row in rows if row.startswith("pool_cls/")} == {
        f"pool_cls/all/s{seed}/tb/{split}" for seed in (0, 1) for split in ("train", "val")
    }
    assert {"verdict", "verdict/pool_cls_n2", "verdict/pool_mean_n2"} <= rows
    assert {row.partition("/")[0] for row in rows} == {"pool_cls", "pool_mean", "verdict"}
    assert len(runs_below(compared)) == len(runs_below(finished / "runs" / "tuning")) == 4


def test_finished_runs_are_compared_as_they_are(finished, capsys, tmp_path):
    runs = sorted((finished / "runs" / "pets").rglob("s1"))
    before = {path: path.stat().st_mtime_ns for run in runs for path in run.rglob("*")}
    code, out, err = call(capsys, "compare", *runs, "--output-dir", tmp_path)
    assert code == 0, err
    assert "6 test images" in out
    assert {path: path.stat().st_mtime_ns for run in runs for path in run.rglob("*")} == before


def test_options_without_effect_on_finished_runs_named(capsys, tmp_path):
    given = {"labels-per-class": 10, "tune-lr": "on", "seeds": 7, "jobs": 3, "data": "fashion_mnist", "epochs": 3}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    code, out, error = call(capsys, "compare", "a", "b", *words, "--output-dir", tmp_path / "runs")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert not {name for name in given if f"--{name}" not in error}
    assert not (tmp_path / "runs").exists()


def test_default_arms_on_photographs(monkeypatch):
    """The embedded ViT with its weights and without, and a frozen reference."""
    known = [("vit_stem_16", "tiny_imagenet"), ("efficientnet_lite0", "imagenet"), ("efficientnet_lite0", "imagenet")]
    photographs = RunConfig(data=DataConfig(source="path/to/images"))
    monkeypatch.setattr(
        plan, "local_pretrained_models", lambda: (ModelConfig(name=name, weights=weights) for name, weights in known)
    )
    models = [arm.model for arm in default_arms(photographs)]
    assert [(model.name, model.weights, model.trainable) for model in models] == [
        ("vit_stem_16", "none", "all"),
        ("vit_stem_16", "tiny_imagenet", "all"),
        ("efficientnet_lite0", "imagenet", "head"),
    ]
    monkeypatch.setattr(plan, "local_pretrained_models", lambda: iter(()))
    assert len(default_arms(photographs)) == 2


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """One rate of the grid diverges, and a training image is among the test images."""
    folder = tmp_path_factory.mktemp("troubled")
    data = class_folders(folder / "pets", {f"{split}/{name}": 4 for split in ("train", "val", "test") for name in "ab"})
    shutil.copy(data / "train" / "a" / "000.png", data / "test" / "a" / "copy.png")
    out = io.StringIO()
    options = ("--data", data, *SMALL, "--seeds", 1, "--tune-lr", 0.001, 1e30, "--output-dir", folder / "runs")
    with contextlib.redirect_stdout(out):
        assert main.main([str(word) for word in ("compare", *TWO_ARMS, *options)]) == 0
    (report,) = (folder / "runs" / "pets").glob("compare/report.html")
    return out.getvalue(), report.read_text(encoding="utf-8")


def test_rate_that_diverges_is_named_and_not_taken(troubled):
    out, page = troubled
    diverged = [line.split() for line in out.splitlines() if "diverged" in line]
    assert [line[-1].rpartition("_")[2] for line in diverged] == ["lr1e+30", "lr1e+30"]
    assert "1e+30" in page


def test_test_images_trained_on_are_counted(troubled):
    for text in troubled:
        assert "1 of 9 test images are near-duplicates" in text


@pytest.mark.parametrize(
    ("source", "weights", "warned"),
    [
        ("hymenoptera", "imagenet", True), ("fashion_mnist", "fashion_mnist", True),
        ("hymenoptera", "fashion_mnist", False), ("fashion_mnist", "imagenet", False),
        ("digits", "fashion_mnist", False),
    ],
)  # fmt: skip
def test_arm_pretrained_on_the_test_images_is_named(source, weights, warned):
    request = SimpleNamespace(base=SimpleNamespace(data=DataConfig(source=source)))
    arms = [SimpleNamespace(resolved=RunConfig(model=ModelConfig(weights=name))) for name in ("none", weights)]
    split = shared_split(DataConfig(source="digits"))
    problems = list(known_problems(SimpleNamespace(request=request, arms=arms, split=split, grid=(0.1,), seen=())))
    assert len(problems) == warned
    assert all(source in problem for problem in problems)
