"""Networks side by side: each sees what it would see alone, and one head on all of them mixes their heads."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from common.errors import OptionError
from inference.classifier import Classifier, open_classifier
from inference.export import export
from inference.page.document import PagePicture, page_of
from trainers.config import from_dict, to_dict
from trainers.reporting.explanations.methods import heat_maps
from vit import ModelConfig, build_model, image_spec
from vit.anatomy import anatomy_of, recording
from vit.config import Network
from vit.ensemble import resizing


def ensemble_of(*networks, **options):
    return ModelConfig("ensemble", networks=networks, **options)


MIX = ensemble_of(Network("vit_stem_16", 64), Network("vit_nano_8", 32))
STAGES = Network("resnet18", 64, stages=True)
WITH_STAGES = ensemble_of(STAGES, Network("vit_nano_8", 32), weights="none")


@pytest.fixture(scope="module")
def ensemble():
    return build_model(MIX, num_classes=3).eval()


def pictures(side=64, n=4):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", [{"name": "ensemble"}, {"networks": MIX.networks}])
def test_a_name_alone_is_no_ensemble(options):
    with pytest.raises(OptionError, match="an ensemble has the name 'ensemble' and a list of networks"):
        ModelConfig(**options)


def test_ensemble_is_read_from_options_or_refused():
    assert from_dict(ModelConfig, to_dict(WITH_STAGES)) == WITH_STAGES
    with pytest.raises(OptionError, match="networks in the config lacks image_size"):
        from_dict(ModelConfig, {"name": "ensemble", "networks": [{"name": "vit_nano_8"}]})
    with pytest.raises(OptionError, match="unknown option 'networks.size' in the config"):
        from_dict(ModelConfig, {"name": "ensemble", "networks": [{"name": "vit_nano_8", "size": 32}]})


def test_features_of_stages_join_the_last_ones():
    config = ensemble_of(STAGES, Network("resnet18", 64), weights="none")
    model = build_model(config, num_classes=3).eval()
    model.views[1].network.load_state_dict(model.views[0].network.network.state_dict())
    plain, images, maps = model.views[1].network, pictures(image_spec(config).image_size), []
    with torch.no_grad():
        for stage in (plain.layer1, plain.layer2, plain.layer3, plain.layer4):
            stage.register_forward_hook(lambda _, given, made: maps.append(made.mean(dim=(2, 3))))
        expected = torch.cat([model.views[1](images), *maps], dim=1)
        torch.testing.assert_close(model.views[0](images), expected)
    assert model.widths == (512 + 64 + 128 + 256 + 512, 512)
    assert [level.stop - level.start for level in model.levels] == [512, 64, 128, 256, 512, 512]
    torch.testing.assert_close(deepcopy(model)(images), model(images))


def test_a_network_with_stages_is_explained():
    model = build_model(WITH_STAGES, num_classes=3).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    found = heat_maps(model, pictures(image_spec(WITH_STAGES).image_size))
    assert found.values.isfinite().all()
    assert found.values.std() > 0


def test_a_network_without_maps_has_no_stages():
    with pytest.raises(OptionError, match="only a convolutional network has stages"):
        build_model(ensemble_of(Network("vit_nano_8", 32, stages=True), weights="none"), num_classes=3)


@pytest.mark.parametrize(("before", "after"), [(64, 32), (37, 64), (146, 128)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resizing_is_that_of_torch(before, after, interpolation):
    images, rows = pictures(before), resizing(before, after, interpolation)
    expected = interpolate(images, size=(after, after), mode=interpolation, align_corners=False, antialias=True)
    torch.testing.assert_close(rows @ images @ rows.T, expected, atol=1e-4, rtol=1e-4)


def test_ensemble_shows_a_network_the_whole_picture(ensemble):
    alone = build_model("vit_stem_16", weights="tiny_imagenet", num_classes=3).eval()
    spec, own = image_spec(MIX), image_spec(ModelConfig("vit_stem_16", weights="tiny_imagenet"))
    assert spec.image_size == own.image_size == 64
    raw = pictures().clamp(-1, 1)  # as the ensemble normalises: mean and std 0.5
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (own.mean, own.std))
    with torch.no_grad(), recording([(anatomy_of(alone).head[0], "in")]) as seen:
        alone((0.5 * raw + 0.5 - mean) / std)
        torch.testing.assert_close(ensemble.views[0](raw), seen[0], atol=1e-4, rtol=1e-4)


def test_weights_on_one_network_make_its_head(ensemble):
    weight = torch.randn(3, ensemble.widths[1])
    with torch.no_grad():
        ensemble.head.weight.zero_()
        ensemble.head.weight[:, ensemble.columns[1]] = weight
        features = ensemble.views[1](pictures())
        torch.testing.assert_close(ensemble(pictures()), features @ weight.T)


def test_only_the_head_trains_where_only_it_shall():
    model = build_model(MIX, num_classes=3, trainable="head")
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {"head.weight", "head.bias"}
    assert not model.train().views[0].network.training


@pytest.mark.parametrize("option", [{"weights": "imagenet"}, {"pool": "mean"}])
def test_ensemble_refuses_options_of_its_networks(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        build_model(MIX, num_classes=3, **option)


def test_the_head_computes_in_float32_under_autocast(ensemble):
    head, features = ensemble.head, torch.randn(2, sum(ensemble.widths))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = torch.nn.functional.linear(features, head.weight, head.bias).float()
        assert not torch.equal(head(features), rounded)
        assert head(features).dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "safetensors"])
@pytest.mark.parametrize("config", [MIX, WITH_STAGES], ids=["plain", "stages"])
def test_export_of_an_ensemble_computes_the_same(kind, config, tmp_path):
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    ensemble = build_model(config, num_classes=3).eval()
    torch.nn.init.normal_(ensemble.head.weight, std=0.1)
    classifier = Classifier("ensemble", ensemble, image_spec(config), ("a", "b", "c"), config)
    parity, _ = export(classifier, kind, tmp_path / f"ensemble.{kind}")
    assert parity.good, parity


def test_page_of_an_ensemble_is_refused(ensemble, tmp_path):
    classifier = Classifier("runs/mix", ensemble, image_spec(MIX), ("a", "b", "c"), MIX)
    with pytest.raises(OptionError, match=r"runs/mix mixes several networks.* name the run"):
        page_of([classifier], [PagePicture("a", None, np.zeros((3, 8, 8), np.uint8))])


def test_autocast_rounds_no_picture_of_an_ensemble():
    model = build_model(MIX, num_classes=3).eval()
    (view,) = [view for view in model.views if view.rows is not None]
    images = pictures(image_spec(MIX).image_size)
    with recording([(view.network, "in")]) as given, torch.no_grad():
        view(images)
        with torch.autocast("cpu", torch.bfloat16):
            view(images)
    assert torch.equal(*given)


def test_an_ensemble_is_opened_from_its_own_file(ensemble, tmp_path):
    torch.nn.init.normal_(ensemble.head.weight)
    classifier = Classifier("an ensemble", ensemble, image_spec(MIX), ("ant", "bee", "cat"), MIX)
    export(classifier, "safetensors", tmp_path / "m.safetensors")
    opened = open_classifier(str(tmp_path / "m.safetensors"), device="cpu")
    images = pictures(opened.spec.image_size)
    torch.testing.assert_close(opened.logits(images), classifier.logits(images))
