"""Attention weights from every kind of ViT, and what is computed from them."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from common.errors import NoAttention
from vit.attention_maps import (
    attention_distance,
    attention_weights,
    head_map,
    maps_of,
    relevance,
    rollout,
    select,
)
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


def test_attention_of_torchvision_is_its_modules_own() -> None:
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


class OfAProgram(nn.Module):
    """A network of one attention layer, which `call` calls on 9 patches."""

    def __init__(self, call: Callable[[nn.MultiheadAttention, Tensor], Any], *, batch_first: bool = True) -> None:
        super().__init__()
        self.cut, self.attention = nn.Conv2d(3, 8, 8, 8), nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head, self.call = nn.Linear(8, 5), call

    def forward(self, images: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2)
        return self.head((x + self.call(self.attention, x)[0]).mean(dim=1))


def test_attention_that_is_called_by_names_is_read() -> None:
    model = OfAProgram(lambda layer, x: layer(query=x, key=x, value=x, need_weights=False)).eval()
    logits, (weights,) = attention_weights(model, pictures())
    torch.testing.assert_close(logits, model(pictures()), atol=1e-5, rtol=1e-5)
    assert weights.shape == (2, 2, 9, 9)


@pytest.mark.parametrize(
    "model",
    [
        OfAProgram(lambda layer, x: layer(x, x.flip(1), x)),
        OfAProgram(lambda layer, x: layer(x, x, x, attn_mask=torch.ones(9, 9, dtype=torch.bool).triu(1))),
        OfAProgram(lambda layer, x: layer(x, x, x), batch_first=False),
    ],
    ids=["another input", "a mask", "batch second"],
)
def test_attention_of_another_kind_is_refused(model: OfAProgram) -> None:
    with pytest.raises(NoAttention, match="OfAProgram: attention is read of one input, batch first, without a mask"):
        attention_weights(model, pictures())
    assert not model.attention._forward_hooks


def test_attention_weights_leaves_no_hooks() -> None:
    model = torchvision_vit()
    with pytest.raises(AssertionError, match="Wrong image height"):
        attention_weights(model, torch.zeros(1, 3, 16, 16))
    attention_weights(model, pictures())
    for module in model.modules():
        assert not module._forward_hooks


def test_compiled_model_is_asked_through_its_original() -> None:
    """By an attribute that is private to torch: this fails where torch names it otherwise."""
    compiled: Any = torch.compile(torchvision_vit(), backend="eager")
    assert len(attention_weights(compiled, pictures())[1]) == 3


def test_selecting_a_layer_and_head() -> None:
    attention = random_attention()
    torch.testing.assert_close(select(attention, layer=-1), attention[2].mean(1))
    torch.testing.assert_close(select(attention, layer=1, head=3), attention[1][:, 3])
    with pytest.raises(ValueError, match="layer=3: this model has layers 0 to 2"):
        select(attention, layer=3)
    with pytest.raises(ValueError, match="head=-5: this model has heads 0 to 3"):
        select(attention, layer=0, head=-5)


def test_rollout_multiplies_layers_and_residuals() -> None:
    attention = random_attention()
    expected = torch.eye(10)
    for weights in attention:
        expected = (0.5 * weights.mean(1)[0] + 0.5 * torch.eye(10)) @ expected
    torch.testing.assert_close(rollout(attention)[0], expected)
    torch.testing.assert_close(rollout(attention).sum(-1), torch.ones(2, 10))


@pytest.mark.parametrize("kind", ["ours", "torchvision"])
def test_relevance_follows_the_chosen_logit(kind: str) -> None:
    torch.manual_seed(0)
    model = torchvision_vit() if kind == "torchvision" else VisionTransformer(ViTConfig(24, 8, num_classes=5)).eval()
    if kind == "ours":
        nn.init.normal_(model.head.weight)
    model.requires_grad_(False)  # a frozen model can be asked, too
    with torch.no_grad():
        logits, predicted = relevance(model, pictures())
        torch.testing.assert_close(logits, model(pictures()), atol=1e-4, rtol=1e-5)
        _, same = relevance(model, pictures(), classes=logits.argmax(1))
        _, other = relevance(model, pictures(), classes=logits.argmin(1))
    torch.testing.assert_close(predicted, same, atol=0, rtol=0)
    assert (predicted - other).abs().max() > 1e-4

    # The rule of the paper, by hand.
    logits, attention = attention_weights(model, pictures().requires_grad_())
    gradients = torch.autograd.grad(logits.max(1).values.sum(), attention)
    expected = torch.eye(10).expand(2, 10, 10)
    for weights, gradient in zip(attention, gradients, strict=True):
        expected = expected + (weights * gradient).relu().mean(1) @ expected
    torch.testing.assert_close(predicted, expected.detach(), atol=1e-5, rtol=1e-4)


def test_relevance_of_an_untrained_model_is_zero() -> None:
    model = VisionTransformer(ViTConfig(24, 8, num_classes=2, embed_dim=8, depth=1, num_heads=1)).eval()
    assert not head_map(model, relevance(model, pictures())[1]).any()


def test_a_map_needs_a_square_grid() -> None:
    with pytest.raises(ValueError, match="9 tokens are not one class token and a square grid"):
        head_map(nn.Identity(), torch.ones(1, 9, 9))


def test_attention_distance_by_hand() -> None:
    own, everywhere = torch.eye(10), torch.full((10, 10), 0.1)
    distance = attention_distance([torch.stack([own, everywhere])[None]], patch_size=8)
    places = [(row, column) for row in range(3) for column in range(3)]
    mean = sum(math.dist(a, b) for a in places for b in places) / 81 * 8
    assert distance.tolist() == [[[0, pytest.approx(mean)]]]


@pytest.mark.parametrize("pool", ["cls", "mean", "mean_norm"])
def test_maps_read_the_tokens_that_the_head_reads(pool: str) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(24, 8, num_classes=5, depth=2, num_heads=2, embed_dim=8, pool=pool)).eval()
    maps = maps_of(model, pictures())
    with torch.no_grad():
        torch.testing.assert_close(maps.logits, model(pictures()), atol=1e-5, rtol=1e-5)
    rows = rollout(maps.attention)
    read = rows[:, 0] if pool == "cls" else rows[:, 1:].mean(dim=1)  # (B, T)
    expected = read[:, 1:] / read[:, 1:].sum(dim=1, keepdim=True)
    torch.testing.assert_close(maps.rollout.flatten(1), expected)
    assert maps.distance.shape == (2, 2, 2)
    alone = [maps_of(model, image[None]) for image in pictures()]
    torch.testing.assert_close(maps.rollout, torch.cat([image.rollout for image in alone]))
    torch.testing.assert_close(maps.distance, torch.cat([image.distance for image in alone]))


def test_maps_need_attention_over_the_whole_image() -> None:
    with pytest.raises(ValueError, match="ResNet has no attention weights"):
        maps_of(resnet18(), pictures())

    class Windows(nn.Module):
        """Two windows of an image that attend within themselves, as those of a Swin transformer do."""

        def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
            return torch.zeros(len(images), 5), [torch.ones(2 * len(images), 1, 5, 5)]

    with pytest.raises(ValueError, match="Windows attends within parts of an image"):
        maps_of(Windows(), pictures())
