"""The weights that come with the application are what their card says."""

import hashlib
import re
from pathlib import Path

import pytest
import safetensors
import torch

from common.errors import WeightsError
from datasets import DataConfig, build_dataloaders
from datasets.loaders import sample_of
from trainers.config import RunConfig
from trainers.engine.engines import score_split
from trainers.setup import prepare
from vit import build_model, image_spec
from vit.config import EMBEDDED_WEIGHTS, ModelConfig
from vit.factory import weights_path
from vit.weight_files import read_weights

FOLDER = Path(__file__).resolve().parent.parent / "vit" / "weights"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
EVERY_FILE = pytest.mark.parametrize(("weights", "model"), EMBEDDED_WEIGHTS.items())


@EVERY_FILE
def test_embedded_file_is_small_and_on_its_card(weights, model):
    path = weights_path(ModelConfig(name=model, weights=weights))
    assert path is not None
    assert path.stat().st_size <= 6e6
    assert hashlib.sha256(path.read_bytes()).hexdigest() in CARD


def test_no_file_lies_there_without_a_name():
    named = {f"{model}-{weights}.safetensors" for weights, model in EMBEDDED_WEIGHTS.items()}
    assert {path.name for path in FOLDER.glob("*") if path.suffix != ".md"} == named


def test_another_model_is_told_whose_they_are():
    with pytest.raises(ValueError, match="belong to vit_nano_8, not to vit_micro_4"):
        build_model("vit_micro_4", num_classes=2, weights="fashion_mnist")


@pytest.mark.parametrize(
    ("images", "within"), [(1_000, 1.8), pytest.param(10_000, 0.11, marks=pytest.mark.slow)], ids=str
)
def test_card_tells_the_accuracy_on_real_images(real_data, images, within):
    """Of 1,000 images, evenly spread over all, within two standard errors."""
    stated = float(re.search(r"\| result \| ([\d.]+) % of Fashion-MNIST's 10,000 test images", CARD)[1])  # type: ignore[index]
    config = ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    model = build_model(config, num_classes=10).eval()
    data = build_dataloaders(DataConfig(source="fashion_mnist", root=real_data, workers=0), image_spec(config))
    loader = sample_of(data.dataloaders["test"], images)
    scores = score_split(model, loader, torch.device("cpu"), torch.bfloat16)
    assert len(scores.outputs.labels) == pytest.approx(images, rel=0.1)
    assert round(100 * scores.metrics["accuracy"], 1) == pytest.approx(stated, abs=within)


def test_head_for_as_many_other_classes_is_new():
    config = ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    path = weights_path(config)
    assert path is not None
    fashion = read_weights(path).extras["class_names"]
    kept = build_model(config, num_classes=10, class_names=fashion)
    assert kept.head.weight.any()
    for names in ([str(digit) for digit in range(10)], fashion[::-1]):
        new = build_model(config, num_classes=10, class_names=names)
        assert not new.head.weight.any()
        assert torch.equal(new.blocks[3].mlp.fc2.weight, kept.blocks[3].mlp.fc2.weight)


@EVERY_FILE
def test_a_run_opens_the_file_once(weights, model, monkeypatch, tmp_path):
    opened, open_file = [], safetensors.safe_open

    def counted(path, *options):
        opened.append(path)
        return open_file(path, *options)

    monkeypatch.setattr(safetensors, "safe_open", counted)
    data = DataConfig(source="digits", root=tmp_path, workers=0)
    prepare(RunConfig(model=ModelConfig(name=model, weights=weights), data=data))
    assert opened == [weights_path(ModelConfig(name=model, weights=weights))]


@pytest.mark.parametrize("image_size", [32, 64, 96])
def test_embedded_vit_goes_to_any_size(image_size):
    weights = read_weights(weights_path(ModelConfig(name="vit_stem_16", weights="tiny_imagenet")))
    model = build_model("vit_stem_16", num_classes=3, weights="tiny_imagenet", image_size=image_size)
    state, side = model.state_dict(), image_size // 16
    for name, tensor in weights.tensors.items():
        if name != "embedding.positions" and not name.startswith("head."):
            assert torch.equal(state[name], tensor.float()), name
    old, new = weights.tensors["embedding.positions"].float(), state["embedding.positions"]
    assert torch.equal(new[:, 0], old[:, 0])
    grid = old[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    torch.testing.assert_close(new[:, 1:], wanted if side != 4 else old[:, 1:], atol=2e-3, rtol=0)
    assert model(torch.rand(2, 3, image_size, image_size)).shape == (2, 3)


def test_a_foreign_file_in_its_place_gets_one_line(tmp_path, monkeypatch):
    path = weights_path(ModelConfig(name="vit_stem_16", weights="tiny_imagenet"))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / path.name).write_bytes(path.read_bytes()[:-1000])
    monkeypatch.setattr("vit.factory.__file__", str(tmp_path / "factory.py"))
    with pytest.raises(WeightsError, match="SHA-256 begins with.*take it from the application's repository again$"):
        build_model("vit_stem_16", num_classes=3, weights="tiny_imagenet")
    (tmp_path / "weights" / path.name).unlink()
    with pytest.raises(FileNotFoundError, match="no such weights file"):
        build_model("vit_stem_16", num_classes=3, weights="tiny_imagenet")
