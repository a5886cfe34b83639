"""Every fast path is the textbook's computation: same numbers, same gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vit.config import ViTConfig
from vit.fast import PatchConvolution, VisionTransformer, attention_path, explicit_attention
from vit.model import Attention, attend

SMALL = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=2, num_heads=3)


@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-5), (True, 3e-2)])
@pytest.mark.parametrize(
    "options",
    [
        {"pool": "mean"},
        {"pool": "mean_norm"},
        {"qkv_bias": False},
        {"in_channels": 1, "representation_size": 7},
        {"patch_embedding": "conv", "attention": "sdpa"},
        {"patch_embedding": "conv", "attention": "explicit"},
        {"patch_embedding": "linear", "attention": "sdpa"},
        {"patch_embedding": "stem", "attention": "explicit"},
    ],
    ids=str,
)
def test_the_fast_model_is_the_one_of_the_textbook_with_its_gradients(
    options: dict[str, Any], autocast: bool, tolerance: float
) -> None:
    config = dataclasses.replace(SMALL, **options)
    torch.manual_seed(0)
    quick, plain = VisionTransformer(config), VisionTransformer(dataclasses.replace(config, fast=False))
    for parameter in quick.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain.load_state_dict(quick.state_dict())
    images, results = torch.randn(3, config.in_channels, 12, 12), []
    for model in (quick, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(images)
        gradients = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
        results.append([logits, *gradients, *model.forward_with_attention(images)[1]])
    for mine, textbook in zip(*results, strict=True):
        assert (mine - textbook).norm() <= tolerance * textbook.norm() + 1e-6


def test_the_textbook_starts_and_drops_as_the_explicit_path_does() -> None:
    config = dataclasses.replace(SMALL, dropout=0.2, attention_dropout=0.2, stochastic_depth=0.2, attention="explicit")
    logits = []
    for fast in (True, False):
        torch.manual_seed(0)
        model = VisionTransformer(dataclasses.replace(config, fast=fast))
        torch.nn.init.normal_(model.head.weight)
        logits.append(model.forward_with_attention(torch.randn(4, 3, 12, 12))[0])  # in training, every token asks
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens", [1, 17, 65])
def test_explicit_attention_is_the_equation(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, tokens, 16, dtype=dtype)
    k, v = torch.randn(2, 2, 3, 65, 16, dtype=dtype)
    for mine, plain in zip(explicit_attention(q, k, v), attend(q.float(), k.float(), v.float()), strict=True):
        torch.testing.assert_close(mine.float(), plain, atol=tolerance, rtol=tolerance)


def test_weights_of_attention_are_those_before_dropout() -> None:
    q, k, v = torch.randn(3, 2, 3, 9, 8)
    _, weights = explicit_attention(q, k, v, dropout=0.5)
    torch.testing.assert_close(weights, attend(q, k, v)[1])


@pytest.mark.parametrize("path", ["explicit", "sdpa"])
@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-5), (True, 2e-2)])
def test_a_whole_layer_equals_the_plain_softmax_with_its_gradient(path: str, autocast: bool, tolerance: float) -> None:
    torch.manual_seed(0)
    attention = Attention(ViTConfig(embed_dim=24, num_heads=3, attention=path))  # type: ignore[arg-type]
    x = torch.randn(2, 10, 24, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = attention(x)[0].float()
    qkv = attention.qkv(x).reshape(2, 10, 3, 3, 8).permute(2, 0, 3, 1, 4)
    expected = attention.projection(attend(*qkv)[0].transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    seed = torch.randn_like(out)
    (mine,), (plain,) = torch.autograd.grad(out, x, seed), torch.autograd.grad(expected, x, seed)
    assert (mine - plain).norm() / plain.norm() < tolerance


def test_the_table_keeps_bfloat16_on_the_processor_away_from_the_fused_kernel() -> None:
    assert attention_path("cpu", torch.bfloat16) == "explicit"
    assert attention_path("cuda", torch.bfloat16) == attention_path("cpu", torch.float32) == "sdpa"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_asking_for_gradients_does_not_change_the_logits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(image_size=12, patch_size=4, embed_dim=24, depth=2, num_heads=3)).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(3, 3, 12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        recorded = model(images)
        with torch.no_grad():
            unrecorded = model(images)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    assert (recorded - unrecorded).norm() / recorded.norm() < tolerance


def test_the_patch_convolution_is_a_convolution_with_its_gradients() -> None:
    torch.manual_seed(0)
    layer, images = PatchConvolution(3, 24, 4, stride=4), torch.randn(2, 3, 12, 12, requires_grad=True)
    out, expected = layer(images), F.conv2d(images, layer.weight, layer.bias, stride=4)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    seed, inputs = torch.randn_like(out), (images, layer.weight, layer.bias)
    for mine, theirs in zip(
        torch.autograd.grad(out, inputs, seed), torch.autograd.grad(expected, inputs, seed), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_returned_weights_are_part_of_the_graph() -> None:
    q, k, v = torch.randn(3, 2, 3, 9, 8, requires_grad=True)
    out, weights = explicit_attention(q, k, v)
    (gradient,) = torch.autograd.grad(out.sum(), weights)
    torch.testing.assert_close(gradient, v.sum(-1)[:, :, None].expand(2, 3, 9, 9))
