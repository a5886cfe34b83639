"""`rank`: backbones judged frozen, the same for whatever door they come through."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from hub_backbones import saved_backbone
from small_run import call, few_digits, labelled_photos, make_run

from commands.compare import Options, parse_arm
from commands.parser import parse
from commands.rank import arm_of
from common.shell import PROGRAM
from common.tables import read_rows
from datasets.config import DataConfig
from trainers import features
from trainers.budget.ranking import probes
from trainers.budget.ranking import rank as rank_models
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.features import features_of


def base_of(folder: Path, data: DataConfig) -> RunConfig:
    return RunConfig(data=data, train=TrainConfig(device="cpu", amp="off"), output=OutputConfig(output_dir=folder))


def rank(capsys, data: Path, folder: Path, *argv) -> tuple[int, str, str]:
    return call(capsys, "rank", data, "--output-dir", folder, "--device", "cpu", "--workers", 0, *argv)


def test_a_ranking_judges_what_can_be_had_and_keeps_the_features(capsys, tmp_path, monkeypatch) -> None:
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


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--models", "vit_nano_9"], 2, "did you mean vit_nano_8?"),
        (["--models", "vit_nano_8,weights=gone.pth"], 3, "none of these models can be had"),
    ],
)
def test_a_mistake_gets_one_line(capsys, tmp_path, argv, code, message) -> None:
    models = [] if "--models" in argv else ["--models", "fashion_mnist"]
    found, _, err = rank(capsys, labelled_photos(tmp_path / "photos", n=12), tmp_path / "runs", *models, *argv)
    assert (found, err.count("\n")) == (code, 1)
    assert message in err


def test_what_a_person_names_becomes_an_arm(tmp_path) -> None:
    assert arm_of("tiny_imagenet") == "vit_stem_16,weights=tiny_imagenet"
    assert arm_of("vit_b_16,image_size=96") == "vit_b_16,image_size=96"
    run = make_run(tmp_path / "r", image_size=16)
    assert arm_of(str(run)) == f"vit_micro_4,weights={run},image_size=16"


@pytest.mark.slow
@pytest.mark.parametrize("door", ["embedded", "torchvision", "packaged", "timm", "hf", "run"])
def test_the_features_are_those_of_the_library(door, tmp_path) -> None:
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
