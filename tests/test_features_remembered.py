"""What is left on disk or asked for again is that of the same question: features, and runs of equal options."""

import dataclasses
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import pytest
import torch
from small_run import CLASSES, call, make_run, photo
from test_commands_plan import same as same_value
from test_commands_plan import values_of

from common.options import Incidental
from comparison import compare
from trainers import features
from trainers.auto_resume import find_same_options
from trainers.budget import planned_run
from trainers.config import OutputConfig, RunConfig, TrainConfig, run_options, to_dict
from trainers.features import features_of
from trainers.setup import prepare
from trainers.storage.run_folder import write_json
from trainers.system.process import command_line
from vit.config import ModelConfig, Network

NETWORK = Network("vit_nano_8", 24)


def config_of(folder, **sections):
    config = RunConfig(
        ModelConfig("vit_micro_2", image_size=8, trainable="head", weights="none"),
        train=TrainConfig(epochs=1, device="cpu", amp="off", cache_features="off"),
        output=OutputConfig(output_dir=folder / "runs"),
    )
    data = {"source": str(folder / "set"), "workers": 0, "augment": "none", "val_fraction": 0.25, "test_fraction": 0.25}
    return config.changed(data=data).changed(**sections)


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory):
    """Photographs, and the features that a first command left of them: those of a ViT, and of networks side by side."""
    folder = tmp_path_factory.mktemp("kept")
    for place, name in enumerate(CLASSES):
        for number in range(8):
            photo(folder / "set" / name / f"{number}.jpg", seed=100 * place + number, size=(96, 80))
    (folder / "few.csv").write_text("path\nant/0.jpg\nant/1.jpg\n")
    for changes in ({}, {"model": side_by_side()}):
        features_of(prepare(config_of(folder, **changes)), "train", keep=True)
    make_run(folder / "other", name="vit_micro_2", image_size=8)
    return folder


@pytest.fixture
def kept(asked_once, tmp_path):
    return shutil.copytree(asked_once, tmp_path / "kept")


def side_by_side(*networks, **options):
    return {"name": "ensemble", "networks": networks or (NETWORK,), "image_size": 28, "weights": None} | options


CHANGES = [
    {"model": {"name": "vit_micro_4"}}, {"model": {"image_size": 16}}, {"model": {"fit": "squash"}},
    {"model": {"decoding": "full"}}, {"model": {"weights": "{folder}/other"}}, {"data": {"labels_per_class": 2}},
    {"data": {"folds": 3, "fold": 2, "val_fraction": None}}, {"data": {"batch_size": 3}}, {"train": {"amp": "bf16"}},
    {"train": {"seed": 1}}, {"model": side_by_side(image_size=40)},
]  # fmt: skip
MORE_CHANGES = [
    {"model": {"in_channels": 1}}, {"model": {"pool": "mean"}}, {"model": {"patch_embedding": "stem"}},
    {"model": {"representation_size": 8}}, {"model": {"mean": (0.4,)}}, {"model": {"std": (0.4,)}},
    {"model": {"layer_norm_eps": 0.3}}, {"data": {"fraction": 0.5}}, {"data": {"split_seed": 1}},
    {"data": {"val_fraction": 0.4}}, {"data": {"folds": 3, "fold": 1, "val_fraction": None}},
    {"data": {"exclude": "{folder}/few.csv"}}, {"data": {"group": "([0-3])"}}, {"train": {"amp": "tf32"}},
    {"model": side_by_side(Network("vit_nano_8", 16))}, {"model": side_by_side(fit="squash")},
    {"model": side_by_side(NETWORK, Network("vit_nano_8", 16))}, {"model": side_by_side(), "train": {"amp": "bf16"}},
]  # fmt: skip


def both(folder, changes):
    """The features that a command takes where others were left, and those that it computes where there are none."""
    setup = prepare(config_of(folder, **changes))
    alone = dataclasses.replace(setup, config=setup.config.changed(output={"output_dir": folder / "empty"}))
    return [features_of(each, "train") for each in (setup, alone)]


SAME_BITS = {"group", "folds", "tf32"}
"""What changes none here: these groups and folds have the same training images, and a processor rounds no factor."""


@pytest.mark.parametrize(
    "changes", [*CHANGES, *(pytest.param(changes, marks=pytest.mark.slow) for changes in MORE_CHANGES)], ids=str
)
def test_features_of_a_changed_option_are_new(asked_once, changes):
    changes = {section: {name: named(asked_once, value) for name, value in values.items()}
               for section, values in changes.items()}  # fmt: skip
    taken, fresh = both(asked_once, changes)
    assert torch.equal(taken, fresh)
    before = {"model": side_by_side()} if "networks" in changes.get("model", {}) else {}
    unlike = features_of(prepare(config_of(asked_once, **before)), "train")
    assert not torch.equal(unlike, fresh) or SAME_BITS & {*changes.get("data", {}), *changes.get("train", {}).values()}


def named(folder, value):
    return value.format(folder=folder) if isinstance(value, str) else value


def other_picture(path):
    photo(path, seed=999, size=(96, 80))


def other_picture_at_the_same_time(path):
    size, times = path.stat().st_size, (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    photo(path, seed=999, size=(96, 80), quality=40)
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    os.utime(path, ns=times)


@pytest.mark.parametrize(
    "change",
    [
        other_picture_at_the_same_time,
        lambda path: path.rename(path.with_name("z.jpg")),
        pytest.param(other_picture, marks=pytest.mark.slow),
        pytest.param(lambda path: path.unlink(), marks=pytest.mark.slow),
        pytest.param(lambda path: path.rename(path.parents[1] / "bee" / "z.jpg"), marks=pytest.mark.slow),
    ],
)
def test_features_of_changed_pictures_are_new(kept, change):
    before = prepare(config_of(kept))
    change(kept / "set" / before.data.samples.paths[int(before.data.samples.indices("train")[0])])
    for changes in ({}, {"model": side_by_side()}):
        taken, fresh = both(kept, changes)
        assert torch.equal(taken, fresh)


def test_features_are_computed_once(kept, monkeypatch):
    monkeypatch.setattr(features, "compute_features", None)
    for picture in (kept / "set").rglob("*.jpg"):
        os.utime(picture)
    for changes in ({}, {"model": side_by_side()}, {"train": {"lr": 0.5, "epochs": 3}}, {"data": {"augment": "light"}}):
        features_of(prepare(config_of(kept, **changes)), "train")


@pytest.mark.parametrize(("package", "again"), [("torch", True), ("pillow", True), ("timm", False)])
def test_features_depend_on_versions_that_made_them(kept, monkeypatch, package, again):
    monkeypatch.setattr(metadata, "version", lambda name, usual=metadata.version: usual(name) + "1" * (name == package))
    computed = []
    monkeypatch.setattr(
        features, "compute_features", lambda *_, **__: computed.append(1) or torch.zeros(len(CLASSES), 1)
    )
    features_of(prepare(config_of(kept)), "train")
    assert bool(computed) is again


def test_frozen_arms_look_at_each_image_once(asked_once, tmp_path, capsys, monkeypatch):
    passed = []

    def counted(model, loader, *args, compute=features.compute_features, **options):
        passed.append((len(loader.dataset.indices), type(model).__name__))
        return compute(model, loader, *args, **options)

    monkeypatch.setattr(features, "compute_features", counted)
    monkeypatch.setattr(compare, "show", lambda comparison: None)
    model = "vit_nano_8,weights=fashion_mnist"
    argv = f"compare --arms {model},trainable=head {model},start_head=probe --seeds 2 --epochs 1 --tune-lr 0.1 0.2"
    argv += " --device cpu --jobs 1 --workers 0 --tb scalars"
    code, _, err = call(capsys, *argv.split(), "--data", asked_once / "set", "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert len(passed) == 3  # of each split once: the second arm begins with a head on the features of the first


def test_features_computed_elsewhere_are_awaited(tmp_path):
    computed = []

    def compute():
        computed.append(1)
        time.sleep(0.2)
        return {"features": torch.ones(2)}

    def ask(_):
        return features.kept_tensors(tmp_path / "kept" / "a.safetensors", compute, "features")["features"].tolist()

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(ask, range(3))] == 3 * [[1.0, 1.0]]
    assert computed == [1]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a.safetensors"]


def begun(folder, asked, argv):
    """A run that a command was asked for with these options, as its meta.json says."""
    run = folder / "digits" / "r"
    run.mkdir(parents=True, exist_ok=True)
    start = {"started": "2026", "argv": argv, "requested": asked, "data_fingerprint": "0", "class_names": ["a", "b"]}
    write_json(run / "meta.json", start | {"threads": 1, "versions": {}, "directory": None})
    return run


def test_run_is_taken_up_by_the_same_options_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, taken = RunConfig(output=OutputConfig(auto_resume=True)), set()
    begun(tmp_path / "runs", to_dict(config), command_line())
    assert find_same_options(config) is not None
    networks = {"--networks": [{"name": "vit_nano_8", "image_size": 24}], "--data": ["elsewhere"]}
    for option in run_options():
        for value in networks.get(option.flag) or values_of(option):
            asked = to_dict(config)
            same = same_value(value, asked[option.section][option.name])
            asked[option.section][option.name] = value
            begun(tmp_path / "runs", asked, command_line())
            if find_same_options(config) is not None and not same:
                taken.add(option.flag)
            assert find_same_options(config) is not None or not same, option.flag
    assert taken == {option.flag for option in run_options(Incidental)}


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ("--minutes 3 --seed 5", "--minutes 3 --seed 5", True), ("--minutes 3 --seed 5", "--minutes 5 --seed 3", False),
        ("--minutes 3 --seed 5", "--minutes 3 --seed 5 --auto-resume", True), ("a --minutes 3", "b --minutes 3", False),
        ("--minutes 3", "--minutes 4", False), ("--minutes 3", "--minutes 3 --lr 0.1", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [None, "r"])
def test_part_of_a_plan_is_taken_up_by_the_same_words(then, now, same, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = RunConfig(train=TrainConfig(epochs=9), output=OutputConfig(run_name=name))
    begun(tmp_path / "runs", to_dict(before), ["main.py", "train", *then.split()])
    monkeypatch.setattr("sys.argv", ["main.py", "train", *now.split()])
    wanted = RunConfig(output=OutputConfig(run_name=name, auto_resume=True))
    assert (planned_run.options_begun(wanted).train.epochs == 9) is same
    assert planned_run.options_begun(wanted.changed(output={"auto_resume": False})).train.epochs is None
