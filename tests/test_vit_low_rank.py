"""Norms and low-rank changes: what they train, and that merging them changes nothing."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from trainers.engine.engines import autocast
from vit.anatomy import anatomy_of
from vit.factory import build_model
from vit.freezing import freeze
from vit.low_rank import LowRank, load_merged_state, merged_state

RANK = 3
HUB = ("dinov2", "dinov3_vit", "beit", "vit", "siglip", "clip")


def untrained(name: str, folder: Path, trainable: str = "all") -> nn.Module:
    """Models with 3 or 4 blocks, and images of which 16 pixels are enough."""
    torch.manual_seed(0)
    if name == "torchvision":
        model = TorchvisionViT(16, 8, 3, 2, 16, 32, num_classes=2)
        freeze(model, trainable)
        return model
    if name.startswith("hf:"):
        importlib.import_module("hub_backbones").saved_backbone(name.removeprefix("hf:"), folder)
        return build_model(f"hf:{folder}", num_classes=2, trainable=trainable)
    size = 160 if name.startswith("timm") else 16
    return build_model(name, num_classes=2, weights="none", image_size=size, trainable=trainable)


def images_for(name: str) -> Tensor:
    size = 160 if name.startswith("timm") else 16
    return torch.randn(2, 3, size, size)


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Away from zero heads and from changes that change nothing."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.1)


EVERY_KIND = pytest.mark.parametrize(
    "name",
    [
        "vit_micro_2",
        "torchvision",
        "timm:test_vit",
        *(pytest.param(f"hf:{kind}", marks=pytest.mark.slow) for kind in HUB),
    ],
)


@EVERY_KIND
def test_merged_logits_are_those_of_the_changed_model(name: str, tmp_path: Path) -> None:
    if ":" in name:
        pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
    model, plain = untrained(name, tmp_path, f"lora:{RANK}").eval(), untrained(name, tmp_path).eval()
    images = images_for(name)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))  # a new change changes nothing
        stir(model)
        changed = model(images)
        plain.load_state_dict(merged_state(model))
        torch.testing.assert_close(plain(images), changed, atol=1e-5, rtol=0)  # of our own ViT equal: see below
        load_merged_state(model, plain.state_dict())
        torch.testing.assert_close(model(images), changed, atol=1e-5, rtol=0)
    assert changed.any()


@EVERY_KIND
def test_lora_trains_four_times_rank_times_width(name: str, tmp_path: Path) -> None:
    if ":" in name:
        pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
    model = untrained(name, tmp_path, f"lora:{RANK}")
    width = next(module.a.size(1) for module in model.modules() if isinstance(module, LowRank))
    own = anatomy_of(model)
    head = sum(p.numel() for part in own.head for p in part.parameters())
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trainable) == head + len(own.blocks) * 4 * RANK * width
    model.train()(images_for(name)).sum().backward()
    assert all(p.grad is not None for p in trainable)


def test_the_change_is_the_product_of_the_paper(tmp_path: Path) -> None:
    """Equation 3 of the paper, by a hook on the plain model: h = W x + B A x."""
    model, plain = untrained("vit_micro_2", tmp_path, f"lora:{RANK}").eval(), untrained("vit_micro_2", tmp_path).eval()
    stir(model)
    plain.head.load_state_dict(model.head.state_dict())  # type: ignore[union-attr, operator]
    for changed, block in zip(model.blocks, plain.blocks, strict=True):  # type: ignore[arg-type]
        change = changed.attention.qkv.parametrizations.weight[0]
        hook = lambda _, x, out, change=change: out + x[0] @ change.a.T @ change.b.T  # noqa: E731
        block.attention.qkv.register_forward_hook(hook)
    with torch.no_grad():
        images = torch.randn(2, 3, 16, 16)
        torch.testing.assert_close(model(images), plain(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["vit_micro_2", "torchvision"])
def test_norms_trains_layer_norms_and_head_alone(name: str, tmp_path: Path) -> None:
    model = untrained(name, tmp_path, "norms")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * len(anatomy_of(model).blocks) + 1
    expected = {id(p) for module in (*norms, *anatomy_of(model).head) for p in module.parameters()}
    assert {id(p) for p in model.parameters() if p.requires_grad} == expected


@pytest.mark.parametrize("trainable", ["lora:4", "norms"])
def test_resnet_has_no_low_rank_change_and_no_norms(trainable: str) -> None:
    with pytest.raises(ValueError, match=f"trainable={trainable}: ResNet"):
        build_model("resnet18", num_classes=2, weights="none", trainable=trainable)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_merging_changes_no_bit(dtype: torch.dtype | None, tmp_path: Path) -> None:
    model, plain = untrained("vit_micro_2", tmp_path, "lora:2").eval(), untrained("vit_micro_2", tmp_path).eval()
    stir(model)
    plain.load_state_dict(merged_state(model))
    with torch.no_grad(), autocast(torch.device("cpu"), dtype):
        images = torch.randn(2, 3, 16, 16)
        assert torch.equal(model(images), plain(images))
