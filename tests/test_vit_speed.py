"""Every shorter way through the model is the computation of the paper: same numbers, same gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.config import ViTConfig
from vit.model import PatchConvolution, VisionTransformer, attend

SMALL = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=2, num_heads=3)


def opinionated(config: ViTConfig = SMALL) -> tuple[VisionTransformer, Tensor]:
    torch.manual_seed(0)
    model = VisionTransformer(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, torch.randn(3, config.in_channels, 12, 12)


def equation(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 6 and 7 as they are written."""
    weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(dim=-1)
    return weights @ v, weights


# --- attention


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens", [1, 17, 65])
def test_attention_is_the_equation_with_its_weights_and_without(
    dtype: torch.dtype, tolerance: float, tokens: int
) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, tokens, 16, dtype=dtype)
    k, v = torch.randn(2, 2, 3, 65, 16, dtype=dtype)
    expected, expected_weights = equation(q.float(), k.float(), v.float())
    out, weights = attend(q, k, v, need_weights=True)
    assert weights is not None
    for mine, theirs in ((out, expected), (weights, expected_weights), (attend(q, k, v)[0], expected)):
        torch.testing.assert_close(mine.float(), theirs, atol=tolerance, rtol=tolerance)


def test_weights_of_attention_are_those_before_dropout_and_part_of_the_graph() -> None:
    q, k, v = torch.randn(3, 2, 3, 9, 8, requires_grad=True)
    torch.testing.assert_close(attend(q, k, v, dropout=0.5, need_weights=True)[1], equation(q, k, v)[1])
    out, weights = attend(q, k, v, need_weights=True)
    (gradient,) = torch.autograd.grad(out.sum(), weights)
    torch.testing.assert_close(gradient, v.sum(-1)[:, :, None].expand(2, 3, 9, 9))


# --- patches


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


# --- the last block


@pytest.mark.parametrize(("autocast", "tolerance"), [(False, 1e-5), (True, 3e-2)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "mean"},
        {"pool": "mean_norm"},
        {"qkv_bias": False},
        {"in_channels": 1, "representation_size": 7},
        {"patch_embedding": "stem"},
    ],
    ids=str,
)
def test_every_way_through_the_model_has_the_same_logits_and_gradients(
    options: dict[str, Any], autocast: bool, tolerance: float
) -> None:
    model, images = opinionated(dataclasses.replace(SMALL, **options))
    results = []
    for way in (
        model,  # the class token alone in the last block, if it alone is read
        lambda images: model.forward_head(model.forward_features(images)),  # every token
        lambda images: model.forward_with_attention(images)[0],  # every token, attention written out
        torch.no_grad()(model),
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = way(images)
        if logits.requires_grad:
            gradients = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
        results.append([logits, *gradients])
    for others in results[1:]:
        for mine, other in zip(results[0], others, strict=True):
            assert (mine - other).norm() <= tolerance * other.norm() + 1e-6


class Adapter(nn.Linear):
    """A Linear that also does what its weight does not say, as an adapter in its place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def tokens_of_the_last_block(model: VisionTransformer, images: Tensor) -> int:
    """Number of tokens that come out of the last block, as the norm behind it gets them without a hook."""
    seen = []

    def normalise(x: Tensor) -> Tensor:
        seen.append(x.size(1))
        return nn.LayerNorm.forward(model.norm, x)

    model.norm.forward = normalise  # type: ignore[method-assign]
    model(images)
    del model.norm.forward
    return seen[0]


@pytest.mark.parametrize("name", ["blocks.1", "blocks.1.attention.qkv", "blocks.1.mlp.fc2", "norm"])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_a_hook_behind_the_last_block_sees_every_token(name: str, kind: str) -> None:
    model, images = opinionated()
    expected, module, seen = model(images), model.get_submodule(name), []

    def look(_: nn.Module, *given: Any) -> None:
        first = given[0][0] if isinstance(given[0], tuple) else given[0]
        seen.append(first.size(1))

    with getattr(module, f"register_{kind}")(look):
        logits = model(images.requires_grad_())
        logits.sum().backward()
        torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)
    assert seen == [10]
    assert tokens_of_the_last_block(model, images) == 1  # the hook is gone


def test_an_adapter_in_the_last_block_is_called_and_a_parametrised_weight_is_read() -> None:
    model, images = opinionated()
    attention = model.blocks[-1].attention
    assert tokens_of_the_last_block(model, images) == 1
    adapter = Adapter(24, 72)
    adapter.load_state_dict(attention.qkv.state_dict())
    attention.qkv = adapter
    assert tokens_of_the_last_block(model, images) == 10
    torch.testing.assert_close(model(images), model.forward_with_attention(images)[0], atol=1e-6, rtol=1e-5)
    model, images = opinionated()
    nn.utils.parametrizations.spectral_norm(model.blocks[-1].attention.qkv)  # as LoRA: another weight
    assert tokens_of_the_last_block(model, images) == 1
    torch.testing.assert_close(model(images), model.forward_with_attention(images)[0], atol=1e-6, rtol=1e-5)
