"""Backbones of timm and of the hub, from the first step to every use of the result; random weights, tiny images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hub_backbones import saved_backbone
from small_run import labelled_photos

from datasets.config import DataConfig
from inference.classifier import open_classifier
from inference.evaluate import evaluate_run
from inference.export import export
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import load
from vit.attention_maps import attention_weights
from vit.config import WHAT_THEY_ARE, ModelConfig

pytest.importorskip("timm", reason="requirements-extras.txt is not installed")


def config_of(tmp_path: Path, epochs: int, **model) -> RunConfig:
    data = labelled_photos(tmp_path / "photos", n=8)
    weights = None if model["name"].startswith("hf:") else "none"
    return RunConfig(
        model=ModelConfig(**{"weights": weights} | model),
        data=DataConfig(source=str(data), augment="none", batch_size=8, workers=0),
        train=TrainConfig(epochs=epochs, device="cpu", amp="off"),
        output=OutputConfig(output_dir=tmp_path / "runs", run_name="r", tb="scalars"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainable", "attends"),
    [
        ("efficientnet_lite0", "head", False),
        ("efficientnet_lite0", "last:1", False),
        ("efficientnet_lite2", "all", False),
        ("timm:test_vit", "last:1", False),
        ("timm:test_convnext", "head", False),
        ("hf:dinov2_with_registers", "last:1", True),
        ("hf:dinov3_vit", "head", True),
        ("hf:dinov2", "all", True),
        ("hf:siglip", "last:1", True),
        ("hf:clip", "head", True),
    ],
)
def test_a_run_is_resumed_evaluated_exported_and_explained(name, trainable, attends, tmp_path, capsys) -> None:
    size = 160 if name.startswith("timm") else 64
    if name.startswith("hf:"):
        size = 24  # not the model's own 16
        saved_backbone(name.removeprefix("hf:"), tmp_path / "hub")
        name = f"hf:{tmp_path / 'hub'}"
    result = train(config_of(tmp_path, 1, name=name, trainable=trainable, image_size=size))
    assert (name not in WHAT_THEY_ARE) or WHAT_THEY_ARE[name] in capsys.readouterr().out
    resumed = resume(result.run_dir, epochs=2)
    assert [row["epoch"] for row in resumed.epochs] == [0, 1, 2]
    evaluation = evaluate_run(result.folder, split="val")
    assert evaluation.metrics == pytest.approx({key: resumed.val[key] for key in evaluation.metrics}, abs=1e-6)
    assert any("ImageNet" in note for note in evaluation.notes) == (name in WHAT_THEY_ARE)
    model, spec, _ = load(result.run_dir)
    images = torch.randn(2, 3, spec.image_size, spec.image_size)
    with torch.no_grad():
        expected = model(images)
    for kind in ("safetensors", "onnx"):
        file = tmp_path / f"model.{kind}"
        parity, _note = export(open_classifier(str(result.run_dir)), kind, file)
        assert parity.good, parity
        torch.testing.assert_close(open_classifier(str(file)).logits(images), expected, atol=1e-4, rtol=1e-3)
    if attends:
        logits, attention = attention_weights(model, images)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
        assert all(torch.allclose(weights.sum(-1), torch.ones(())) for weights in attention)
    else:
        with pytest.raises(ValueError, match="has no attention weights to show"):
            attention_weights(model, images)
