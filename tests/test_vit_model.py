"""The Vision Transformer: its exact laws, what it says about wrong input, and every shorter way through it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.config import ViTConfig
from vit.model import (
    MLP,
    Attention,
    Block,
    Embedding,
    PatchConvolution,
    StochasticDepth,
    VisionTransformer,
    attend,
    cut_patches,
)
from vit.param_groups import param_groups

TINY = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=3, num_heads=3)


def tiny(**options: Any) -> ViTConfig:
    return dataclasses.replace(TINY, **options)


def trained(config: ViTConfig = TINY, *, seed: int = 0) -> VisionTransformer:
    """A model none of whose parameters is zero or one any more, in evaluation mode."""
    torch.manual_seed(seed)
    model = VisionTransformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def pictures(config: ViTConfig = TINY, *, batch: int = 4, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, config.in_channels, config.image_size, config.image_size, generator=generator)


# --- patch embedding


def test_patches_are_cut_as_unfold_cuts_them() -> None:
    images = pictures()
    torch.testing.assert_close(cut_patches(images, 4), F.unfold(images, 4, stride=4).transpose(1, 2), atol=0, rtol=0)


def test_a_stem_equals_its_layers_written_out() -> None:
    torch.manual_seed(0)
    stem = VisionTransformer(tiny(patch_embedding="stem")).embedding.patches
    x = pictures()
    for layer in (stem.convolutions[0], stem.convolutions[3]):
        nn.init.normal_(layer.bias)  # so that one left out would show
        x = F.max_pool2d(F.conv2d(x, layer.weight, layer.bias, padding=1).clamp(min=0), 3, stride=2, padding=1)
    torch.testing.assert_close(stem(pictures()), x.flatten(2).transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert stem(pictures()).shape == (4, 9, 24)


def test_a_stem_with_batch_norms_equals_its_layers_written_out_in_training_and_with_the_statistics_kept() -> None:
    torch.manual_seed(0)
    stem = VisionTransformer(tiny(patch_embedding="stem_bn")).embedding.patches.train()
    convolutions = [layer for layer in stem.convolutions if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in stem.convolutions if isinstance(layer, nn.BatchNorm2d)]
    assert [tuple(layer.weight.shape[:2]) for layer in convolutions] == [(12, 3), (24, 12), (24, 24)]
    for mode in (True, False):
        stem.train(mode)
        x = pictures()
        for pooled, convolution, norm in zip((True, False, True), convolutions, norms, strict=True):
            x = F.conv2d(x, convolution.weight, convolution.bias, padding=1)
            x = F.max_pool2d(x, 3, stride=2, padding=1) if pooled else x
            mean, variance = (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) if mode else norm_state(norm)
            x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
            x = x.clamp(min=0)
        torch.testing.assert_close(stem(pictures()), x.flatten(2).transpose(1, 2), atol=1e-4, rtol=1e-4)


def norm_state(norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    return norm.running_mean.clone(), norm.running_var.clone()  # type: ignore[union-attr]


# --- class token, positions, dropout


def test_without_positions_the_class_output_ignores_the_order_of_patches_and_with_them_it_does_not() -> None:
    model = trained()
    images = pictures(batch=1)
    tiles = images.unfold(2, 4, 4).unfold(3, 4, 4)  # (1, C, 3, 3, 4, 4)
    shuffled = tiles.flip(2, 3).permute(0, 1, 2, 4, 3, 5).reshape(images.shape)
    assert (model(images) - model(shuffled)).abs().max() > 1e-2
    nn.init.zeros_(model.embedding.positions)
    torch.testing.assert_close(model(images), model(shuffled), atol=1e-5, rtol=1e-5)


def test_dropout_falls_on_the_sum_of_tokens_and_positions() -> None:
    torch.manual_seed(0)
    embedding = Embedding(tiny(dropout=0.5))
    with torch.no_grad():
        embedding.positions.fill_(100.0)  # a position that survived where its token was dropped would show
    tokens = embedding.train()(pictures(batch=64))
    dropped = tokens == 0
    assert 0.45 < dropped.float().mean() < 0.55
    assert tokens[~dropped].abs().min() > 150  # (token + 100) / 0.5


# --- attention


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_dropout_acts_on_the_weights_in_training_only(need_weights: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 400, 8)
    ones = torch.ones_like(v)
    shares, _ = attend(q, k, ones, dropout=0.5, need_weights=need_weights)  # the sum of the weights that are kept
    assert math.isclose(shares.mean(), 1, abs_tol=0.05)
    assert (shares - 1).abs().max() > 0.05
    attention, x = Attention(tiny(attention_dropout=0.5)), torch.randn(2, 10, 24)
    assert (attention(x) - attention(x)).abs().max() > 1e-3
    attention.eval()
    torch.testing.assert_close(attention(x), attention(x), atol=0, rtol=0)


# --- MLP, blocks


def test_mlp_drops_out_after_both_linears() -> None:
    torch.manual_seed(0)
    mlp, seen = MLP(tiny(dropout=0.5)).train(), []
    with torch.no_grad():
        mlp.fc2.bias.fill_(10.0)
    mlp.fc2.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    seen.append(mlp(torch.randn(2, 50, 24)))
    for dropped in seen:
        assert 0.4 < (dropped == 0).float().mean() < 0.6


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer, ones = StochasticDepth(0.25), torch.ones(4000, 3, 2)
    out = layer(ones)
    assert (out == out[:, :1, :1]).all()
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert math.isclose(out.mean(), 1, abs_tol=0.05)
    assert layer.eval()(ones) is ones


def test_each_residual_branch_has_dropout_and_stochastic_depth() -> None:
    torch.manual_seed(0)
    block, x = Block(tiny(dropout=0.5)).train(), torch.randn(2, 50, 24)
    block.attention.forward = lambda x, **options: torch.ones_like(x)
    nn.init.zeros_(block.mlp.fc2.weight)
    nn.init.zeros_(block.mlp.fc2.bias)
    assert (block(x) - x).round().unique().tolist() == [0, 2]  # dropped, or divided by what is kept
    block, x = Block(tiny(), stochastic_depth=0.5).train(), torch.randn(400, 2, 24)
    nn.init.ones_(block.attention.projection.bias)
    nn.init.ones_(block.mlp.fc2.bias)
    for layer in (block.attention.projection, block.mlp.fc2):
        nn.init.zeros_(layer.weight)
    added = (block(x) - x).mean(dim=(1, 2)).round()
    shares = [(added == total).float().mean().item() for total in (0, 2, 4)]  # neither branch, one, both
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.08)


def test_stochastic_depth_grows_linearly_from_zero() -> None:
    model = VisionTransformer(tiny(stochastic_depth=0.2))
    assert [block.stochastic_depth.probability for block in model.blocks] == pytest.approx([0, 0.1, 0.2])


# --- the whole


def test_features_are_all_tokens_normalised() -> None:
    model = trained()
    tokens = model.forward_features(pictures())
    assert tokens.shape == (4, 10, 24)
    torch.testing.assert_close(model.forward_head(tokens), model(pictures()), atol=1e-5, rtol=1e-5)
    expected = (tokens - model.norm.bias) / model.norm.weight
    torch.testing.assert_close(expected.mean(-1), torch.zeros(4, 10), atol=1e-5, rtol=0)


def test_a_representation_layer_is_linear_tanh_linear() -> None:
    model = trained(tiny(representation_size=7))
    assert model.pre_logits is not None
    hidden = torch.tanh(model.pre_logits(model.forward_features(pictures())[:, 0]))
    torch.testing.assert_close(model(pictures()), model.head(hidden), atol=1e-5, rtol=1e-5)


def test_a_sample_does_not_depend_on_the_rest_of_its_batch() -> None:
    model = trained().train()
    torch.testing.assert_close(model(pictures(batch=8))[:1], model(pictures(batch=8)[:1]), atol=1e-5, rtol=1e-5)


def test_a_fresh_model_has_the_loss_of_a_guess_and_moves_its_head_first() -> None:
    model = VisionTransformer(TINY)
    loss = F.cross_entropy(model(pictures()), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(5), abs=1e-6)
    moved = {name for name, parameter in model.named_parameters() if parameter.grad.abs().max() > 0}
    assert moved == {"head.weight", "head.bias"}


def test_initial_weights_follow_the_paper() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(image_size=64, patch_size=4, embed_dim=192, depth=1))
    positions, block = model.embedding.positions, model.blocks[0]
    assert positions.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.embedding.class_token.any()
    assert model.embedding.patches.projection.weight.std().item() == pytest.approx(math.sqrt(1 / 48), rel=0.1)
    stem = VisionTransformer(ViTConfig(image_size=64, patch_size=4, embed_dim=192, depth=1, patch_embedding="stem"))
    second = stem.embedding.patches.convolutions[3]
    assert second.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 96)), rel=0.05)
    assert not second.bias.any()
    for weight in block.attention.qkv.weight.chunk(3):
        bound = math.sqrt(6 / (192 + 192))
        assert 0.98 * bound < weight.abs().max() <= bound
    assert not block.attention.qkv.bias.any()
    assert block.mlp.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert (block.norm1.weight == 1).all()
    assert {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_model_compiles_and_exports_as_one_graph_for_any_batch(pool: str) -> None:
    model = trained(tiny(pool=pool))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(pictures()), model(pictures()), atol=1e-6, rtol=1e-5)
    exported = torch.export.export(model, (pictures(),), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    images = pictures(batch=7)
    torch.testing.assert_close(exported(images), model(images), atol=1e-6, rtol=1e-5)


# --- what is said about wrong input


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 12, 12), r"images have shape \(3, 12, 12\); expected \(batch, channels, height, width\)"),
        (torch.zeros(1, 1, 12, 12), "images have 1 channels; this model was built with in_channels=3"),
        (torch.zeros(1, 3, 14, 12), "images are 14 x 12; this model was built for image_size=12"),
        (torch.zeros(1, 3, 16, 16), "images are 16 x 16; this model was built for image_size=12"),
        (torch.zeros(1, 3, 12, 12, dtype=torch.uint8), "expected floats"),
    ],
)
@pytest.mark.parametrize("patch_embedding", ["conv", "stem"])
def test_wrong_images_are_refused_in_one_line(images: Tensor, message: str, patch_embedding: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionTransformer(tiny(patch_embedding=patch_embedding))(images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 225, "patch_size": 16}, "image_size=225 is not divisible by patch_size=16; nearest: 224, 240"),
        ({"embed_dim": 24, "num_heads": 5}, "embed_dim=24 is not divisible by num_heads=5"),
        ({"patch_embedding": "stem", "patch_size": 6}, "patch_size=6 must be .* power of 2"),
        ({"patch_embedding": "stem_bn", "patch_size": 1}, "patch_size=1 must be .* power of 2"),
        ({"num_classes": 0}, "num_classes=0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
    ],
)
def test_wrong_shapes_are_refused_before_anything_is_built(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_a_shape_may_be_given_by_keywords_as_other_libraries_take_it():
    assert VisionTransformer(image_size=32, patch_size=8, embed_dim=24).config == ViTConfig(32, 8, embed_dim=24)
    assert VisionTransformer(TINY, depth=1).config == tiny(depth=1)


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


@pytest.mark.parametrize("name", ["blocks.2", "blocks.2.attention.qkv", "blocks.2.mlp.fc2", "norm"])
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_a_hook_behind_the_last_block_sees_every_token(name: str, kind: str) -> None:
    model, images = trained(), pictures()
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
    model, images = trained(), pictures()
    attention = model.blocks[-1].attention
    assert tokens_of_the_last_block(model, images) == 1
    adapter = Adapter(24, 72)
    adapter.load_state_dict(attention.qkv.state_dict())
    attention.qkv = adapter
    assert tokens_of_the_last_block(model, images) == 10
    torch.testing.assert_close(model(images), model.forward_with_attention(images)[0], atol=1e-6, rtol=1e-5)
    model, images = trained(), pictures()
    nn.utils.parametrizations.spectral_norm(model.blocks[-1].attention.qkv)  # as LoRA: another weight
    assert tokens_of_the_last_block(model, images) == 1
    torch.testing.assert_close(model(images), model.forward_with_attention(images)[0], atol=1e-6, rtol=1e-5)


def test_a_block_that_somebody_wrapped_is_called_with_its_tokens_alone() -> None:
    class Wrapped(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Any:
            return self.block(x)

    model, images = trained(), pictures()
    expected = model(images)
    model.blocks[-1] = Wrapped(model.blocks[-1])
    torch.testing.assert_close(model(images), expected, atol=1e-6, rtol=1e-5)


def test_an_optimizer_of_timm_decays_neither_class_token_nor_positions():
    optim = pytest.importorskip("timm.optim", reason="requirements-extras.txt is not installed")
    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    groups = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.1).param_groups
    ours = {id(p): group["weight_decay"] for group in param_groups(model, weight_decay=0.1) for p in group["params"]}
    theirs = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert theirs == ours
