"""Files of weights, of any trainer: what is read, what is adapted, and what does not fit."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from common.errors import WeightsError
from common.image_spec import ImageSpec
from trainers.storage.checkpoint_file import write_checkpoint
from vit.checkpoints import load_weights
from vit.config import ViTConfig
from vit.model import VisionTransformer
from vit.torchvision_models import fetch
from vit.weight_files import read_weights

SHAPE = {"image_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 16, "depth": 2, "num_heads": 2}


def model(**options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    built = VisionTransformer(ViTConfig(**(SHAPE | options)))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return built.eval()


def torchvision_state() -> dict[str, Tensor]:
    return TorchvisionViT(16, 4, 2, 2, 16, 64, num_classes=5).state_dict()


def pictures(channels: int = 3, side: int = 16) -> Tensor:
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(1))


def fresh(**options: Any) -> VisionTransformer:
    return VisionTransformer(ViTConfig(**(SHAPE | options))).eval()


# --- kinds of file


def test_every_kind_of_file_gives_the_same_model(tmp_path: Path) -> None:
    source = model()
    state = source.state_dict()
    torch.save(state, tmp_path / "zip.pth")
    torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "flat.safetensors")
    np.savez(tmp_path / "arrays.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    for file in ("zip.pth", "legacy.pt", "flat.safetensors", "arrays.npz"):
        target = fresh()
        assert ": in the format of this program" in load_weights(target, tmp_path / file)
        torch.testing.assert_close(target(pictures()), source(pictures()), atol=0, rtol=0)


def test_a_checkpoint_of_ours_brings_its_preprocessing(tmp_path: Path) -> None:
    spec = ImageSpec(16, (0.1307,), (0.3081,), "bicubic", 1, 0.9)
    checkpoint = {
        "format_version": 3,
        "model": model(in_channels=1).state_dict(),
        "class_names": ["a", "b"],
        "image_spec": json.loads(json.dumps(dataclasses.asdict(spec))),
        "config": {"model": {"layer_norm_eps": 1e-12}},
    }
    write_checkpoint(tmp_path / "run" / "checkpoints" / "best.safetensors", checkpoint)
    target = fresh(in_channels=1)
    load_weights(target, tmp_path / "run")  # a run directory means its best checkpoint
    assert read_weights(tmp_path / "run").image_spec == spec
    assert {module.eps for module in target.modules() if isinstance(module, nn.LayerNorm)} == {1e-12}


# --- files of trainers


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
    "lightning_deep.ckpt": ({"state_dict": under("learner.net.vit.", ONE) | LOSS}, "left out: 'loss.weight'"),
    "metrics.ckpt": (under("backbone.", ONE) | {"accuracy.tp": torch.zeros(5)}, "left out: 'accuracy.tp'"),
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
    oracle, own, theirs = timm_vit(), fresh(), timm_vit(2)
    theirs.pretrained_cfg = {"first_conv": "patch_embed.proj", "classifier": "head"}
    reports = [load_weights(target, tmp_path / name) for target in (own, theirs)]
    torch.testing.assert_close(theirs(pictures()), oracle(pictures()), atol=0, rtol=0)
    torch.testing.assert_close(own(pictures()), oracle(pictures()), atol=1e-5, rtol=1e-5)
    for report in reports:
        assert said in report
        assert ("left out" in report or "and not" in report) == bool(said)


@pytest.mark.parametrize("prefixes", [("student.", "teacher."), ("model.", "ema_model.module.")])
def test_a_file_of_two_networks_side_by_side_names_them(prefixes: tuple[str, str], tmp_path: Path) -> None:
    torch.save(under(prefixes[0], ONE) | under(prefixes[1], OTHER), tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_weights(fresh(), tmp_path / "w.pth")
    assert all(prefix in str(caught.value) for prefix in prefixes)


def test_a_folder_with_an_older_file_of_weights_is_read(tmp_path: Path) -> None:
    torch.save(ONE, tmp_path / "pytorch_model.bin")
    assert "in the format of timm" in load_weights(fresh(), tmp_path)


# --- adapting


def test_the_epsilon_of_a_family_can_be_overridden(tmp_path: Path) -> None:
    torch.save(torchvision_state(), tmp_path / "w.pth")
    target = fresh()
    load_weights(target, tmp_path / "w.pth", layer_norm_eps=1e-3)
    assert {module.eps for module in target.modules() if isinstance(module, nn.LayerNorm)} == {1e-3}


@pytest.mark.parametrize("stem", ["conv", "stem"])
def test_a_colour_stem_summed_for_grey_images_is_the_same_function_of_them(stem: str, tmp_path: Path) -> None:
    source, target = model(patch_embedding=stem), fresh(patch_embedding=stem, in_channels=1)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    report = load_weights(target, tmp_path / "w.pth")
    grey = pictures(channels=1)
    torch.testing.assert_close(target(grey), source(grey.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-5)
    assert "stem: 3 input channels summed to 1" in report


@pytest.mark.parametrize(("written", "read"), [(8, None), (None, 8), (8, 8), (8, 4)])
def test_a_head_for_other_classes_is_new_and_so_is_a_layer_before_it_that_does_not_fit(
    written: int | None, read: int | None, tmp_path: Path
) -> None:
    source = model(representation_size=written)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    target = fresh(representation_size=read, num_classes=3)
    untrained = copy.deepcopy(target.pre_logits)
    assert "head: new, for 3 classes (the file's is for 5)" in load_weights(target, tmp_path / "w.pth")
    assert not target.head.weight.any()
    if read is not None:
        expected = source.pre_logits if written == read else untrained
        torch.testing.assert_close(target.pre_logits.weight, expected.weight, atol=0, rtol=0)
    torch.testing.assert_close(target.forward_features(pictures()), source.forward_features(pictures()), atol=0, rtol=0)


def test_a_backbone_without_a_head_loads(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in model().state_dict().items() if not name.startswith("head.")}
    torch.save(state, tmp_path / "w.pth")
    assert "head: new, for 5 classes (the file has none)" in load_weights(fresh(), tmp_path / "w.pth")


def test_loading_leaves_the_file_of_the_caller_and_its_tensors_alone(tmp_path: Path) -> None:
    torch.save(torchvision_state(), tmp_path / "w.pth")
    before = (tmp_path / "w.pth").read_bytes()
    target = fresh(image_size=24, num_classes=3)
    load_weights(target, tmp_path / "w.pth")
    nn.init.zeros_(target.embedding.positions)
    assert (tmp_path / "w.pth").read_bytes() == before


# --- refusing


def refusal(path: Path, target: nn.Module | None = None, **options: Any) -> str:
    """The message of the WeightsError; it is one line, names the file, and leaves the model as it was."""
    target = target or fresh()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(target, path, **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for name, tensor in target.state_dict().items():
        torch.testing.assert_close(tensor, before[name], atol=0, rtol=0)
    return message


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("legacy", [False, True, None])
def test_code_in_a_pickle_is_never_run(legacy: bool | None, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pth"
    content = {"model": model().state_dict(), "extra": Malicious(marker)}
    if legacy is None:
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    message = refusal(path)
    assert "the file holds a Python object" in message
    assert "it was not run" in message
    assert not marker.exists()


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", zeros=np.zeros(2**25, np.float32))
    with pytest.raises(WeightsError, match="would unpack to 134,"):
        read_weights(tmp_path / "bomb.npz")


def test_code_in_an_npz_is_never_run(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.npz"
    np.savez(path, cls=np.array([Malicious(marker)], dtype=object))
    assert "holds Python objects, which are not opened" in refusal(path)
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors", ".npz"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_truncated_file_is_named(suffix: str, share: float, tmp_path: Path) -> None:
    path, state = tmp_path / f"w{suffix}", model().state_dict()
    if suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    elif suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=suffix == ".pth")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "not a readable" in refusal(path)


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth: no such weights file"):
        load_weights(fresh(), tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        load_weights(fresh(), tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.h5").write_bytes(b"x")
    assert "unknown kind of weights file '.h5'; known: .safetensors, .npz, .pth" in refusal(tmp_path / "w.h5")
    torch.save([1, 2], tmp_path / "list.pth")
    assert "holds a list; expected a state dict" in refusal(tmp_path / "list.pth")
    torch.save({"epoch": 3}, tmp_path / "dict.pth")
    assert "no tensors found; expected a state dict, found keys epoch" in refusal(tmp_path / "dict.pth")


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"conv1.weight": torch.zeros(2), "fc.bias": torch.zeros(2)}, "found 'conv1.weight', 'fc.bias'"),
        (torchvision_state() | {"patch_embed.proj.weight": torch.zeros(9)}, "left over 'patch_embed.proj.weight'"),
    ],
    ids=["no family", "two families"],
)
def test_names_of_no_family_or_of_two_are_refused(state: dict[str, Tensor], named: str, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pth")
    assert named in refusal(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"embed_dim": 32}, "embedding.class_token is (1, 1, 32); expected (1, 1, 16)"),
        ({"depth": 3}, "missing nothing; left over 'blocks.2.norm1.weight', "),
        ({"mlp_ratio": 2}, "blocks.0.mlp.fc1.weight is (32, 16); expected (64, 16)"),
        ({"depth": 1}, "missing 'blocks.1.norm1.weight', "),
        ({"representation_size": 16}, "left over 'pre_logits.weight', 'pre_logits.bias'"),
        ({"patch_embedding": "stem"}, "'embedding.patches.convolutions.0.weight'"),
    ],
)
def test_another_size_of_model_is_refused_by_what_does_not_fit(
    changed: dict[str, Any], named: str, tmp_path: Path
) -> None:
    torch.save(model(**changed).state_dict(), tmp_path / "w.pth")
    assert named in refusal(tmp_path / "w.pth")


def test_a_norm_after_pooling_asks_for_that_pooling(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer as TimmViT

    theirs = TimmViT(16, 4, num_classes=5, embed_dim=16, depth=2, num_heads=2, global_pool="avg")
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    assert "build the model with pool=mean_norm, found pool=cls" in refusal(tmp_path / "w.pth")


def test_positions_that_are_no_square_grid_are_refused(tmp_path: Path) -> None:
    state = model().state_dict() | {"embedding.positions": torch.zeros(1, 12, 16)}
    torch.save(state, tmp_path / "w.pth")
    assert "12 positions are not one class token and a square grid of patches" in refusal(tmp_path / "w.pth")


# --- downloads


def test_a_cached_file_is_verified_by_the_digits_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "net-ba7816bf.pth").write_bytes(b"abc")  # SHA-256 of "abc" begins with ba7816bf
    assert fetch("https://example.org/net-ba7816bf.pth", megabytes=1) == folder / "net-ba7816bf.pth"
    (folder / "net-ba7816bf.pth").write_bytes(b"ab")
    with pytest.raises(
        WeightsError, match="SHA-256 begins with fb8e20fc, expected ba7816bf: truncated or another file"
    ):
        fetch("https://example.org/net-ba7816bf.pth", megabytes=1)
