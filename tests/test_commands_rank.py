"""`rank`, and the probe that a first answer is: backbones judged frozen, whatever door they come through."""

import shlex
from pathlib import Path

import pytest
import torch
from hub_backbones import saved_backbone
from small_run import call, digits_run, few_digits, labelled_photos, make_run

from commands.compare import Options, parse_arm
from commands.parser import parse
from commands.rank import arm_of
from commands.train import with_weights
from common.shell import PROGRAM
from common.tables import read_rows
from datasets.config import DataConfig
from datasets.open import OpenedImages
from trainers import features
from trainers.budget import networks, ranking
from trainers.budget.ranking import probes
from trainers.budget.ranking import rank as rank_models
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.features import features_of
from trainers.run import train
from vit import factory
from vit.config import ModelConfig
from vit.factory import local_pretrained_models

pytestmark = pytest.mark.usefixtures("quick_heads")


def base_of(folder: Path, data: DataConfig) -> RunConfig:
    return RunConfig(data=data, train=TrainConfig(device="cpu", amp="off"), output=OutputConfig(output_dir=folder))


def rank(capsys, data: Path, folder: Path, *argv) -> tuple[int, str, str]:
    return call(capsys, "rank", data, "--output-dir", folder, "--device", "cpu", "--workers", 0, *argv)


def test_ranking_judges_what_is_there(capsys, tmp_path, monkeypatch) -> None:
    data, run = labelled_photos(tmp_path / "photos", n=14), make_run(tmp_path / "made" / "r", pool="mean")
    models = ("--models", "fashion_mnist", run, "vit_nano_8,weights=gone.pth")
    code, out, err = rank(capsys, data, tmp_path / "runs", *models)
    assert (code, err) == (3, "")
    assert "vit_nano_8 (gone.pth): left out; gone.pth: no such weights file" in out
    command = shlex.split(out.rpartition("next")[2].partition(f"{PROGRAM} ")[2])
    assert command[:3] == ["compare", "--data", str(data)]
    options = parse(Options, command[1:], prog="compare")
    assert sorted(options.arms) == sorted(["vit_nano_8,weights=fashion_mnist", f"vit_micro_4,weights={run},pool=mean"])
    assert all(parse_arm(arm, RunConfig()).model.weights for arm in options.arms)
    folder = tmp_path / "runs" / "photos"
    rows = read_rows(folder / "ranking.csv", ["log_loss"])
    assert [float(row["log_loss"]) for row in rows] == sorted(float(row["log_loss"]) for row in rows)
    assert all(float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) for row in rows)
    assert len(list((folder / "features").glob("*.safetensors"))) == 2  # train; never val or test
    monkeypatch.setattr(features, "compute_features", None)
    code, out, _ = rank(capsys, data, tmp_path / "runs", *models[:-1])
    assert code == 0


def test_named_model_becomes_an_arm(tmp_path) -> None:
    assert arm_of("tiny_imagenet") == "vit_stem_16,weights=tiny_imagenet"
    assert arm_of("vit_b_16,image_size=96") == "vit_b_16,image_size=96"
    run = make_run(tmp_path / "r", image_size=16)
    assert arm_of(str(run)) == f"vit_micro_4,weights={run},image_size=16"


@pytest.mark.slow
@pytest.mark.parametrize("door", ["embedded", "torchvision", "packaged", "timm", "hf", "run"])
def test_features_are_those_of_the_library(door, tmp_path) -> None:
    if door in ("packaged", "timm"):
        pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
    if door == "hf":
        saved_backbone("dinov2", tmp_path / "hub")
    names = {
        "embedded": "fashion_mnist",
        "torchvision": "vit_b_16,weights=none,image_size=32",
        "packaged": "efficientnet_lite0,weights=none,image_size=64",
        "timm": "timm:test_vit,weights=none",
        "hf": f"hf:{tmp_path / 'hub'}",
        "run": str(make_run(tmp_path / "r")),
    }
    word = arm_of(names[door])
    base = base_of(tmp_path / "runs", few_digits(labels_per_class=3))
    arms = {word: parse_arm(word, base)}
    ((_, setup),) = probes(base, [config.model for config in arms.values()])
    images = torch.cat([batch for batch, _ in setup.data.dataloaders["val"]])
    model = setup.model.eval()
    with torch.no_grad():
        if door in ("packaged", "timm"):
            expected = model.forward_head(model.forward_features(images), pre_logits=True)
        elif door == "hf":
            output = model.model.base_model(pixel_values=images).last_hidden_state
            expected = torch.cat([output[:, 0], output[:, 1:].mean(dim=1)], dim=1)
        elif door == "torchvision":
            tokens = torch.cat([model.class_token.expand(len(images), -1, -1), model._process_input(images)], dim=1)
            expected = model.encoder(tokens)[:, 0]
        else:
            expected = model.forward_features(images)[:, 0]
    torch.testing.assert_close(features_of(setup, "val"), expected, atol=1e-5, rtol=1e-5)
    (row,) = rank_models(base, {config.model: arm for arm, config in arms.items()})
    assert (row.name, row.parameters) == (word, sum(parameter.numel() for parameter in model.parameters()))


def config_of(folder: Path, **model) -> RunConfig:
    options = {"name": ModelConfig.name, "weights": "auto"} | model
    return digits_run(folder, model=options, data={"labels_per_class": 10}, output={"run_name": "r"})


@pytest.fixture
def embedded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda name: None)
    monkeypatch.setenv("TORCH_HOME", "/nowhere")


@pytest.mark.usefixtures("embedded_alone")
def test_auto_weights_are_all_local_networks_together(tmp_path, capsys, monkeypatch) -> None:
    config = with_weights(config_of(tmp_path), OpenedImages())
    assert config.model.in_words == "vit_nano_8@32 + vit_stem_16@64"
    assert (config.model.trainable, config.train.start_head) == ("head", "fit")
    assert "pip install timm" in capsys.readouterr().out
    monkeypatch.setattr(networks, "PACKAGED_MODELS", ["vit_nano_8"])
    with_weights(config_of(tmp_path), OpenedImages())
    assert "--with" not in capsys.readouterr().out  # of a plan alone
    result = train(config)
    assert result.val["accuracy"] > 0.2
    shown = capsys.readouterr().out
    assert shown.index("frozen ensemble") < shown.index("vit_stem_16@64  ") < shown.index("vit_nano_8@32  ")
    assert with_weights(config, OpenedImages()) is config


@pytest.mark.usefixtures("embedded_alone")
def test_damaged_weights_are_named_and_left_out(tmp_path, monkeypatch, capsys) -> None:
    damaged = tmp_path / "cut.safetensors"
    damaged.write_bytes(b"cut")
    models = [ModelConfig(name="vit_nano_8", weights=name) for name in (str(damaged), "fashion_mnist")]
    (row,) = ranking.rank(config_of(tmp_path), {model: ranking.name_of(model) for model in models})
    assert row.model.weights == "fashion_mnist"
    assert "cut.safetensors): left out; " in capsys.readouterr().out


@pytest.mark.usefixtures("embedded_alone")
def test_of_many_images_a_sample_is_judged(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ranking, "MOST_IMAGES", 40)
    rows = ranking.rank(config_of(tmp_path), {model: model.name for model in local_pretrained_models()})
    assert [len(row.judged.labels) for row in rows] == [40, 40]
    assert rows[0].judged.loss <= rows[1].judged.loss
