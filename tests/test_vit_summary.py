"""What `summary` prints, against closed forms, torch's own counter and models that exist in memory."""

import dataclasses

import pytest
import torch
from every_model import EVERY_MODEL

import main
from vit.config import VIT_SHAPES, ViTConfig
from vit.factory import build_model
from vit.model import VisionTransformer
from vit.summary import summarise

TINY = ViTConfig(image_size=12, patch_size=4, num_classes=5, embed_dim=24, depth=3, num_heads=3)


def vit_flops(config: ViTConfig) -> int:
    """FLOPs of one image's forward pass through the textbook model, every block working on all tokens.

    Per block and token 12 D^2 multiply-adds in the Linears (4 D^2 of attention, 8 D^2 of an MLP of ratio 4), and
    2 T D in the two products with the attention weights. A multiply-add is 2 FLOPs.
    """
    tokens, dim = config.num_patches + 1, config.embed_dim
    hidden = int(dim * config.mlp_ratio)
    stem = config.num_patches * config.in_channels * config.patch_size**2 * dim
    block = tokens * (4 * dim**2 + 2 * dim * hidden) + 2 * tokens**2 * dim
    head = dim * config.num_classes
    return 2 * (stem + config.depth * block + head)


def on_meta(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config)


def test_flops_of_class_token_and_mean_pooling() -> None:
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
    assert summary.layers[0].shape == (1, 10)
    assert summary.layers[0].flops == summary.flops > 0
    assert summary.parameters == sum(p.numel() for p in model.parameters())
    assert summary.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_summarise_leaves_the_model_as_it_was() -> None:
    model = VisionTransformer(TINY).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert summarise(model, in_channels=3, image_size=12) == summarise(on_meta(TINY), in_channels=3, image_size=12)
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# --- the command


def test_summary_prints_layers_to_a_depth(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["summary", "--model", "vit_base_16", "--image-size", "512", "--num-classes", "1000"]
    assert main.main(command) == 0
    text = capsys.readouterr().out
    assert "87,203,560, of which 87,203,560 train" in text  # 828 positions more than at 224 pixels
    assert "1 multiply-add = 2 FLOPs" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    shapes = {"patches": "(1, 1024, 768)", "embedding": "(1, 1025, 768)", "0": "(1, 1025, 768)", "11": "(1, 1, 768)"}
    assert all(shape in rows[name] for name, shape in shapes.items())
    assert "qkv" not in rows
    assert main.main([*command, "--depth", "4"]) == 0
    first = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["qkv"])
    assert "(1, 1025, 2304)" in first
    assert "1,771,776" in first
