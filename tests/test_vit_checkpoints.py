"""Files of weights, of any trainer: what is read, what is adapted, and what does not fit."""

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
from timm.models.vision_transformer import VisionTransformer as TimmViT
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


def epsilons(model: nn.Module) -> set[float]:
    return {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}


# --- kinds of file

KINDS = (".pth", ".pt", ".safetensors", ".npz")


def written(folder: Path, state: Mapping[str, Tensor], *, kind: str = ".pth") -> Path:
    """A file of weights; a .pt as torch wrote them before 1.6."""
    path = folder / f"w{kind}"
    if kind == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    elif kind == ".safetensors":
        save_file(dict(state), path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == ".pth")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_model(kind: str, tmp_path: Path) -> None:
    source, target = model(), fresh()
    path = written(tmp_path, source.state_dict(), kind=kind)
    assert ": in the format of this program" in load_weights(target, path)
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
    assert epsilons(target) == {1e-12}


# --- files of trainers


def timm_vit(seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return TimmViT(16, 4, num_classes=5, embed_dim=16, depth=2, num_heads=2, **options).eval()


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def wrapped(by: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As a program names the weights that wraps each block."""
    return {re.sub(r"^(blocks\.\d)\.", rf"\1.{by}.", name): tensor for name, tensor in state.items()}


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
    "compiled_blocks.pth": (wrapped("_orig_mod", ONE), ""),
    "fsdp.pth": (under("_fsdp_wrapped_module.", wrapped("_fsdp_wrapped_module", ONE)), ""),
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
def test_a_network_is_found_in_what_trainers_write(name: str, tmp_path: Path) -> None:
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
def test_a_file_of_two_networks_names_them(prefixes: tuple[str, str], tmp_path: Path) -> None:
    message = refusal(written(tmp_path, under(prefixes[0], ONE) | under(prefixes[1], OTHER)))
    assert all(prefix in message for prefix in prefixes)


def test_a_folder_of_older_weights_is_read(tmp_path: Path) -> None:
    torch.save(ONE, tmp_path / "pytorch_model.bin")
    assert "in the format of timm" in load_weights(fresh(), tmp_path)


# --- adapting


def test_the_epsilon_of_a_family_can_be_overridden(tmp_path: Path) -> None:
    target = fresh()
    load_weights(target, written(tmp_path, torchvision_state()), layer_norm_eps=1e-3)
    assert epsilons(target) == {1e-3}


@pytest.mark.parametrize("stem", ["conv", "stem"])
def test_a_summed_stem_is_the_same_of_grey_images(stem: str, tmp_path: Path) -> None:
    source, target = model(patch_embedding=stem), fresh(patch_embedding=stem, in_channels=1)
    report = load_weights(target, written(tmp_path, source.state_dict()))
    grey = pictures(channels=1)
    torch.testing.assert_close(target(grey), source(grey.expand(-1, 3, -1, -1)), atol=1e-5, rtol=1e-5)
    assert "stem: 3 input channels summed to 1" in report


@pytest.mark.parametrize(("theirs", "own"), [(8, None), (None, 8), (8, 8), (8, 4)])
def test_a_head_for_other_classes_is_new(theirs: int | None, own: int | None, tmp_path: Path) -> None:
    """And so is a layer before it that does not fit."""
    source, target = model(representation_size=theirs), fresh(representation_size=own, num_classes=3)
    untrained = copy.deepcopy(target.pre_logits)
    report = load_weights(target, written(tmp_path, source.state_dict()))
    assert "head: new, for 3 classes (the file's is for 5)" in report
    assert not target.head.weight.any()
    if own is not None:
        expected = source.pre_logits if theirs == own else untrained
        torch.testing.assert_close(target.pre_logits.weight, expected.weight, atol=0, rtol=0)
    torch.testing.assert_close(target.forward_features(pictures()), source.forward_features(pictures()), atol=0, rtol=0)


def test_a_backbone_without_a_head_loads(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in model().state_dict().items() if not name.startswith("head.")}
    assert "head: new, for 5 classes (the file has none)" in load_weights(fresh(), written(tmp_path, state))


def test_loading_leaves_the_file_and_its_tensors_alone(tmp_path: Path) -> None:
    path = written(tmp_path, torchvision_state())
    before = path.read_bytes()
    target = fresh(image_size=24, num_classes=3)
    load_weights(target, path)
    nn.init.zeros_(target.embedding.positions)
    assert path.read_bytes() == before


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


@pytest.mark.parametrize("kind", [".pth", ".pt", "pickle", ".npz"])
def test_code_in_a_file_is_never_run(kind: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pth"
    content: dict[str, Any] = {"model": model().state_dict(), "extra": Malicious(marker)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    elif kind == ".npz":
        path = path.with_suffix(kind)
        np.savez(path, cls=np.array([Malicious(marker)], dtype=object))
    else:
        path = written(tmp_path, content, kind=kind)
    assert "Python object" in refusal(path)
    assert not marker.exists()


def test_an_npz_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", zeros=np.zeros(2**25, np.float32))
    with pytest.raises(WeightsError, match="would unpack to 134,"):
        read_weights(tmp_path / "bomb.npz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.98])
def test_a_truncated_file_is_named(kind: str, share: float, tmp_path: Path) -> None:
    path = written(tmp_path, model().state_dict(), kind=kind)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "not a readable" in refusal(path)


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth: no such weights file"):
        load_weights(fresh(), tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match="~no_such_person/w.pth: no such weights file"):
        load_weights(fresh(), "~no_such_person/w.pth")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        load_weights(fresh(), tmp_path)


def test_an_unknown_kind_of_file_gets_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "w.h5").write_bytes(b"x")
    assert "unknown kind of weights file '.h5'; known: .safetensors, .npz, .pth" in refusal(tmp_path / "w.h5")


def state_of(**options: Any) -> dict[str, Tensor]:
    return model(**options).state_dict()


OTHERS = {
    "a list": ([1, 2], "holds a list; expected a state dict"),
    "no tensors": ({"epoch": 3}, "no tensors found; expected a state dict, found keys epoch"),
    "no family": ({"conv1.weight": torch.zeros(2), "fc.bias": torch.zeros(2)}, "found 'conv1.weight', 'fc.bias'"),
    "two families": (torchvision_state() | {"patch_embed.proj.weight": torch.zeros(9)},
                     "left over 'patch_embed.proj.weight'"),
    "wider": (state_of(embed_dim=32), "embedding.class_token is (1, 1, 32); expected (1, 1, 16)"),
    "deeper": (state_of(depth=3), "missing nothing; left over 'blocks.2.norm1.weight', "),
    "shallower": (state_of(depth=1), "missing 'blocks.1.norm1.weight', "),
    "other MLPs": (state_of(mlp_ratio=2), "blocks.0.mlp.fc1.weight is (32, 16); expected (64, 16)"),
    "representation": (state_of(representation_size=16), "left over 'pre_logits.weight', 'pre_logits.bias'"),
    "other stem": (state_of(patch_embedding="stem"), "'embedding.patches.convolutions.0.weight'"),
    "norm after pooling": (timm_vit(global_pool="avg").state_dict(), "with pool=mean_norm, found pool=cls"),
    "no square grid": (state_of() | {"embedding.positions": torch.zeros(1, 12, 16)}, "12 positions are not one class"),
    "flat positions": (state_of() | {"embedding.positions": torch.zeros(160)}, "embedding.positions is (160,); "),
    "a part of a block": ({"patch_embed.proj.weight": torch.zeros(9), "blocks.0.ls1.gamma": torch.zeros(9)},
                          "not those of timm weights (KeyError: "),
    "flat positions of timm": (timm_vit().state_dict() | {"pos_embed": torch.zeros(9)},
                               "not those of timm weights (IndexError: "),
}  # fmt: skip


@pytest.mark.parametrize(("content", "named"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_named(content: Any, named: str, tmp_path: Path) -> None:
    assert named in refusal(written(tmp_path, content))


# --- downloads


def test_a_cached_file_is_verified_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file, url = tmp_path / "hub" / "checkpoints" / "net-ba7816bf.pth", "https://example.org/net-ba7816bf.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"abc")  # SHA-256 of "abc" begins with ba7816bf
    assert fetch(url, megabytes=1) == file
    file.write_bytes(b"ab")
    with pytest.raises(WeightsError, match="begins with fb8e20fc, expected ba7816bf: truncated or another file"):
        fetch(url, megabytes=1)
