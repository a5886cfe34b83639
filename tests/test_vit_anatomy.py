"""One contract over families of models: what each library says of how its models are built holds."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from hub_backbones import BACKBONES, VISION, saved_backbone
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.swa_utils import AveragedModel

from common.errors import OptionError
from vit import ModelConfig, anatomy, build_model, image_spec
from vit.anatomy import anatomy_of, known_anatomy, recompute_activations
from vit.checkpoints import classes_in
from vit.config import Network
from vit.freezing import freeze
from vit.model import VisionTransformer
from vit.param_groups import param_groups
from vit.weight_files import WeightFile

STAGES = {"hidden_sizes": [8] * 4, "depths": [1, 1, 2, 1]}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2, 6, 2], "num_heads": [1, 2, 2, 2]}
CLASSIFIERS = {
    "ViT": VISION,
    "DeiT": VISION,
    "Dinov2": {name: value for name, value in VISION.items() if name != "intermediate_size"},
    "Swin": SWIN | {"window_size": 2},
    "Swinv2": SWIN | {"depths": [1, 1, 2, 1], "window_size": 2},
    "ConvNext": STAGES | {"image_size": 32},
    "ResNet": STAGES | {"embedding_size": 8},
    "RegNet": STAGES | {"embedding_size": 8, "groups_width": 4},
    "Bit": STAGES | {"embedding_size": 8, "num_groups": 4},
    "Pvt": STAGES | {"image_size": 32, "num_attention_heads": [1] * 4},
    "FocalNet": {"image_size": 32, "embed_dim": 8, "depths": [1, 1, 2, 1]},
    "MobileViT": {"image_size": 32},
}
"""Settings of small classifiers of transformers: with a pyramid of stages, and without."""
TIMM = (
    "test_vit", "test_convnext", "test_resnet", "test_efficientnet", "swin_tiny_patch4_window7_224", "regnety_002",
    "volo_d1_224", "mobilevit_xxs", "vit_small_patch14_reg4_dinov2", "eva02_tiny_patch14_224",
)  # fmt: skip
NETWORKS = (Network("vit_nano_8", 32), Network("resnet18", 32, stages=True))
FAMILIES = {
    **{name: {"name": name} for name in ("vit_micro_2", "vit_mini_16", "vit_stem_16", "vit_b_16", "resnet18")},
    "vit_nano_8 with a layer before the head": {"name": "vit_nano_8", "representation_size": 8},
    "efficientnet_lite0": {"name": "efficientnet_lite0"},
    **{f"timm:{name}": {"name": f"timm:{name}"} for name in TIMM},
    **{f"hf:{name}": {} for name in (*CLASSIFIERS, *BACKBONES)},
    "ensemble": {"name": "ensemble", "networks": NETWORKS},
}


@cache
def built(family: str) -> tuple[nn.Module, Tensor, tuple[str, ...]]:
    """Build a model without memory for its weights; return it, a batch for it, and its parameters in forward order."""
    with TemporaryDirectory() as folder:
        options = {"name": f"hf:{folder}"} | FAMILIES[family]
        if family.startswith("hf:"):
            save(family.removeprefix("hf:"), Path(folder))
        # Float32Linear asks for the autocast of its device, which a meta device has none of.
        device = torch.device("cpu" if family == "ensemble" else "meta")
        with device:
            model = build_model(ModelConfig(**options, weights="none"), num_classes=7).eval()
            spec = image_spec(ModelConfig(**options, weights="none"))
            images = torch.empty(2, spec.in_channels, spec.image_size, spec.image_size)
    return model, images, in_forward_order(model, images)


def save(kind: str, folder: Path) -> None:
    """Save a small model of transformers as a repository of the hub holds it, a classifier without its weights."""
    if kind in BACKBONES:
        saved_backbone(kind, folder)
    else:
        settings = getattr(transformers, f"{kind}Config")(**CLASSIFIERS[kind], num_labels=7)
        settings.architectures = [f"{kind}ForImageClassification"]
        settings.save_pretrained(folder)


def in_forward_order(model: nn.Module, images: Tensor) -> tuple[str, ...]:
    """Name all parameters in the order in which a pass asks for them: those of a module when it is called."""
    called = list[nn.Module]()
    with register_module_forward_pre_hook(lambda module, _: called.append(module)), torch.no_grad():
        model(images)
    place = {module: number for number, module in reversed([*enumerate(called)])}
    modules = dict(model.named_modules())

    def place_of(name: str) -> int:
        """Return the place of the module with this name, or of the one around it that was called."""
        found = place.get(modules[name])
        return place_of(name.rpartition(".")[0]) if found is None else found

    places = {name: place_of(name.rpartition(".")[0]) for name, _ in model.named_parameters()}
    return tuple(sorted(places, key=lambda name: places[name]))


@pytest.fixture
def family(request: pytest.FixtureRequest) -> str:
    if request.param.startswith(("timm:", "efficientnet")):
        pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
    return request.param


SLOW = (
    "vit_mini_16", "timm:mobilevit_xxs", "timm:eva02_tiny_patch14_224", "hf:Swinv2", "hf:ResNet", "hf:RegNet", "hf:Bit",
    "hf:FocalNet", "hf:MobileViT",
)  # fmt: skip
"""Families that are built like another one here."""
EVERY_FAMILY = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FAMILIES], indirect=True
)


@EVERY_FAMILY
def test_what_trains_lies_above_what_is_frozen(family: str) -> None:
    whole, _, order = built(family)
    model = copy.deepcopy(whole)
    weights = dict(model.named_parameters())
    for count in sorted({1, 2, len(anatomy_of(model).blocks)} - {0}):
        freeze(model, f"last:{count}")
        trains = [weights[name].requires_grad for name in order]
        assert all(trains[trains.index(True) :]), count


@EVERY_FAMILY
def test_rates_never_rise_towards_the_images(family: str) -> None:
    model, _, order = built(family)
    own, names = anatomy_of(model), {id(weight): name for name, weight in model.named_parameters()}
    groups = param_groups(model, weight_decay=0.1, layer_decay=0.5)
    scale = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    rates = [scale[name] for name in order]
    assert rates == sorted(rates)
    assert {scale[names[id(weight)]] for part in own.head for weight in part.parameters()} == {1}
    assert {*rates} >= {0.5**below for below in range(len(own.blocks) + 1)}


@EVERY_FAMILY
def test_parts_share_no_parameter(family: str) -> None:
    model, _, order = built(family)
    names = {id(weight): name for name, weight in model.named_parameters()}
    named = [names[id(weight)] for weight in in_parts(model)]
    assert len(named) == len({*named})
    assert {*named} == {*order[-len(named) :]}


@EVERY_FAMILY
def test_all_blocks_are_recomputed_or_none(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, _ = built(family)
    model, again = copy.deepcopy(model), list[nn.Module]()

    def noted(forward: Callable[..., Tensor], block: nn.Module, *args: Any, use_reentrant: bool, **named: Any) -> Any:
        again.append(block)
        return forward(block, *args, **named)

    monkeypatch.setattr(anatomy, "checkpoint", noted)
    blocks = anatomy_of(model).blocks
    if not blocks or any(isinstance(module, nn.BatchNorm2d) for block in blocks for module in block.modules()):
        with pytest.raises(OptionError, match="^checkpoint_activations: .*$"):
            recompute_activations([*blocks])
        return
    recompute_activations([*blocks])
    model(images)
    assert not again
    model.train()(images)
    of_blocks = {weight for block in blocks for weight in block.parameters()}
    assert of_blocks == {weight for layer in again for weight in layer.parameters()}


@EVERY_FAMILY
def test_head_and_stem_are_named_as_in_a_file(family: str) -> None:
    model, images, order = built(family)
    own, tensors = anatomy_of(model), model.state_dict()
    assert len(tensors[f"{own.head_name}.weight"]) == 7
    file = WeightFile(Path("weights.pth"), tensors)
    if family.startswith(("hf:", "ensemble")):  # they read their own
        with pytest.raises(OptionError, match="^.* is not a model that weights load into$"):
            classes_in(file, model)
        return
    assert classes_in(file, model) == 7
    headless = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{own.head_name}.")}
    assert classes_in(WeightFile(Path("weights.pth"), headless), model) is None
    assert own.stem is not None
    assert tensors[own.stem].size(1) == images.size(1)
    assert own.stem in order[: len(order) - len(list(in_parts(model)))]


def in_parts(model: nn.Module) -> Iterator[nn.Parameter]:
    own = anatomy_of(model)
    return (weight for part in (*own.blocks, *own.norms, *own.head) for weight in part.parameters())


def test_copies_and_wrapped_models_are_built_alike() -> None:
    class OfAProgram(VisionTransformer):
        """A class of a program that extends one of this project."""

    model = OfAProgram(image_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=2)
    averaged = AveragedModel(model).module
    for other in (model, copy.deepcopy(model), averaged, torch.compile(model)):
        own = anatomy_of(other)
        assert [*own.blocks] == [*getattr(other, "_orig_mod", other).blocks]
        assert own.positions == "embedding.positions"


def test_a_model_of_no_library_is_said_to_be_unknown() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert known_anatomy(model) is None
    with pytest.raises(OptionError, match="^Sequential is not a model of this project"):
        anatomy_of(model)
