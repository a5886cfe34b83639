"""The Vision Transformer: the laws of its parts and of the whole, and what it says about wrong input."""

import math

import pytest
import torch
from tiny_vit import TINY, assert_close, pictures, tiny, trained
from torch import nn
from torch.nn import functional as F

from vit.config import ViTConfig
from vit.model import MLP, Attention, Block, Embedding, StochasticDepth, VisionTransformer, attend
from vit.param_groups import param_groups

# --- patches, positions, dropout


def test_a_stem_equals_its_layers():
    torch.manual_seed(0)
    stem = VisionTransformer(tiny(patch_embedding="stem")).embedding.patches
    x = pictures()
    for layer in (stem.convolutions[0], stem.convolutions[3]):
        nn.init.normal_(layer.bias)  # so that one left out would show
        x = F.max_pool2d(F.conv2d(x, layer.weight, layer.bias, padding=1).clamp(min=0), 3, stride=2, padding=1)
    assert_close(stem(pictures()), x.flatten(2).transpose(1, 2))
    assert stem(pictures()).shape == (4, 9, 24)


@pytest.mark.parametrize("training", [True, False])
def test_a_stem_with_norms_equals_its_layers(training):
    torch.manual_seed(0)
    stem = VisionTransformer(tiny(patch_embedding="stem_bn")).embedding.patches.train()
    stem(pictures())  # statistics to keep
    stem.train(training)
    convolutions = [layer for layer in stem.convolutions if isinstance(layer, nn.Conv2d)]
    norms = [layer for layer in stem.convolutions if isinstance(layer, nn.BatchNorm2d)]
    assert [tuple(layer.weight.shape[:2]) for layer in convolutions] == [(12, 3), (24, 12), (24, 24)]
    x = pictures()
    for pooled, convolution, norm in zip((True, False, True), convolutions, norms, strict=True):
        x = F.conv2d(x, convolution.weight, convolution.bias, padding=1)
        x = F.max_pool2d(x, 3, stride=2, padding=1) if pooled else x
        of_batch = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        mean, variance = of_batch if training else (norm.running_mean, norm.running_var)
        x = ((x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()).clamp(min=0)
    assert_close(stem(pictures()), x.flatten(2).transpose(1, 2), 1e-4)


def test_positions_alone_give_patches_an_order():
    model = trained()
    images = pictures(batch=1)
    tiles = images.unfold(2, 4, 4).unfold(3, 4, 4)  # (1, C, 3, 3, 4, 4)
    shuffled = tiles.flip(2, 3).permute(0, 1, 2, 4, 3, 5).reshape(images.shape)
    assert (model(images) - model(shuffled)).abs().max() > 1e-2
    nn.init.zeros_(model.embedding.positions)
    assert_close(model(images), model(shuffled))


def test_dropout_falls_on_tokens_with_positions():
    torch.manual_seed(0)
    embedding = Embedding(tiny(dropout=0.5))
    with torch.no_grad():
        embedding.positions.fill_(100.0)  # a position that survived where its token was dropped would show
    tokens = embedding.train()(pictures(batch=64))
    dropped = tokens == 0
    assert 0.45 < dropped.float().mean() < 0.55
    assert tokens[~dropped].abs().min() > 150  # (token + 100) / 0.5


# --- attention, MLP, blocks


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_drops_weights_in_training_only(need_weights):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 400, 8)
    ones = torch.ones_like(v)
    shares, _ = attend(q, k, ones, dropout=0.5, need_weights=need_weights)  # the sum of the weights that are kept
    assert math.isclose(shares.mean(), 1, abs_tol=0.05)
    assert (shares - 1).abs().max() > 0.05
    attention, x = Attention(tiny(attention_dropout=0.5)), torch.randn(2, 10, 24)
    assert (attention(x) - attention(x)).abs().max() > 1e-3
    attention.eval()
    assert_close(attention(x), attention(x), 0)


def test_mlp_drops_out_after_both_linears():
    torch.manual_seed(0)
    mlp, outputs = MLP(tiny(dropout=0.5)).train(), []
    with torch.no_grad():
        mlp.fc2.bias.fill_(10.0)
    mlp.fc2.register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
    outputs.append(mlp(torch.randn(2, 50, 24)))
    for dropped in outputs:
        assert 0.4 < (dropped == 0).float().mean() < 0.6


def test_stochastic_depth_drops_whole_samples():
    torch.manual_seed(0)
    layer, ones = StochasticDepth(0.25), torch.ones(4000, 3, 2)
    out = layer(ones)
    assert (out == out[:, :1, :1]).all()
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert math.isclose(out.mean(), 1, abs_tol=0.05)
    assert layer.eval()(ones) is ones


def test_the_attention_branch_has_dropout():
    torch.manual_seed(0)
    block, x = Block(tiny(dropout=0.5)).train(), torch.randn(2, 50, 24)
    block.attention.forward = lambda x, **options: torch.ones_like(x)
    nn.init.zeros_(block.mlp.fc2.weight)
    nn.init.zeros_(block.mlp.fc2.bias)
    assert (block(x) - x).round().unique().tolist() == [0, 2]  # dropped, or divided by what is kept


def test_each_residual_branch_has_stochastic_depth():
    torch.manual_seed(0)
    block, x = Block(tiny(), stochastic_depth=0.5).train(), torch.randn(400, 2, 24)
    for layer in (block.attention.projection, block.mlp.fc2):
        nn.init.ones_(layer.bias)
        nn.init.zeros_(layer.weight)
    added = (block(x) - x).mean(dim=(1, 2)).round()
    shares = [(added == total).float().mean().item() for total in (0, 2, 4)]  # neither branch, one, both
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.08)


def test_stochastic_depth_grows_linearly_from_zero():
    model = VisionTransformer(tiny(stochastic_depth=0.2))
    assert [block.stochastic_depth.probability for block in model.blocks] == pytest.approx([0, 0.1, 0.2])


# --- the whole


def test_a_representation_is_linear_tanh_linear():
    model = trained(tiny(representation_size=7))
    hidden = torch.tanh(model.pre_logits(model.forward_features(pictures())[:, 0]))
    assert_close(model(pictures()), model.head(hidden))


def test_a_sample_does_not_depend_on_its_batch():
    model = trained().train()
    assert_close(model(pictures(batch=8))[:1], model(pictures(batch=8)[:1]))


def test_a_fresh_model_has_the_loss_of_a_guess():
    model = VisionTransformer(TINY)
    loss = F.cross_entropy(model(pictures()), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(5), abs=1e-6)
    moved = {name for name, parameter in model.named_parameters() if parameter.grad.abs().max() > 0}
    assert moved == {"head.weight", "head.bias"}


def test_initial_weights_follow_the_paper():
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(image_size=64, patch_size=4, embed_dim=192, depth=1))
    positions, block = model.embedding.positions, model.blocks[0]
    assert positions.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.embedding.class_token.any()
    assert model.embedding.patches.projection.weight.std().item() == pytest.approx(math.sqrt(1 / 48), rel=0.1)
    for weight in block.attention.qkv.weight.chunk(3):
        bound = math.sqrt(6 / (192 + 192))
        assert 0.98 * bound < weight.abs().max() <= bound
    assert not block.attention.qkv.bias.any()
    assert block.mlp.fc1.bias.std().item() == pytest.approx(1e-6, rel=0.2)
    assert (block.norm1.weight == 1).all()
    assert {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)} == {1e-6}
    stem = VisionTransformer(model.config, patch_embedding="stem").embedding.patches
    second = stem.convolutions[3]
    assert second.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 96)), rel=0.05)
    assert not second.bias.any()


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_model_is_one_graph_for_any_batch(pool):
    model = trained(tiny(pool=pool))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(pictures()), model(pictures()))
    exported = torch.export.export(model, (pictures(),), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    images = pictures(batch=7)
    assert_close(exported(images), model(images))


def test_timm_decays_what_this_project_decays():
    optim = pytest.importorskip("timm.optim", reason="requirements-extras.txt is not installed")
    model = VisionTransformer(TINY)
    groups = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.1).param_groups
    ours = {id(p): group["weight_decay"] for group in param_groups(model, weight_decay=0.1) for p in group["params"]}
    theirs = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert theirs == ours


# --- what is given


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
def test_wrong_images_are_refused_in_one_line(images, message, patch_embedding):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(tiny(patch_embedding=patch_embedding))(images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 225, "patch_size": 16}, "image_size=225 is not divisible by patch_size=16; nearest: 224, 240"),
        ({"embed_dim": 24, "num_heads": 5}, "embed_dim=24 is not divisible by num_heads=5"),
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"patch_size": 0}, "patch_size=0 must be at least 1"),
        ({"patch_embedding": "stem", "patch_size": 6}, "patch_size=6 must be .* power of 2"),
        ({"patch_embedding": "stem_bn", "patch_size": 1}, "patch_size=1 must be .* power of 2"),
        ({"num_classes": 0}, "num_classes=0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
    ],
)
def test_wrong_shapes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_a_shape_may_be_given_by_keywords():
    assert VisionTransformer(image_size=32, patch_size=8, embed_dim=24).config == ViTConfig(32, 8, embed_dim=24)
    assert VisionTransformer(TINY, depth=1).config == tiny(depth=1)
