"""Networks side by side: each sees what it would see alone, and one head on all of them mixes their heads."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import interpolate

import vit
from common.errors import OptionError
from inference.classifier import Classifier
from inference.export import export
from trainers.reporting.explanations.methods import heat_maps
from vit import ModelConfig, build_model, image_spec
from vit.mixture import Network, name_of, networks_in, resizing
from vit.parts import inputs_of, parts

WEIGHTS = Path(vit.__file__).parent / "weights" / "vit_nano_8-fashion_mnist.safetensors"

MIX = "mix:vit_stem_16@64+vit_nano_8@32"


@pytest.fixture(scope="module")
def mixture():
    return build_model(MIX, num_classes=3).eval()


def pictures(side=64, n=4):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_a_name_is_read_as_it_is_written():
    networks = networks_in("mix:efficientnet_lite0@224+vit_stem_16@64:tuned")
    assert networks == (Network("efficientnet_lite0", 224), Network("vit_stem_16", 64, tuned=True))
    assert name_of(networks) == "mix:efficientnet_lite0@224+vit_stem_16@64:tuned"


def test_features_of_the_stages_stand_beside_the_last_ones():
    name = "mix:resnet18@64:stages+resnet18@64"
    assert name_of(networks_in(name)) == name
    model = build_model(name, num_classes=3, weights="none").eval()
    model.views[1].network.load_state_dict(model.views[0].network.network.state_dict())
    plain, images, maps = model.views[1].network, pictures(image_spec(ModelConfig(name)).image_size), []
    with torch.no_grad():
        for stage in (plain.layer1, plain.layer2, plain.layer3, plain.layer4):
            stage.register_forward_hook(lambda _, given, made: maps.append(made.mean(dim=(2, 3))))
        expected = torch.cat([model.views[1](images), *maps], dim=1)
        torch.testing.assert_close(model.views[0](images), expected)
    assert model.widths == (512 + 64 + 128 + 256 + 512, 512)
    assert [level.stop - level.start for level in model.levels] == [512, 64, 128, 256, 512, 512]
    torch.testing.assert_close(deepcopy(model)(images), model(images))


def test_a_network_with_stages_is_explained_by_all_that_it_adds():
    model = build_model("mix:resnet18@64:stages+vit_nano_8@32", num_classes=3, weights="none").eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    found = heat_maps(model, pictures(image_spec(ModelConfig("mix:resnet18@64:stages+vit_nano_8@32")).image_size))
    assert [part.name for part in found.parts] == ["resnet18@64:stages", "vit_nano_8@32"]
    logits = found.logits - model.head.bias.detach()
    expected = logits.gather(1, found.classes[:, None])[:, 0] - logits.mean(dim=1)
    torch.testing.assert_close(sum(part.spoke for part in found.parts), expected, atol=1e-3, rtol=1e-3)
    assert found.parts[0].values.isfinite().all()
    assert found.parts[0].values.std() > 0


def test_a_network_without_maps_has_no_stages():
    with pytest.raises(OptionError, match="only a convolutional network has :stages"):
        build_model("mix:vit_nano_8@32:stages", num_classes=3, weights="none")


@pytest.mark.parametrize("name", ["mix:vit_stem_16", "mix:vit_stem_16@", "mix:a@64+", "mix:mix:vit_stem_16@64"])
def test_another_form_of_name_is_refused(name):
    with pytest.raises(OptionError, match="is not NAME@SIZE"):
        build_model(name, num_classes=3)


@pytest.mark.parametrize(("before", "after"), [(64, 32), (37, 64), (146, 128)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_is_that_of_torch(before, after, interpolation):
    images, rows = pictures(before), resizing(before, after, interpolation)
    expected = interpolate(images, size=(after, after), mode=interpolation, align_corners=False, antialias=True)
    torch.testing.assert_close(rows @ images @ rows.T, expected, atol=1e-4, rtol=1e-4)


def test_a_network_of_the_size_of_the_picture_sees_what_it_sees_alone(mixture):
    alone = build_model("vit_stem_16", weights="tiny_imagenet", num_classes=3).eval()
    spec, own = image_spec(ModelConfig(MIX)), image_spec(ModelConfig("vit_stem_16", weights="tiny_imagenet"))
    assert spec.image_size == own.image_size == 64
    raw = pictures().clamp(-1, 1)  # as the mixture normalises: mean and std 0.5
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (own.mean, own.std))
    with torch.no_grad(), inputs_of(parts(alone).head[0]) as seen:
        alone((0.5 * raw + 0.5 - mean) / std)
        torch.testing.assert_close(mixture.views[0](raw), seen[0], atol=1e-4, rtol=1e-4)


def test_weights_on_one_network_make_its_head(mixture):
    weight = torch.randn(3, mixture.widths[1])
    with torch.no_grad():
        mixture.head.weight.zero_()
        mixture.head.weight[:, mixture.columns[1]] = weight
        features = mixture.views[1](pictures())
        torch.testing.assert_close(mixture(pictures()), features @ weight.T)


def test_a_mixture_is_rebuilt_from_its_tensors_alone(mixture):
    torch.nn.init.normal_(mixture.head.weight)
    again = build_model(MIX, num_classes=3, weights="none").eval()
    assert not torch.equal(again(pictures()), mixture(pictures()))
    again.load_state_dict(mixture.state_dict())
    assert torch.equal(again(pictures()), mixture(pictures()))


def test_only_the_head_trains_where_only_it_shall():
    model = build_model(MIX, num_classes=3, trainable="head")
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {"head.weight", "head.bias"}
    assert not model.train().views[0].network.training


def test_weights_of_a_run_belong_to_a_network_that_is_marked(tmp_path):
    with pytest.raises(OptionError, match="tuned"):
        build_model(MIX, num_classes=3, weights=str(WEIGHTS))


def test_the_head_computes_in_float32_under_autocast(mixture):
    head, features = mixture.head, torch.randn(2, sum(mixture.widths))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert (
            torch.equal(head(features), torch.nn.functional.linear(features, head.weight, head.bias).float()) is False
        )
        assert head(features).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
@pytest.mark.parametrize("name", [MIX, "mix:resnet18@64:stages+vit_nano_8@32"])
def test_an_export_of_a_mixture_is_one_file_that_computes_the_same(kind, name, tmp_path):
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    config = ModelConfig(name, weights="none")
    mixture = build_model(config, num_classes=3).eval()
    torch.nn.init.normal_(mixture.head.weight, std=0.1)
    classifier = Classifier("mixture", mixture, image_spec(config), ("a", "b", "c"), config)
    parity, _ = export(classifier, kind, tmp_path / f"mixture.{kind}")
    assert parity.good, parity
