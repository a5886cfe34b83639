"""No image that a start was trained on is scored without a word: the split.csv of its run tells."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_run import call

from common.tables import read_rows
from datasets.config import DataConfig
from datasets.loaders import build_dataloaders
from datasets.split_csv import read_split
from inference.classifier import open_classifier
from inference.export import export
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resume import resume
from trainers.run import train
from trainers.seen import starts_of
from trainers.storage.checkpoint_file import best_of, load
from trainers.storage.run_folder import read_json
from vit.config import ModelConfig, Network

CLASSES = ("a", "b")


def noise(folder: Path, seeds) -> None:
    """Pictures of noise, one for each seed: nothing can be learnt of one from another."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")


def noise_set(root: Path, **splits) -> Path:
    """`splits`: the seeds of the pictures of each; half of them in each class."""
    for split, seeds in splits.items():
        for number, name in enumerate(CLASSES):
            noise(root / split / name, [*seeds][number::2])
    return root


def options(folder: Path, source: Path, name: str, *, weights="none", data=None, **train_options) -> RunConfig:
    return RunConfig(
        model=ModelConfig(name="vit_micro_2", image_size=8, weights=str(weights)),
        data=DataConfig(**{"source": str(source), "workers": 0, "augment": "none", "batch_size": 32} | (data or {})),
        train=TrainConfig(**{"epochs": 1, "device": "cpu", "amp": "off", "threads": 1} | train_options),
        output=OutputConfig(output_dir=folder / "runs", run_name=name, tb="scalars"),
    )


A_TRAIN, A_VAL, A_TEST = range(0, 40), range(40, 52), range(52, 64)
NEW = 1_000
"""Seeds from here on are pictures that no start was trained on."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def first(home) -> Path:
    """A run, from scratch, on pictures 0 to 39; 40 to 51 chose its epoch."""
    folder = noise_set(home / "first", train=A_TRAIN, val=A_VAL, test=A_TEST)
    return train(options(home, folder, "A")).run_dir


@pytest.fixture(scope="module")
def mixed(home) -> Path:
    """Of 20 test pictures three trained A and two chose its epoch; of 16 validation pictures two trained A and one
    chose its epoch."""
    return noise_set(
        home / "mixed",
        train=range(NEW, NEW + 16),
        val=[0, 1, 40, *range(NEW + 20, NEW + 33)],
        test=[2, 3, 4, 41, 42, *range(NEW + 40, NEW + 55)],
    )


def left_out(run_dir: Path) -> set[str]:
    """The numbers of the pictures that a run left out: what is scored, and what its split.csv says, agree."""
    table = read_rows(run_dir / "split.csv", ("path", "split"))
    rows = [row for row in table if row["split"] == "left_out"]
    assert all(row["reason"].startswith("used to train ") for row in rows)
    assert {row.path for row in read_split(run_dir / "split.csv")} == {row["path"] for row in table if row not in rows}
    summary = read_json(run_dir / "summary.json")
    assert summary["seen"] == read_json(run_dir / "meta.json")["seen"]
    if summary["test"]:
        assert summary["test"]["n"] == sum(row["split"] == "test" for row in table)
    return {Path(row["path"]).stem for row in rows}


SEEN = {"0", "1", "2", "3", "4", "41", "42"}
"""What A makes of `mixed`: an image of val counts if it trained A, one of test also if it chose the epoch of A."""


def test_images_of_the_start_are_left_out(home, first, mixed, capsys):
    run = train(options(home, mixed, "weights", weights=first)).run_dir
    said = capsys.readouterr().out
    assert left_out(run) == SEEN
    lines = read_json(run / "summary.json")["seen"]
    assert [line[:17] for line in lines] == ["2 of 16 val image", "5 of 20 test imag"]
    assert all(str(first) in line and line in said for line in lines)
    assert lines[0] in (run / "data_report.txt").read_text()
    code, out, err = call(capsys, "evaluate", run, "--split", "test")
    assert code == 0, err
    assert "on 15 test images" in out
    assert lines[1] in out


def test_fine_tuning_on_the_same_split_leaves_none_out(home, first):
    run = train(options(home, home / "first", "again", weights=first)).run_dir
    assert left_out(run) == set()
    assert read_json(run / "summary.json")["seen"] == []


def test_too_few_images_left_are_refused(home, first, capsys):
    everything = noise_set(home / "everything", train=range(0, 0))
    shutil.copytree(home / "first" / "train", everything, dirs_exist_ok=True)
    shutil.rmtree(everything / "train")
    argv = ["train", "--data", everything, "--model", "vit_micro_2", "--image-size", 8, "--weights", first]
    argv += ["--epochs", 1, "--device", "cpu", "--output-dir", home / "runs", "--config", home / "split.toml"]
    (home / "split.toml").write_text("split-seed = 7")
    code, _, err = call(capsys, *argv)
    assert (code, err.count("\n")) == (3, 1)
    assert all(part in err for part in ("6 of 6 test images", f"--split {first}/split.csv", "--allow-seen"))
    assert not (home / "runs" / "everything").exists()
    code, out, err = call(capsys, *argv, "--allow-seen")
    assert (code, "6 of 6 test images" in out) == (0, True), err


def test_second_start_leaves_out_what_the_first_did(home, first, mixed):
    second = train(options(home, mixed, "B", weights=first)).run_dir
    test = [*range(5), NEW + 40, *range(2_030, 2_040)]
    other = noise_set(home / "other", train=range(2_000, 2_016), val=range(2_020, 2_030), test=test)
    assert left_out(train(options(home, other, "C", weights=second)).run_dir) == {str(seed) for seed in range(5)}


def test_probe_and_own_loaders_leave_out_the_same(home, first, mixed):
    config = options(home, mixed, "probe", weights=first).changed(model={"trainable": "head"})
    assert left_out(train(config).run_dir) == SEEN
    config = options(home, mixed, "from_python", weights=first)
    bundle = build_dataloaders(config.data, load(first)[1])
    assert left_out(train(config, dataloaders=bundle).run_dir) == SEEN
    assert bundle.dataset_sizes["test"] == 20


def test_starts_are_runs_and_files_in_one(first, tmp_path):
    def tables(name, *networks):
        model = ModelConfig(name="ensemble" if networks else "vit_micro_2", weights=name, networks=networks)
        return [start.table for start in starts_of(model)]

    assert tables(str(first)) == tables(str(best_of(first))) == [first / "split.csv"]
    networks = (Network("resnet18", 8), Network("resnet18", 16, weights=str(first)))
    assert tables(None, *networks) == [first / "split.csv"]
    copied = shutil.copy(best_of(first), tmp_path / "copied.safetensors")
    assert tables(str(copied)) == [None]
    assert tables("none") == tables("fashion_mnist") == tables("IMAGENET1K_V1") == tables(None) == []


def test_export_and_own_images_are_said_to_be_unknown(home, first, mixed, capsys):
    path = home / "exported.safetensors"
    export(open_classifier(str(first), device="cpu"), "safetensors", path)
    parts = {
        split: torch.utils.data.TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 2) for split in ("train", "val")
    }
    for weights, dataloaders in ((path, None), (first, parts)):
        config = options(home, mixed, f"unknown_{weights.stem}", weights=weights)
        run = train(config, dataloaders=dataloaders).run_dir
        assert left_out(run) == set()
        (line,) = read_json(run / "summary.json")["seen"]
        assert str(weights) in line
        assert line in capsys.readouterr().out
    code, out, err = call(capsys, "evaluate", path, "--data", mixed, "--split", "test")
    assert (code, f"what {path} was trained on" in out) == (0, True), err


def test_a_run_that_goes_on_leaves_the_same_images_out(home, first, mixed):
    run = train(options(home, mixed, "resumed", weights=first)).run_dir
    before, table = read_json(run / "summary.json"), (run / "split.csv").read_bytes()
    resume(run, epochs=2)
    assert left_out(run) == SEEN
    assert read_json(run / "summary.json")["seen"] == before["seen"]
    assert (run / "split.csv").read_bytes() == table


def test_evaluate_leaves_out_the_images_of_its_run(home, first, mixed, capsys):
    for split, left in (("test", 15), ("val", 13)):
        code, out, err = call(capsys, "evaluate", first, "--data", mixed, "--split", split)
        assert (code, f"on {left} {split} images" in out) == (0, True), err
        assert len(read_rows(first / "eval" / f"mixed_{split}_predictions.csv", ("path",))) == left
    code, _, err = call(capsys, "evaluate", first, "--data", home / "first", "--split", "train")
    assert (code, "40 of 40" in err, err.count("\n")) == (3, True, 1)


def test_all_arms_leave_out_the_images_of_any_start(home, first, mixed, capsys):
    words = "--seeds 1 --images-seen 16 --tune-lr off --device cpu --workers 0 --tb scalars --jobs 1"
    arms = ["--arms", "vit_micro_2,augment=none", f"vit_micro_2,augment=none,weights={first}", "--image-size", 8]
    code, out, err = call(capsys, "compare", "--data", mixed, *arms, *words.split(), "--output-dir", home / "compared")
    assert (code, "of 15 test images" in out) == (0, True), err
    report = next((home / "compared" / "mixed").glob("compare*/report.html")).read_text()
    for text in (out, report):
        assert "5 of 20 test images" in text
    runs = [*(home / "compared" / "mixed").glob("compare/*/*/s*")]
    assert len(runs) == 2
    assert {read_json(run / "summary.json")["test"]["n"] for run in runs} == {15}


def test_compared_runs_leave_out_the_images_of_any(home, first, mixed, capsys):
    runs = [
        train(options(home, mixed, name, weights=weights)).run_dir
        for name, weights in (("scratch", "none"), ("started", first))
    ]
    code, out, err = call(capsys, "compare", *runs, "--output-dir", home / "compared_runs")
    assert (code, "5 images of 20" in out, "of 15 test images" in out) == (0, True, True), err


def test_rank_leaves_out_the_images_of_any_backbone(home, first, tmp_path, capsys):
    pool = noise_set(tmp_path / "pool", train=[*range(8), *range(NEW, NEW + 32)], val=range(NEW + 40, NEW + 48))
    argv = ["rank", pool, "--models", first, "vit_micro_2,weights=none,image_size=8", "--device", "cpu"]
    argv += ["--workers", 0, "--output-dir", home / "ranked"]
    code, out, err = call(capsys, *argv)
    assert (code, "8 of 40 train images" in out, "on 32 training images" in out) == (0, True, True), err
    code, out, err = call(capsys, *argv, "--allow-seen")
    assert (code, "on 40 training images" in out) == (0, True), err


def test_damaged_split_of_the_start_is_named(first, mixed, tmp_path, capsys):
    run = shutil.copytree(first, tmp_path / "run")
    (run / "split.csv").write_text("path,content_hash\na,0\n")
    argv = ["train", "--data", mixed, "--model", "vit_micro_2", "--image-size", 8, "--weights", run, "--epochs", 1]
    code, _, err = call(capsys, *argv, "--device", "cpu", "--output-dir", tmp_path / "runs")
    assert (code, f"{run}/split.csv" in err, err.count("\n")) == (3, True, 1)
