"""Three steps of the ViT take a shorter way to the same numbers: attention, patches, and the last block."""

import math
from typing import Any

import pytest
import torch
from tiny_vit import assert_close, pictures, tiny, trained
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model import PatchConvolution, VisionTransformer, attend


def equation(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 6 and 7 as they are written."""
    weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(dim=-1)
    return weights @ v, weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("tokens", [1, 17, 65])
def test_attention_is_the_equation(dtype, tolerance, tokens):
    torch.manual_seed(0)
    q = torch.randn(2, 3, tokens, 16, dtype=dtype)
    k, v = torch.randn(2, 2, 3, 65, 16, dtype=dtype)
    expected, expected_weights = equation(q.float(), k.float(), v.float())
    out, weights = attend(q, k, v, need_weights=True)
    for mine, theirs in ((out, expected), (weights, expected_weights), (attend(q, k, v)[0], expected)):
        assert_close(mine.float(), theirs, tolerance)


def test_attention_weights_are_before_dropout():
    q, k, v = torch.randn(3, 2, 3, 9, 8, requires_grad=True)
    assert_close(attend(q, k, v, dropout=0.5, need_weights=True)[1], equation(q, k, v)[1])
    out, weights = attend(q, k, v, need_weights=True)
    (gradient,) = torch.autograd.grad(out.sum(), weights)
    assert_close(gradient, v.sum(-1)[:, :, None].expand(2, 3, 9, 9))


def test_a_patch_convolution_is_a_convolution():
    torch.manual_seed(0)
    layer, images = PatchConvolution(3, 24, 4, stride=4), torch.randn(2, 3, 12, 12, requires_grad=True)
    out, expected = layer(images), F.conv2d(images, layer.weight, layer.bias, stride=4)
    assert_close(out, expected)
    seed, inputs = torch.randn_like(out), (images, layer.weight, layer.bias)
    assert_close(torch.autograd.grad(out, inputs, seed), torch.autograd.grad(expected, inputs, seed), 1e-4)


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
def test_every_way_has_the_same_logits(options, autocast, tolerance):
    model, images = trained(tiny(**options)), pictures(tiny(**options))
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


def tokens_of_the_last_block(model: VisionTransformer, images: Tensor) -> int:
    """Number of tokens that come out of the last block, as the norm behind it gets them without a hook."""
    counts = []

    def normalise(x: Tensor) -> Tensor:
        counts.append(x.size(1))
        return nn.LayerNorm.forward(model.norm, x)

    model.norm.forward = normalise  # type: ignore[method-assign]
    model(images)
    del model.norm.forward
    return counts[0]


@pytest.mark.parametrize("name", ["blocks.2", "blocks.2.attention.qkv", "blocks.2.mlp.fc2", "norm"])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_a_hook_on_the_last_block_gets_every_token(name, kind):
    model, images = trained(), pictures()
    expected, module, counts = model(images), model.get_submodule(name), []

    def look(_: nn.Module, *given: Any) -> None:
        first = given[0][0] if isinstance(given[0], tuple) else given[0]
        counts.append(first.size(1))

    with getattr(module, f"register_{kind}")(look):
        logits = model(images.requires_grad_())
        logits.sum().backward()
        assert_close(logits, expected)
    assert counts == [10]
    assert tokens_of_the_last_block(model, images) == 1  # the hook is gone


class Adapter(nn.Linear):
    """A Linear that also does what its weight does not say, as an adapter in its place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def test_an_adapter_in_the_last_block_is_called():
    model, images = trained(), pictures()
    attention = model.blocks[-1].attention
    adapter = Adapter(24, 72)
    adapter.load_state_dict(attention.qkv.state_dict())
    attention.qkv = adapter
    assert tokens_of_the_last_block(model, images) == 10
    assert_close(model(images), model.forward_with_attention(images)[0])


def test_a_parametrised_weight_is_read():
    model, images = trained(), pictures()
    nn.utils.parametrizations.spectral_norm(model.blocks[-1].attention.qkv)  # as LoRA: another weight
    assert tokens_of_the_last_block(model, images) == 1
    assert_close(model(images), model.forward_with_attention(images)[0])


class Wrapped(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


def test_a_wrapped_block_gets_its_tokens_alone():
    model, images = trained(), pictures()
    expected = model(images)
    model.blocks[-1] = Wrapped(model.blocks[-1])
    assert_close(model(images), expected)
