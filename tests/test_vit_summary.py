"""What `summary` prints, against closed forms, torch's own counter and models that exist in memory."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from every_model import EVERY_MODEL
from torch.utils.flop_counter import FlopCounterMode

import main
from vit.config import VIT_SHAPES, ViTConfig
from vit.factory import build_model
from vit.model import VisionTransformer
from vit.summary import collapse, summarise

TINY = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=3, num_heads=3)


def vit_flops(config: ViTConfig) -> int:
    """FLOPs of one image's forward pass through the textbook model, every block working on all tokens.

    Per block and token 12 D^2 multiply-adds in the Linears (4 D^2 of attention, 8 D^2 of an MLP of ratio 4), and
    2 T D in the two products with the attention weights. A multiply-add is 2 FLOPs.
    """
    tokens, dim = config.num_patches + 1, config.embed_dim
    hidden = int(dim * config.mlp_ratio)
    stem = config.num_patches * config.in_channels * config.patch_size**2 * dim
    if config.patch_embedding.startswith("stem"):
        widths = enumerate(pairwise(config.stem_widths))
        twice = config.patch_embedding == "stem_bn"
        stem = sum(
            (config.image_size >> halvings) ** 2 * 9 * doubled * (width + doubled * (twice and halvings > 0))
            for halvings, (width, doubled) in widths
        )
    block = tokens * (4 * dim**2 + 2 * dim * hidden) + 2 * tokens**2 * dim
    width = config.representation_size or dim
    head = (dim * width if config.representation_size else 0) + width * config.num_classes
    return 2 * (stem + config.depth * block + head)


def on_meta(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "mean"},
        {"pool": "mean_norm"},
        {"patch_embedding": "stem_bn"},
        {"representation_size": 7},
    ],
)
def test_the_closed_form_of_flops_equals_torchs_counter(options: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, **options)
    model = VisionTransformer(config)
    with FlopCounterMode(display=False) as counter:
        model.forward_with_attention(torch.zeros(1, 3, 12, 12))
    assert counter.get_total_flops() == vit_flops(config)


def test_the_class_token_alone_saves_most_of_the_last_block_and_means_save_nothing() -> None:
    saved = vit_flops(TINY) - summarise(on_meta(TINY), in_channels=3, image_size=12).flops
    tokens, dim = 10, 24
    # The other nine tokens need no query, no output projection, no MLP and no row of attention: 1 + 1 + 8 D^2, 2 T D.
    assert saved == 2 * (tokens - 1) * (10 * dim**2 + 2 * tokens * dim)
    mean = dataclasses.replace(TINY, pool="mean")
    assert summarise(on_meta(mean), in_channels=3, image_size=12).flops == vit_flops(mean)


def test_published_flops_of_vit_b_16_and_resnet18() -> None:
    with torch.device("meta"):
        vit = build_model("vit_b_16", num_classes=1000, weights="none")
        resnet = build_model("resnet18", num_classes=1000, weights="none")
    config = ViTConfig(**VIT_SHAPES["vit_base_16"])
    assert summarise(vit, in_channels=3, image_size=224).flops == vit_flops(config) == 35_127_656_448
    assert summarise(resnet, in_channels=3, image_size=224).flops == 3_628_146_688  # 1.814 G multiply-adds


@EVERY_MODEL
def test_every_model_is_summarised_without_memory(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=10, weights="none")
    size = VIT_SHAPES.get(name, {}).get("image_size", 224)
    summary = summarise(model, in_channels=3, image_size=size)
    assert summary.stages[0] == ("images", (1, 3, size, size))
    assert summary.stages[-1][1] == (1, 10)
    assert summary.layers[0].shape == (1, 10)
    assert summary.layers[0].flops == summary.flops > 0
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert summary.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    told = [layer for layer, _ in collapse(summary.layers)]
    assert len(told) < len(summary.layers)


def test_shapes_do_not_depend_on_the_device_and_the_model_is_left_as_it_was() -> None:
    model = VisionTransformer(TINY).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert summarise(model, in_channels=3, image_size=12) == summarise(on_meta(TINY), in_channels=3, image_size=12)
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_stages_tell_the_golden_shapes() -> None:
    model = on_meta(ViTConfig(image_size=512, embed_dim=768, num_heads=12, depth=2))
    stages = summarise(model, in_channels=3, image_size=512).stages
    shapes = [shape for _, shape in stages]
    assert shapes[:5] == [(1, 3, 512, 512), (1, 768, 32, 32), (1, 1024, 768), (1, 1025, 768), (1, 1025, 768)]
    assert shapes[-2:] == [(1, 768), (1, 1000)]


def test_only_neighbours_equal_inside_and_out_are_told_together() -> None:
    layers = summarise(on_meta(TINY), in_channels=3, image_size=12).layers
    told = {layer.name: times for layer, times in collapse(layers)}
    assert told["blocks.0"] == 2  # the third block works for the class token alone
    assert "blocks.1.mlp" not in told
    assert told["blocks.2"] == told["blocks.0.norm1"] == told["blocks.0.norm2"] == 1
    times = 0
    for layer, count in collapse(layers):
        times += count if layer.kind == "Block" else 0
    assert times == 3


# --- the command


def test_the_command_prints_layers_stages_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["summary", "--model", "vit_base_16", "--num-classes", "1000"]) == 0
    text = capsys.readouterr().out
    assert "86,567,656, of which 86,567,656 train" in text
    assert "0  (x11)" in text
    assert "(1, 768, 14, 14)" in text
    assert "1 multiply-add = 2 FLOPs" in text
    rows = [line for line in text.splitlines() if "Linear" in line]
    assert any(line.split()[0] == "qkv" and "(1, 197, 2304)" in line and "1,771,776" in line for line in rows)


def test_a_frozen_backbone_shows_in_the_trainable_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["summary", "--model", "vit_b_16", "--num-classes", "2", "--trainable", "head"]) == 0
    assert "of which 1,538 train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "vit_bas_16"], "did you mean vit_base_16?"),
        (["--model", "vit_base_16", "--image-size", "225"], "image_size=225 is not divisible by patch_size=16"),
        (["--model", "resnet18", "--pool", "mean"], "has no option"),
        (["--model", "auto"], "depends on the data"),
        (["--num-classes", "0"], "num_classes=0 must be at least 1"),
        (["--weights", "IMAGENET1K_V1"], "a summary is of the model alone"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["summary", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
