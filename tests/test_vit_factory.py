"""One contract over every registered model, then what is particular to torchvision's."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from every_model import EVERY_MODEL
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights, ViT_B_16_Weights, resnet18
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from torchvision.models.vision_transformer import interpolate_embeddings

from common.errors import OptionError, WeightsError
from common.image_spec import HALF, ImageSpec
from vit import torchvision_models
from vit.anatomy import anatomy_of, recompute_activations
from vit.config import MODEL_NAMES, ModelConfig
from vit.factory import MODELS, Blueprint, Library, build_model, image_spec, library
from vit.freezing import freeze
from vit.param_groups import param_groups

# Parameters at 1000 classes and the native size, as timm's VisionTransformer of the same shape has them (B/16, L/16 and
# H/14 also in torchvision's table). A registered model without a row fails below.
PARAMETERS = {
    "vit_micro_2": 267_048,
    "vit_nano_8": 949_352,
    "vit_micro_4": 1_333_608,
    "vit_stem_16": 3_077_080,  # by hand: 5 blocks of 444_864, a stem of 655_920, 17 positions, norm, head
    "vit_mini_16": 3_084_760,  # by hand: 6 blocks of 444_864, a stem of 218_736, 17 positions, norm, head
    "vit_tiny_8": 5_719_720,
    "vit_tiny_16": 5_717_416,
    "vit_small_8": 22_055_272,
    "vit_small_14": 22_004_584,
    "vit_small_16": 22_050_664,
    "vit_small_32": 22_878_952,
    "vit_base_8": 86_576_872,
    "vit_base_14": 86_475_496,
    "vit_base_16": 86_567_656,
    "vit_base_32": 88_224_232,
    "vit_large_14": 304_203_752,
    "vit_large_16": 304_326_632,
    "vit_large_32": 306_535_400,
    "vit_huge_14": 632_045_800,
    "vit_b_16": 86_567_656,
    "resnet18": 11_689_512,
    "efficientnet_lite0": 4_652_008,  # Tan and Le 2019, the Lite variants: 4.7 M and 6.1 M
    "efficientnet_lite2": 6_092_072,
}


def count(module: nn.Module, *, trainable: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)


def small(name: str, **options: Any) -> nn.Module:
    """The model of this name, untrained, at the smallest size that shows everything: two patches a side."""
    return build_model(name, **({"num_classes": 2, "weights": "none", "image_size": two_patches(name)} | options))


def two_patches(name: str) -> int:
    return 32 if name == "resnet18" else 2 * int(name.rsplit("_", 1)[1])


# --- the registry


def test_every_registered_model_has_a_name_in_the_config_and_a_row_in_the_table() -> None:
    assert set(MODELS) == set(MODEL_NAMES) == set(PARAMETERS)


@pytest.mark.parametrize("name", [*MODELS, "hf:anything", "timm:anything"])
def test_every_row_leads_to_a_module_that_offers_what_a_library_does(name: str) -> None:
    offered = vars(library(name))
    for member in ("build", "native_size", "image_spec", "weights_path"):
        asked = inspect.signature(vars(Library)[member]).parameters
        assert list(inspect.signature(offered[member]).parameters) == [word for word in asked if word != "self"]


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts_are_those_published(name: str) -> None:
    with torch.device("meta"):
        assert count(build_model(name, num_classes=1000, weights="none")) == PARAMETERS[name]


@EVERY_MODEL
def test_a_model_maps_images_of_its_spec_to_zero_logits(name: str) -> None:
    with torch.device("meta"):
        spec = image_spec(ModelConfig(name=name, weights="none"))
        model = build_model(name, num_classes=7, weights="none")
        assert model(torch.empty(2, spec.in_channels, spec.image_size, spec.image_size)).shape == (2, 7)
    assert spec.mean == spec.std == HALF


@EVERY_MODEL
def test_freezing_and_parameter_groups_agree_to_the_last_parameter(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=2, weights="none")
        found = anatomy_of(model)
        head = sum(count(part) for part in found.head)
        last = head + sum(count(part) for part in (*found.norms, *found.blocks[-2:]))
        total = count(model)
        for trainable, expected in (("head", head), ("last:2", last), ("all", total)):
            model = build_model(name, num_classes=2, weights="none", trainable=trainable)
            assert count(model, trainable=True) == expected
            for layer_decay in (1.0, 0.8):
                groups = param_groups(model, weight_decay=0.1, layer_decay=layer_decay)
                grouped = [id(parameter) for group in groups for parameter in group["params"]]
                assert len(grouped) == len(set(grouped))
                assert set(grouped) == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("name", ["vit_micro_2", "vit_b_16", "resnet18"])
@pytest.mark.parametrize("trainable", ["head", "last:1"])
def test_a_training_step_changes_only_what_is_trainable(name: str, trainable: str) -> None:
    torch.manual_seed(0)
    model = small(name, trainable=trainable)
    nn.init.normal_(list(model.parameters())[-2])  # the weight of the head: with zeros no gradient passes it
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    free = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.SGD(param_groups(model, weight_decay=0.1), lr=0.1)
    model.train()
    side = two_patches(name)
    nn.functional.cross_entropy(model(torch.randn(4, 3, side, side)), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    buffers = {key for key, _ in model.named_buffers() if trainable != "head" and key.startswith("layer4")}
    assert changed == free | buffers


def test_frozen_parts_stay_in_evaluation_mode_and_copies_keep_that() -> None:
    model = small("vit_micro_2", dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5, trainable="head").train()
    images = torch.randn(2, 3, 4, 4)
    for each in (model, copy.deepcopy(model).train()):
        assert each.training
        torch.testing.assert_close(each.forward_features(images), each.forward_features(images), atol=0, rtol=0)
        assert not each.blocks[-1].training
        assert each.head.training
        assert not each.eval().head.training
    last = small("vit_micro_2", dropout=0.5, trainable="last:1").train()
    assert [block.training for block in last.blocks] == [False, False, False, True]
    assert not last.embedding.training
    copied = copy.deepcopy(last)
    copied.eval()
    assert last.training
    assert last.blocks[-1].training


@pytest.mark.parametrize("trainable", ["norms", "lora:2"])
def test_a_block_that_trains_in_part_drops_nothing_and_its_activations_can_be_recomputed(trainable: str) -> None:
    options = {"dropout": 0.5, "attention_dropout": 0.5, "stochastic_depth": 0.5}
    model, images = small("vit_micro_2", trainable=trainable, **options).train(), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(model.forward_features(images), model.forward_features(images), atol=0, rtol=0)
    recompute_activations(list(anatomy_of(model).blocks))
    calls: list[nn.Module] = []
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda module, _: calls.append(module))
    model(images).sum().backward()
    assert len(calls) == 2 * len(model.blocks)


def test_more_blocks_than_there_are_cannot_train() -> None:
    with pytest.raises(ValueError, match="trainable=last:5: this model has 4 blocks"):
        small("vit_micro_2", trainable="last:5")
    with pytest.raises(ValueError, match="trainable=last:5: this model has 4 stages"):
        small("resnet18", trainable="last:5")
    with pytest.raises(ValueError, match=r"trainable='first:2' must be all, head, norms, last:K or lora:R"):
        small("vit_micro_2", trainable="first:2")
    with pytest.raises(ValueError, match="Linear is not a model of this project"):
        freeze(nn.Linear(1, 1), "head")


# --- parameter groups


@pytest.mark.usefixtures("two_layers")
def test_biases_norms_class_token_and_positions_do_not_decay() -> None:
    for name in ("vit_micro_2", "vit_b_16", "resnet18"):
        model = small(name)
        names = {id(parameter): key for key, parameter in model.named_parameters()}
        groups = {group["name"]: group for group in param_groups(model, weight_decay=0.05)}
        assert {group["weight_decay"] for group in groups.values()} == {0.05, 0.0}
        for parameter in groups["no_decay"]["params"]:
            key = names[id(parameter)]
            assert parameter.dim() <= 1 or key.endswith(("class_token", "positions", "pos_embedding")), key
        for parameter in groups["decay"]["params"]:
            key = names[id(parameter)]
            assert key.endswith("weight"), key
            assert parameter.dim() > 1


def test_the_rate_shrinks_layer_by_layer_below_the_head() -> None:
    model = small("vit_micro_2")
    scales = {}
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    for group in param_groups(model, weight_decay=0.1, layer_decay=0.5):
        scales |= {names[id(parameter)]: group["lr_scale"] for parameter in group["params"]}
    assert scales["head.weight"] == scales["norm.weight"] == 1
    assert [scales[f"blocks.{i}.mlp.fc1.weight"] for i in range(4)] == [0.5**4, 0.5**3, 0.5**2, 0.5]
    assert scales["embedding.positions"] == scales["embedding.class_token"] == 0.5**5


def test_nothing_to_train_and_a_wrong_decay_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameter is trainable"):
        param_groups(small("vit_micro_2").requires_grad_(False), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"layer_decay=1.5 must lie in \(0, 1\]"):
        param_groups(small("vit_micro_2"), weight_decay=0.1, layer_decay=1.5)


# --- names and options


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "vit_tny_16",
            {},
            f"^unknown model 'vit_tny_16'; did you mean vit_tiny_16.* Known: {', '.join(MODEL_NAMES)}, hf:",
        ),
        ("auto", {}, "model `auto` depends on the data"),
        ("vit_micro_2", {"num_classes": 0}, "num_classes=0 must be at least 1"),
        ("vit_b_16", {"weights": "SWAG_E2E_V1"}, "has no weights 'SWAG_E2E_V1'; known: imagenet, IMAGENET1K_V1"),
        ("vit_b_16", {"image_size": 100, "weights": "none"}, "image_size=100 is not divisible by patch_size=16"),
        ("vit_b_16", {"stochastic_depth": 0.1}, "has no option stochastic_depth"),
        ("resnet18", {"pool": "mean"}, "has no option pool"),
        ("resnet18", {"patch_embedding": "stem"}, "has no option patch_embedding"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        build_model(name, **({"num_classes": 2} | options))


def test_every_option_reaches_the_scratch_model() -> None:
    model = small(
        "vit_micro_2",
        in_channels=1,
        pool="mean",
        patch_embedding="stem",
        representation_size=6,
        dropout=0.1,
        attention_dropout=0.2,
        stochastic_depth=0.3,
        layer_norm_eps=1e-5,
    )
    config = model.config
    assert (config.in_channels, config.pool, config.patch_embedding) == (1, "mean", "stem")
    assert (config.representation_size, config.layer_norm_eps) == (6, 1e-5)
    assert model.embedding.dropout.p == model.blocks[0].mlp.dropout.p == 0.1
    assert {block.attention.dropout for block in model.blocks} == {0.2}
    assert model.blocks[-1].stochastic_depth.probability == 0.3
    assert model(torch.randn(2, 1, 4, 4)).shape == (2, 2)


# --- torchvision's models and their weights


def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: dict[str, Tensor], weights: Any) -> Path:
    """A file of random weights in torch's cache, under a name that carries its own SHA-256, behind an enum member."""
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(state, folder / "w")
    digits = hashlib.sha256((folder / "w").read_bytes()).hexdigest()[:8]
    path = (folder / "w").rename(folder / f"net-{digits}.pth")
    value = dataclasses.replace(weights.value, url=f"https://example.org/{path.name}")
    monkeypatch.setattr(weights, "_value_", value)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return path


def narrow_state(image_size: int = 224) -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = TorchvisionViT(image_size, 16, 2, 4, 32, 64).state_dict()
    return {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in state.items()}


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("image_size", [224, 96, 384])
def test_pretrained_vit_b_16_takes_a_new_head_and_any_size(
    image_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = narrow_state()
    planted(monkeypatch, tmp_path, state, ViT_B_16_Weights.IMAGENET1K_V1)
    model = build_model("vit_b_16", num_classes=5, image_size=image_size).eval()
    assert isinstance(model, TorchvisionViT)
    assert not model.heads.head.weight.any()

    expected = TorchvisionViT(image_size, 16, 2, 4, 32, 64).eval()
    expected.load_state_dict(interpolate_embeddings(image_size, 16, dict(state)))
    images = torch.randn(1, 3, image_size, image_size)
    model.heads, expected.heads = nn.Identity(), nn.Identity()
    torch.testing.assert_close(model(images), expected(images), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("two_layers")
def test_weights_of_vit_b_16_come_from_a_file_too_and_keep_their_head_at_1000_classes(tmp_path: Path) -> None:
    state, path = narrow_state(), tmp_path / "vit_b_16-c867db91.pth"
    torch.save(state, path)
    model = build_model("vit_b_16", num_classes=1000, weights=str(path), image_size=224)
    torch.testing.assert_close(dict(model.state_dict()), state, atol=0, rtol=0)
    grey = build_model("vit_b_16", num_classes=2, weights=str(path), in_channels=1)
    picture = torch.rand(2, 1, 224, 224)
    specs = [image_spec(ModelConfig("vit_b_16", weights=str(path), in_channels=channels)) for channels in (1, 3)]
    grey_images, images = (
        (picture - torch.tensor(spec.mean).view(1, -1, 1, 1)) / torch.tensor(spec.std).view(1, -1, 1, 1)
        for spec in specs
    )
    torch.testing.assert_close(grey.conv_proj(grey_images), model.conv_proj(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weights", [None, "imagenet", "DEFAULT"])
def test_pretrained_resnet18_loads_and_takes_a_new_head(
    weights: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = resnet18()
    planted(monkeypatch, tmp_path, source.state_dict(), ResNet18_Weights.IMAGENET1K_V1)
    model = build_model("resnet18", num_classes=5, weights=weights).eval()
    source.fc = model.fc = nn.Identity()
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(model(images), source.eval()(images), atol=1e-4, rtol=1e-4)
    assert model.layer1(model.conv1(images)).is_contiguous(memory_format=torch.channels_last)


def test_without_network_the_line_names_file_size_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(WeightsError, match=r"fetch https://\S+/vit_b_16-c867db91.pth \(330 MB\) and put it at .*hub"):
        build_model("vit_b_16", num_classes=2)


# --- preprocessing


@pytest.mark.parametrize("weights", list(ViT_B_16_Weights), ids=lambda weights: weights.name)
def test_torchvision_weights_bring_their_own_transforms(weights: ViT_B_16_Weights) -> None:
    preset = weights.transforms()
    for name in (weights.name, f"/somewhere/{weights.url.rsplit('/', 1)[-1]}"):
        spec = image_spec(ModelConfig(name="vit_b_16", weights=name))
        assert spec.image_size == preset.crop_size[0]
        assert round(spec.image_size / spec.crop_fraction) == preset.resize_size[0]
        assert (list(spec.mean), list(spec.std)) == (preset.mean, preset.std)
        assert spec.interpolation == preset.interpolation.value


def test_grey_images_use_the_mean_of_the_colours_another_size_the_same_share_and_options_override() -> None:
    spec = image_spec(ModelConfig(name="vit_b_16", in_channels=1, image_size=96))
    assert spec.mean == (pytest.approx(0.449, abs=1e-3),)
    assert (spec.image_size, spec.crop_fraction) == (96, 0.875)
    spec = image_spec(ModelConfig(name="vit_micro_2", mean=(0.1,), std=(0.2, 0.3, 0.4)))
    assert (spec.mean, spec.std) == ((0.1, 0.1, 0.1), (0.2, 0.3, 0.4))


def test_a_foreign_file_brings_the_preprocessing_of_its_family_and_resolve_writes_it_down(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    source = ViTForImageClassification(ViTConfig(**shape, image_size=8, patch_size=2))
    torch.save(source.state_dict(), tmp_path / "w.pth")
    config = ModelConfig(name="vit_micro_2", weights=str(tmp_path / "w.pth"))
    assert image_spec(config) == ImageSpec(image_size=8, mean=HALF, std=HALF)
    resolved = Blueprint(config).resolved
    assert (resolved.layer_norm_eps, resolved.image_size, resolved.mean) == (1e-12, 8, HALF)

    model = build_model(config, num_classes=2).eval()
    again = build_model(resolved, num_classes=2, weights="none").eval()
    again.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(again.forward_features(images), model.forward_features(images), atol=0, rtol=0)


def test_the_licence_of_weights_that_forbid_commercial_use_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planted(monkeypatch, tmp_path, {"a": torch.zeros(1)}, ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1)
    torchvision_models.weights_path(ModelConfig(name="vit_b_16", weights="IMAGENET1K_SWAG_LINEAR_V1"))
    assert "not for commercial use" in caplog.text
