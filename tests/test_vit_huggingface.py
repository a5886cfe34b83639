"""`hf:` models from a folder of random weights: what transformers computes, behind our factory."""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hub_backbones import BACKBONES, saved_backbone
from PIL import Image
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification
from transformers.utils import logging as transformers_logging

from common.errors import OptionError, WeightsError
from common.image_spec import HALF, ImageSpec
from datasets.transforms import Pipeline
from vit.anatomy import anatomy_of, recording
from vit.attention_maps import attention_weights, maps_of
from vit.config import ModelConfig
from vit.factory import build_model, image_spec
from vit.hub import hub_answers
from vit.param_groups import param_groups

transformers_logging.disable_progress_bar()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(**shape, image_size=16, patch_size=4, num_labels=5)).save_pretrained(tmp_path)
    return tmp_path


def reference(folder: Path) -> nn.Module:
    return ViTForImageClassification.from_pretrained(folder, attn_implementation="eager").eval()


def pictures(side: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_hf_folder_computes_as_transformers(folder: Path) -> None:
    model = build_model(f"hf:{folder}", num_classes=5).eval()
    expected = reference(folder)(pictures(), output_attentions=True)
    torch.testing.assert_close(model(pictures()), expected.logits, atol=1e-5, rtol=1e-5)
    logits, attention = attention_weights(model, pictures())
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention, list(expected.attentions), atol=1e-5, rtol=0)
    torch.testing.assert_close(model(pictures()), expected.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", BACKBONES)
def test_bare_backbone_is_a_whole_model(kind: str, tmp_path: Path) -> None:
    library = saved_backbone(kind, tmp_path)
    model = build_model(f"hf:{tmp_path}", num_classes=3, trainable="last:1").eval()
    assert not model(pictures()).any()
    head = anatomy_of(model).head[0]
    with recording([(head, "in")]) as features:
        torch.nn.init.normal_(head.weight)
        logits, attention = attention_weights(model, pictures())
    alone = library.vision_model if hasattr(library, "vision_model") else library
    if kind not in ("beit", "vit"):  # transformers has classifiers of these, which have heads of their own kind
        expected = alone(pixel_values=pictures())
        patches = expected.last_hidden_state[:, -16:].mean(dim=1)
        expected_features = torch.cat([expected.pooler_output, patches], dim=1)
        torch.testing.assert_close(features[0], expected_features, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(pictures()), logits, atol=1e-5, rtol=1e-5)
    assert [weights.shape[:2] for weights in attention] == [(2, 2)] * 3
    if kind != "siglip":  # which has no class token: no map of what it sees
        assert maps_of(model, pictures()).rollout.shape == (2, 4, 4)
    trains = [any(p.requires_grad for p in block.parameters()) for block in anatomy_of(model).blocks]
    assert trains == [False, False, True]
    again = build_model(f"hf:{tmp_path}", num_classes=3, weights="none").eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(pictures()), logits, atol=1e-5, rtol=1e-5)
    assert build_model(f"hf:{tmp_path}", num_classes=3, image_size=24)(pictures(24)).shape == (2, 3)
    names = {id(parameter): name for name, parameter in again.named_parameters()}
    [decaying] = [group["params"] for group in param_groups(again, weight_decay=0.1) if group["weight_decay"]]
    assert not [name for each in decaying if re.search("token|position|pos_embed", name := names[id(each)])]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (transformers.TimmWrapperConfig(architecture="vit_tiny_patch16_224"), "timm:vit_tiny_patch16_224$"),
        (transformers.ViTMAEConfig(), r"timm:vit_base_patch16_224\.mae$"),
        (transformers.DINOv3ConvNextConfig(), "neither an image classifier nor a ViT"),
        (transformers.BertConfig(), "neither an image classifier nor a ViT"),
    ],
)
def test_hf_models_that_are_read_elsewhere_are_refused(config: Any, named: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=named):
        build_model(f"hf:{tmp_path}", num_classes=5)


@pytest.mark.parametrize(
    ("kind", "options", "fit"),
    [
        ("ViTImageProcessor", {"size": {"height": 16, "width": 16}}, "squash"),
        ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}, "resample": 3}, "squash"),
        ("BitImageProcessor", {"size": {"shortest_edge": 20}, "crop_size": 16}, "crop"),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 16}, "crop_size": 16}, "crop"),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 16}, "crop_pct": 0.8}, "crop"),
    ],
)
def test_pictures_are_prepared_as_by_the_processor(kind: str, options: dict[str, Any], fit: str, folder: Path) -> None:
    processor = getattr(transformers, kind)(**options)
    processor.save_pretrained(folder)
    spec = image_spec(ModelConfig(name=f"hf:{folder}"))
    assert spec.fit == fit
    waves = np.sin(np.linspace(0, 6, 90))[:, None, None] + np.cos(np.linspace(0, 4, 60))[None, :, None] * [1, 0.5, -1]
    picture = Image.fromarray((127 + 60 * waves).clip(0, 255).astype(np.uint8))
    pipeline = Pipeline(spec)
    ours = pipeline([pipeline.store(picture)], seed=0, epoch=0, draws=np.zeros(1, np.int64))
    theirs = processor(picture, return_tensors="pt")["pixel_values"]
    assert (ours - theirs).abs().mean() < 2.5 / 255 / min(spec.std)


@pytest.mark.parametrize(("size", "fit"), [(16, "squash"), (None, "crop")])
def test_older_processor_with_one_size_squashes(size: Any, fit: str, folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": size, "do_resize": True}))
    assert image_spec(ModelConfig(name=f"hf:{folder}")).fit == fit


def test_a_size_that_a_model_does_not_take_is_refused(tmp_path: Path) -> None:
    shape = {"hidden_sizes": [16] * 3, "key_dim": [4] * 3, "depths": [1] * 3, "num_attention_heads": [2] * 3}
    settings = transformers.LevitConfig(image_size=64, num_labels=5, **shape)
    transformers.LevitForImageClassification(settings).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="does not take image_size=96: "):
        build_model(f"hf:{tmp_path}", num_classes=5, image_size=96)


def test_hf_model_interpolates_as_transformers(folder: Path) -> None:
    model = build_model(f"hf:{folder}", num_classes=5, image_size=24).eval()
    expected = reference(folder)(pictures(24), interpolate_pos_encoding=True).logits
    torch.testing.assert_close(model(pictures(24)), expected, atol=1e-5, rtol=1e-5)


def test_hf_model_takes_dropout_and_no_weights(folder: Path) -> None:
    model = build_model(f"hf:{folder}", num_classes=5, dropout=0.2, attention_dropout=0.3, weights="none")
    assert model.model.config.hidden_dropout_prob == 0.2
    assert model.model.config.attention_probs_dropout_prob == 0.3
    assert (model.eval()(pictures()) - reference(folder)(pictures()).logits).abs().max() > 1e-4


def test_spec_without_a_processor_has_halves(folder: Path) -> None:
    for size in (None, 32):
        spec = image_spec(ModelConfig(name=f"hf:{folder}", image_size=size))
        assert spec == ImageSpec(image_size=size or 16, mean=HALF, std=HALF)


def test_hf_resnet_takes_any_size(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4)
    ResNetForImageClassification(config).save_pretrained(tmp_path)
    model = build_model(f"hf:{tmp_path}", num_classes=3, image_size=40).eval()
    assert model(pictures(40)).shape == (2, 3)
    with pytest.raises(ValueError, match="ResNetForImageClassification returns no attention weights; a ViT does"):
        attention_weights(model, pictures(40))
    with pytest.raises(ValueError, match="has no option dropout, got 0.1") as refused:
        build_model(f"hf:{tmp_path}", num_classes=3, dropout=0.1)
    assert not isinstance(refused.value, WeightsError)


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"classifier.bias": torch.zeros(5)}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"hf:.*safetensors") as caught:
        build_model(f"hf:{folder}", num_classes=5)
    assert "\n" not in str(caught.value)


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(folder / 'ran')!r}).mkdir()")
    with pytest.raises(WeightsError) as caught:
        build_model(f"hf:{folder}", num_classes=5)
    assert "\n" not in str(caught.value)
    assert not (folder / "ran").exists()


def test_missing_model_and_useless_options_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"hf:.*nowhere") as caught:
        build_model(f"hf:{tmp_path / 'nowhere'}", num_classes=5)
    assert "\n" not in str(caught.value)
    for option in ({"stochastic_depth": 0.1}, {"pool": "mean"}, {"representation_size": 8}):
        with pytest.raises(ValueError, match=f"has no option {next(iter(option))}"):
            build_model(f"hf:{folder}", num_classes=5, **option)
    with pytest.raises(ValueError, match="takes 3 channels, got in_channels=1"):
        build_model(f"hf:{folder}", num_classes=5, in_channels=1)
    with pytest.raises(ValueError, match="brings its own weights"):
        build_model(f"hf:{folder}", num_classes=5, weights="w.pth")


@pytest.mark.parametrize("name", ["hf:org/model", "timm:vit_tiny_patch16_224"])
def test_a_hub_out_of_reach_is_asked_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("the library waits to try again"))
    with pytest.raises(WeightsError, match="neither in the cache nor to be had from https://huggingface.co/"):
        build_model(name, num_classes=2)


def test_missing_transformers_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (lambda: build_model(f"hf:{folder}", num_classes=5), lambda: image_spec(ModelConfig(f"hf:{folder}"))):
        with pytest.raises(ValueError, match="need the package transformers: pip install transformers"):
            call()


def test_a_hub_that_comes_back_is_found_a_minute_later() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler, bind_and_activate=False) as server:
        server.server_bind()
        url = f"http://127.0.0.1:{server.server_port}"
        assert not hub_answers(url, minute=1)
        server.server_activate()
        Thread(target=server.handle_request).start()
        assert not hub_answers(url, minute=1)
        assert hub_answers(url, minute=2)


def test_hub_folder_as_weights_keeps_spec_and_epsilon(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    config = ViTConfig(**shape, image_size=8, patch_size=2, layer_norm_eps=1e-6, num_labels=5)
    theirs = ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(image_mean=[0.4, 0.5, 0.6], image_std=[0.2] * 3, resample=3).save_pretrained(
        tmp_path
    )
    ours = ModelConfig("vit_micro_2", weights=str(tmp_path))
    spec = image_spec(ours)
    assert (spec.mean, spec.std, spec.interpolation) == ((0.4, 0.5, 0.6), (0.2, 0.2, 0.2), "bicubic")
    model = build_model(ours, num_classes=5).eval()
    assert model.norm.eps == 1e-6
    torch.testing.assert_close(model(pictures(8)), theirs(pictures(8)).logits, atol=1e-5, rtol=1e-5)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": "red"}')
    with pytest.raises(WeightsError, match="preprocessor_config.json"):
        image_spec(ours)


@pytest.mark.parametrize("content", ["{", "[1]", '{"image_mean": "red"}', '{"image_mean": 1}'])
def test_a_damaged_preprocessor_of_a_model_is_named(content: str, folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(content)
    with pytest.raises(WeightsError, match="preprocessor_config.json is not readable"):
        image_spec(ModelConfig(name=f"hf:{folder}"))


def test_weights_cut_into_parts_are_named(tmp_path: Path, folder: Path) -> None:
    model = ViTForImageClassification.from_pretrained(folder)
    model.save_pretrained(tmp_path / "cut", max_shard_size="5KB")
    with pytest.raises(FileNotFoundError, match=r"model.safetensors is cut into parts .* hf:"):
        build_model("vit_tiny_16", num_classes=5, weights=str(tmp_path / "cut"))
    assert build_model(f"hf:{tmp_path / 'cut'}", num_classes=5)(pictures()).shape == (2, 5)
