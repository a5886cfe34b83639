"""torchvision's `vit_b_16` and `resnet18`: their weights, a new head, and the preprocessing that weights bring."""

import dataclasses
import hashlib
import socket
from http.client import BadStatusLine
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights, ViT_B_16_Weights, resnet18
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from torchvision.models.vision_transformer import interpolate_embeddings

from common.errors import WeightsError
from vit import torchvision_models
from vit.config import ModelConfig
from vit.factory import build_model, image_spec


@pytest.fixture
def plant(monkeypatch, tmp_path):
    """Puts weights into torch's cache, under a name that carries their own SHA-256, behind a member of an enum."""

    def plant_weights(weights: Any, state: dict[str, Tensor]) -> None:
        folder = tmp_path / "hub" / "checkpoints"
        folder.mkdir(parents=True)
        torch.save(state, folder / "w")
        digits = hashlib.sha256((folder / "w").read_bytes()).hexdigest()[:8]
        path = (folder / "w").rename(folder / f"net-{digits}.pth")
        value = dataclasses.replace(weights.value, url=f"https://example.org/{path.name}")
        monkeypatch.setattr(weights, "_value_", value)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    return plant_weights


def narrow_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = TorchvisionViT(224, 16, 2, 4, 32, 64).state_dict()
    return {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in state.items()}


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("image_size", [224, 96, 384])
def test_vit_b_16_takes_a_new_head_and_any_size(image_size, plant):
    state = narrow_state()
    plant(ViT_B_16_Weights.IMAGENET1K_V1, state)
    model = build_model("vit_b_16", num_classes=5, image_size=image_size).eval()
    assert isinstance(model, TorchvisionViT)
    assert not model.heads.head.weight.any()

    expected = TorchvisionViT(image_size, 16, 2, 4, 32, 64).eval()
    expected.load_state_dict(interpolate_embeddings(image_size, 16, dict(state)))
    images = torch.randn(1, 3, image_size, image_size)
    model.heads, expected.heads = nn.Identity(), nn.Identity()
    torch.testing.assert_close(model(images), expected(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weights", ["imagenet", "DEFAULT"])
def test_resnet18_takes_a_new_head(weights, plant):
    source = resnet18()
    plant(ResNet18_Weights.IMAGENET1K_V1, source.state_dict())
    model = build_model("resnet18", num_classes=5, weights=weights).eval()
    source.fc = model.fc = nn.Identity()
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(model(images), source.eval()(images), atol=1e-4, rtol=1e-4)
    assert model.layer1(model.conv1(images)).is_contiguous(memory_format=torch.channels_last)


@pytest.fixture
def file_of_weights(tmp_path):
    path = tmp_path / "vit_b_16-c867db91.pth"
    torch.save(narrow_state(), path)
    return str(path)


@pytest.mark.usefixtures("two_layers")
def test_a_file_keeps_its_head_at_1000_classes(file_of_weights):
    model = build_model("vit_b_16", num_classes=1000, weights=file_of_weights, image_size=224)
    torch.testing.assert_close(dict(model.state_dict()), narrow_state(), atol=0, rtol=0)


@pytest.mark.usefixtures("two_layers")
def test_a_grey_model_sees_what_a_coloured_one_does(file_of_weights):
    picture, patches = torch.rand(2, 1, 224, 224), []
    for channels in (1, 3):
        config = ModelConfig("vit_b_16", weights=file_of_weights, in_channels=channels)
        spec, model = image_spec(config), build_model(config, num_classes=2)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (spec.mean, spec.std))
        patches.append(model.conv_proj((picture - mean) / std))
    torch.testing.assert_close(*patches, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("error", [OSError("no network"), BadStatusLine("no HTTP")])
def test_without_network_file_and_place_are_named(tmp_path, monkeypatch, error):
    def offline(*args: Any, **kwargs: Any) -> None:
        assert 0 < socket.getdefaulttimeout() <= 60  # seconds until a server that says nothing is given up
        raise error

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(WeightsError, match=r"fetch https://\S+/vit_b_16-c867db91.pth \(330 MB\) and put it at .*hub"):
        build_model("vit_b_16", num_classes=2)
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("weights", list(ViT_B_16_Weights), ids=lambda weights: weights.name)
def test_weights_bring_their_own_transforms(weights):
    preset = weights.transforms()
    for name in (weights.name, f"/somewhere/{weights.url.rsplit('/', 1)[-1]}"):
        spec = image_spec(ModelConfig(name="vit_b_16", weights=name))
        assert spec.image_size == preset.crop_size[0]
        assert round(spec.image_size / spec.crop_fraction) == preset.resize_size[0]
        assert (list(spec.mean), list(spec.std)) == (preset.mean, preset.std)
        assert spec.interpolation == preset.interpolation.value


def test_a_licence_against_commerce_is_said(plant, caplog):
    plant(ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1, {"a": torch.zeros(1)})
    torchvision_models.weights_path(ModelConfig(name="vit_b_16", weights="IMAGENET1K_SWAG_LINEAR_V1"))
    assert "not for commercial use" in caplog.text
