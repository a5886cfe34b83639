"""Weights as other trainers leave them: where the network is found in a file, and what is said of the rest."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.errors import WeightsError
from vit.checkpoints import load_weights
from vit.factory import build_model
from vit.fast import VisionTransformer


def ours() -> VisionTransformer:
    return VisionTransformer(image_size=16, patch_size=4, num_classes=5, embed_dim=16, depth=2, num_heads=2).eval()


def pictures(side: int = 16) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def timm_vit(seed: int = 0) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer as TimmViT

    torch.manual_seed(seed)
    return TimmViT(16, 4, num_classes=5, embed_dim=16, depth=2, num_heads=2).eval()


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


ONE, OTHER = timm_vit().state_dict(), timm_vit(1).state_dict()
LOSS = {"loss.weight": torch.ones(5)}
DECODER = {
    "mask_token": torch.zeros(1, 1, 8),
    "decoder_embed.weight": torch.zeros(8, 16),
    "decoder_norm.bias": torch.zeros(8),
}
OF_TRAINERS: dict[str, tuple[dict[str, Any], str]] = {
    "lightning_loss.ckpt": ({"state_dict": under("model.", ONE) | LOSS, "epoch": 1}, "left out: 'loss.weight'"),
    "lightning_net.ckpt": ({"state_dict": under("net.", ONE)}, ""),
    "lightning_deep.ckpt": ({"state_dict": under("learner.net.vit.", ONE) | LOSS}, "left out: 'loss.weight'"),
    "metrics.ckpt": (under("backbone.", ONE) | {"accuracy.tp": torch.zeros(5)}, "left out: 'accuracy.tp'"),
    "sequential.pt": (under("0.", ONE), ""),
    "average.pth": (under("module.", ONE) | {"n_averaged": torch.tensor(3)}, "left out: 'n_averaged'"),
    "compiled.pth": (under("_orig_mod.module.", ONE), ""),
    "compiled_blocks.pth": ({re.sub(r"^(blocks\.\d)\.", r"\1._orig_mod.", n): t for n, t in ONE.items()}, ""),
    "fsdp.pth": (
        {
            "_fsdp_wrapped_module." + re.sub(r"^(blocks\.\d)\.", r"\1._fsdp_wrapped_module.", n): t
            for n, t in ONE.items()
        },
        "",
    ),
    "model_best.pth.tar": ({"arch": "vit", "state_dict": ONE}, ""),
    "checkpoint.tar": ({"epoch": 3, "model_state_dict": ONE}, ""),
    "pytorch_model.bin": (ONE, ""),
    "best_acc.pth": ({"net": ONE, "acc": np.float64(0.9)}, ""),
    "options.pth": ({"model": ONE, "args": argparse.Namespace(output_dir=Path("/x"))}, ""),
    "config_first.pth": ({"model": {"depth": 2}, "state_dict": ONE}, ""),
    "mae.pth": ({"model": ONE | DECODER}, "left out: 'mask_token', 'decoder_embed.weight', 'decoder_norm.bias'"),
    "dino.pth": (
        {
            "student": under("module.backbone.", OTHER),
            "teacher": under("backbone.", ONE) | {"head.last.weight": ONE["head.bias"]},
        },
        "taken: teacher of the file, and not student",
    ),
    "ema.pth": ({"state_dict": ONE, "state_dict_ema": OTHER}, "taken: state_dict of the file, and not state_dict_ema"),
    "only_ema.pth": ({"model_ema": under("module.", ONE) | {"n_averaged": torch.tensor(3)}, "epoch": 1}, "n_averaged"),
}


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_a_network_is_found_in_what_trainers_write_and_what_is_left_is_named(name: str, tmp_path: Path) -> None:
    content, said = OF_TRAINERS[name]
    torch.save(content, tmp_path / name)
    oracle, own, theirs = timm_vit(), ours(), timm_vit(2)
    theirs.pretrained_cfg = {"first_conv": "patch_embed.proj", "classifier": "head"}
    reports = [load_weights(target, tmp_path / name) for target in (own, theirs)]
    torch.testing.assert_close(theirs(pictures()), oracle(pictures()), atol=0, rtol=0)
    torch.testing.assert_close(own(pictures()), oracle(pictures()), atol=1e-5, rtol=1e-5)
    for report in reports:
        assert said in report
        assert ("left out" in report or "and not" in report) == bool(said)


@pytest.mark.parametrize("name", ["vit_micro_2", "vit_b_16", "resnet18"])
def test_any_model_is_found_below_a_prefix_beside_other_tensors(name: str, tmp_path: Path) -> None:
    size = {"vit_micro_2": 8}.get(name, 32)
    source, target = (build_model(name, num_classes=3, weights="none", image_size=size).eval() for _ in range(2))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    torch.save({"state_dict": under("lit.net.", source.state_dict()) | LOSS}, tmp_path / "last.ckpt")
    assert "left out: 'loss.weight'" in load_weights(target, tmp_path / "last.ckpt")
    torch.testing.assert_close(target(pictures(side=size)), source(pictures(side=size)), atol=0, rtol=0)


@pytest.mark.parametrize("prefixes", [("student.", "teacher."), ("model.", "ema_model.module.")])
def test_a_file_of_two_networks_side_by_side_names_them(prefixes: tuple[str, str], tmp_path: Path) -> None:
    torch.save(under(prefixes[0], ONE) | under(prefixes[1], OTHER), tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_weights(ours(), tmp_path / "w.pth")
    assert all(prefix in str(caught.value) for prefix in prefixes)


def test_a_folder_with_an_older_file_of_weights_is_read(tmp_path: Path) -> None:
    torch.save(ONE, tmp_path / "pytorch_model.bin")
    assert "in the format of timm" in load_weights(ours(), tmp_path)
