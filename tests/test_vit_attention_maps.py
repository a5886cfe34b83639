"""Attention weights from every kind of ViT, and what is computed from them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from vit.attention_maps import attention_distance, attention_weights, class_map, rollout, select
from vit.checkpoints import load_weights
from vit.config import ViTConfig
from vit.model import VisionTransformer


def torchvision_vit() -> TorchvisionViT:
    torch.manual_seed(0)
    model = TorchvisionViT(24, 8, 3, 4, 32, 64, num_classes=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def pictures() -> Tensor:
    return torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def random_attention(*, layers: int = 3, heads: int = 4, tokens: int = 10) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, heads, tokens, tokens).softmax(-1) for _ in range(layers)]


def test_torchvision_weights_are_those_of_its_attention_modules_in_the_pass_that_predicts() -> None:
    model = torchvision_vit()
    with torch.no_grad():
        logits, attention = attention_weights(model, pictures())
        torch.testing.assert_close(logits, model(pictures()), atol=1e-5, rtol=1e-5)
        assert [tuple(weights.shape) for weights in attention] == [(2, 4, 10, 10)] * 3
        x = model._process_input(pictures())
        x = torch.cat([model.class_token.expand(2, -1, -1), x], 1) + model.encoder.pos_embedding
        for layer, weights in zip(model.encoder.layers, attention, strict=True):
            normed = layer.ln_1(x)
            _, expected = layer.self_attention(normed, normed, normed, need_weights=True, average_attn_weights=False)
            torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 10))
            x = layer(x)


def test_asking_leaves_no_hooks_behind_even_when_the_pass_fails() -> None:
    model = torchvision_vit()
    with pytest.raises(AssertionError, match="Wrong image height"):
        attention_weights(model, torch.zeros(1, 3, 16, 16))
    attention_weights(model, pictures())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_the_scratch_vit_with_torchvision_weights_attends_alike(tmp_path: Path) -> None:
    theirs = torchvision_vit()
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    config = ViTConfig(24, 8, num_classes=5, embed_dim=32, depth=3, num_heads=4, mlp_ratio=2)
    ours = VisionTransformer(config).eval()
    load_weights(ours, tmp_path / "w.pth")
    for found, expected in zip(attention_weights(ours, pictures()), attention_weights(theirs, pictures()), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_compiled_model_is_asked_through_its_original() -> None:
    model = torchvision_vit()

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = model

    assert len(attention_weights(Compiled(), pictures())[1]) == 3


def test_a_network_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="ResNet has no attention weights; the ViTs do"):
        attention_weights(resnet18(), pictures())


def test_selecting_a_layer_and_head() -> None:
    attention = random_attention()
    torch.testing.assert_close(select(attention, layer=-1), attention[2].mean(1))
    torch.testing.assert_close(select(attention, layer=1, head=3), attention[1][:, 3])
    with pytest.raises(ValueError, match="layer=3: this model has layers 0 to 2"):
        select(attention, layer=3)
    with pytest.raises(ValueError, match="head=-5: this model has heads 0 to 3"):
        select(attention, layer=0, head=-5)


def test_rollout_is_the_product_over_layers_with_half_a_residual() -> None:
    attention = random_attention()
    expected = torch.eye(10)
    for weights in attention:
        expected = (0.5 * weights.mean(1)[0] + 0.5 * torch.eye(10)) @ expected
    torch.testing.assert_close(rollout(attention)[0], expected)
    torch.testing.assert_close(rollout(attention).sum(-1), torch.ones(2, 10))


def test_rollout_of_a_model_that_looks_at_one_patch_points_there() -> None:
    looking = torch.zeros(1, 4, 10, 10)
    looking[..., 7] = 1  # every token asks token 7: patch 6, row 2, column 0
    grid = class_map(rollout([looking, looking]))
    assert grid.shape == (1, 3, 3)
    assert grid[0, 2, 0] == pytest.approx(1)
    assert grid.sum() == pytest.approx(1)


def test_a_class_map_needs_a_square_grid() -> None:
    with pytest.raises(ValueError, match="9 tokens are not one class token and a square grid"):
        class_map(torch.ones(1, 9, 9))


def test_attention_distance_of_heads_that_look_at_themselves_and_everywhere() -> None:
    own, everywhere = torch.eye(10), torch.full((10, 10), 0.1)
    distance = attention_distance([torch.stack([own, everywhere])[None]], patch_size=8)
    places = [(row, column) for row in range(3) for column in range(3)]
    mean = sum(math.dist(a, b) for a in places for b in places) / 81 * 8
    assert distance.tolist() == [[0, pytest.approx(mean)]]
