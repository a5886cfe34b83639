"""Every registered model keeps one contract; names, options and preprocessing are judged before it is built."""

import inspect

import pytest
import torch
from every_model import EVERY_MODEL

from common.errors import OptionError
from common.image_spec import HALF, ImageSpec
from vit.config import MODEL_NAMES, ModelConfig
from vit.factory import MODELS, Blueprint, Library, build_model, image_spec, library

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


def test_every_model_has_a_name_and_a_row():
    assert set(MODELS) == set(MODEL_NAMES) == set(PARAMETERS)


@pytest.mark.parametrize("name", [*MODELS, "hf:anything", "timm:anything"])
def test_every_row_leads_to_what_a_library_offers(name):
    offered = vars(library(name))
    for member in ("build", "native_size", "image_spec", "weights_path"):
        asked = inspect.signature(vars(Library)[member]).parameters
        assert list(inspect.signature(offered[member]).parameters) == [word for word in asked if word != "self"]


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts_are_those_published(name):
    with torch.device("meta"):
        model = build_model(name, num_classes=1000, weights="none")
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@EVERY_MODEL
def test_a_model_takes_images_of_its_spec(name):
    with torch.device("meta"):
        spec = image_spec(ModelConfig(name=name, weights="none"))
        model = build_model(name, num_classes=7, weights="none")
        assert model(torch.empty(2, spec.in_channels, spec.image_size, spec.image_size)).shape == (2, 7)
    assert spec.mean == spec.std == HALF


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("vit_tny_16", {}, f"^unknown model 'vit_tny_16'; did you mean vit_tiny_16.*: {', '.join(MODEL_NAMES)}, hf:"),
        ("auto", {}, "model `auto` depends on the data"),
        ("vit_micro_2", {"num_classes": 0}, "num_classes=0 must be at least 1"),
        ("vit_b_16", {"weights": "SWAG_E2E_V1"}, "has no weights 'SWAG_E2E_V1'; known: imagenet, IMAGENET1K_V1"),
        ("vit_b_16", {"image_size": 100, "weights": "none"}, "image_size=100 is not divisible by patch_size=16"),
        ("vit_b_16", {"stochastic_depth": 0.1}, "has no option stochastic_depth"),
        ("resnet18", {"pool": "mean"}, "has no option pool"),
        ("resnet18", {"patch_embedding": "stem"}, "has no option patch_embedding"),
    ],
)
def test_what_cannot_be_built_is_refused(name, options, said):
    with pytest.raises(OptionError, match=said):
        build_model(name, **({"num_classes": 2} | options))


def test_every_option_reaches_the_scratch_model():
    shape = {"image_size": 4, "in_channels": 1, "pool": "mean", "patch_embedding": "stem", "representation_size": 6}
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "stochastic_depth": 0.3}
    model = build_model("vit_micro_2", num_classes=2, weights="none", **shape, **rates, layer_norm_eps=1e-5)
    config = model.config
    assert (config.in_channels, config.pool, config.patch_embedding) == (1, "mean", "stem")
    assert (config.representation_size, config.layer_norm_eps) == (6, 1e-5)
    assert model.embedding.dropout.p == model.blocks[0].mlp.dropout.p == 0.1
    assert {block.attention.dropout for block in model.blocks} == {0.2}
    assert model.blocks[-1].stochastic_depth.probability == 0.3
    assert model(torch.randn(2, 1, 4, 4)).shape == (2, 2)


def test_image_spec_follows_channels_size_and_options():
    grey = image_spec(ModelConfig("vit_b_16", in_channels=1))
    small = image_spec(ModelConfig("vit_b_16", image_size=96))
    assert grey.mean == (pytest.approx(0.449, abs=1e-3),)  # of the three colours
    assert (small.image_size, small.crop_fraction) == (96, 0.875)  # the same share of the picture
    given = image_spec(ModelConfig("vit_micro_2", mean=(0.1,), std=(0.2, 0.3, 0.4)))
    assert (given.mean, given.std) == ((0.1, 0.1, 0.1), (0.2, 0.3, 0.4))


def test_a_foreign_file_brings_its_preprocessing(tmp_path):
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
    assert torch.equal(again.forward_features(images), model.forward_features(images))
