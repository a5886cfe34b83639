"""Every fast path is the textbook's computation: same numbers, same gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.utils.flop_counter import FlopCounterMode

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


class Adapter(nn.Linear):
    """A Linear that also does what its weight does not say, as an adapter in its place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def opinionated() -> tuple[VisionTransformer, Tensor]:
    torch.manual_seed(0)
    model = VisionTransformer(SMALL).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, torch.randn(3, 3, 12, 12)


def tokens_of_the_last_block(model: VisionTransformer, images: Tensor) -> int:
    """Number of tokens that come out of the last block, told by the norm behind it, which no hook watches."""
    seen = []

    def normalise(x: Tensor) -> Tensor:
        seen.append(x.size(1))
        return nn.LayerNorm.forward(model.norm, x)

    model.norm.forward = normalise  # type: ignore[method-assign]
    model(images)
    del model.norm.forward
    return seen[0]


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_a_hook_of_all_modules_sees_every_token_and_a_counter_of_flops_asks_for_none(kind: str) -> None:
    model, images = opinionated()
    with getattr(module_hooks, f"register_module_{kind}")(lambda *_: None):
        assert tokens_of_the_last_block(model, images) == 10
    with FlopCounterMode(display=False):
        assert tokens_of_the_last_block(model, images) == 1


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
    plain = VisionTransformer(dataclasses.replace(SMALL, fast=False)).eval()
    plain.load_state_dict(model.state_dict())
    plain.blocks[-1].attention.qkv = adapter
    assert tokens_of_the_last_block(model, images) == 10
    torch.testing.assert_close(model(images), plain(images), atol=1e-6, rtol=1e-5)
    model, images = opinionated()
    nn.utils.parametrizations.spectral_norm(model.blocks[-1].attention.qkv)  # as LoRA: another weight
    assert tokens_of_the_last_block(model, images) == 1
    fast, (whole, _) = model(images), model.forward_with_attention(images)
    torch.testing.assert_close(fast, whole, atol=1e-6, rtol=1e-5)


def test_a_block_that_somebody_wrapped_is_called_as_the_textbook_calls_it() -> None:
    class Wrapped(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Any:
            return self.block(x)

    model, images = opinionated()
    expected = model(images)
    model.blocks[-1] = Wrapped(model.blocks[-1])
    torch.testing.assert_close(model(images), expected, atol=1e-6, rtol=1e-5)


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
        out = attention(x).float()
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
