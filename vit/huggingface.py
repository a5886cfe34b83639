"""Hugging Face models by id or folder (`hf:google/vit-base-patch16-224`), when `transformers` is installed: image
classifiers, and backbones that have no classifier of their own (DINOv3, ViT-MAE, the picture half of CLIP and SigLIP).

transformers is imported inside the functions, so that one line says how to get it. Weights are read from .safetensors;
code that comes with a model is never run.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from common.errors import NoAttention, OptionError, WeightsError, import_optional
from common.image_spec import HALF, ImageSpec
from vit.config import HF_PREFIX, ModelConfig, refuse_options
from vit.convolutions import quick_on_processors
from vit.hub import hub_access
from vit.parts import Parts

_LACKS = ("stochastic_depth", "pool", "patch_embedding", "representation_size", "attention", "weights_source")
_TIMM = "timm_wrapper"
_RESAMPLE: dict[int, Literal["nearest", "bilinear", "bicubic"]] = {0: "nearest", 2: "bilinear", 3: "bicubic"}


class HuggingFaceBackbone(nn.Module):
    """A transformers model without a classifier, and a Linear on what DINOv2's authors give it (Oquab et al. 2023,
    arXiv:2304.07193): what the model itself pools, or else its class token, beside the mean of the patches."""

    def __init__(self, model: Any, *, example: Tensor, options: dict[str, bool], num_classes: int) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        names = [name.rpartition(".")[2] for name, _ in model.named_parameters()]
        self.class_tokens = int("cls_token" in names or "class_embedding" in names)
        with torch.no_grad():
            width = self.features(model(pixel_values=example, **options)).size(1)
        self.classifier = nn.Linear(width, num_classes)

    def features(self, output: Any) -> Tensor:
        """(B, D) or (B, 2 D)"""
        tokens, pooled = output.last_hidden_state, output.get("pooler_output")
        before = self.class_tokens + extra_tokens(self.config)
        features = [tokens[:, before:].mean(dim=1)]
        if pooled is not None or self.class_tokens:
            features.insert(0, tokens[:, 0] if pooled is None else pooled)
        return torch.cat(features, dim=1)

    def forward(self, pixel_values: Tensor, **options: Any) -> Any:
        output = self.base_model(pixel_values=pixel_values, **options)
        output["logits"] = self.classifier(self.features(output))
        return output

    def set_attn_implementation(self, name: str) -> None:
        self.base_model.set_attn_implementation(name)


def extra_tokens(settings: Any) -> int:
    """Tokens between the class token and the patches: registers (Darcet et al. 2023), DeiT's for its teacher."""
    return getattr(settings, "num_register_tokens", 0) + (getattr(settings, "model_type", "") == "deit")


class HuggingFaceClassifier(nn.Module):
    """A transformers classifier that takes images and returns logits, as every model here does."""

    def __init__(self, model: Any, *, options: dict[str, bool]) -> None:
        super().__init__()
        self.model, self.options = model, options
        self.extra_tokens = extra_tokens(model.config)
        """Tokens between the class token and the patches, which have no place on a map."""

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> logits (B, classes)."""
        return self.model(pixel_values=images, **self.options).logits

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, C, S, S) -> logits (B, classes) and per layer the attention weights (B, H, T, T)."""
        # transformers tells it by no public name; without it no map of these models (test_vit_huggingface.py).
        usual = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")  # the fused kernels do not return weights
        try:
            output = self.model(pixel_values=images, output_attentions=True, **self.options)
        finally:
            self.model.set_attn_implementation(usual)
        if not output.get("attentions"):
            raise NoAttention(f"{type(self.model).__name__} returns no attention weights; a ViT does")
        return output.logits, list(output.attentions)

    def find_parts(self) -> Parts:
        """Blocks: the longest list of layers. Norms: what the base model holds beside it by the name of a norm."""
        lists = [list(module) for module in self.model.modules() if isinstance(module, nn.ModuleList)]
        blocks = max(lists, key=len, default=[])
        base = self.model.base_model
        norms = [module for name, module in base.named_children() if "norm" in name]
        return Parts(blocks, norms, [self.model.classifier])


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """The classifier that `config.name` means, with its weights; a new zero head where `num_classes` is not its own.
    Raises OptionError: an option this model does not have. MissingPackage: no transformers. WeightsError: no such model
    here or on the hub, or no .safetensors."""
    refuse_options(config, _LACKS)
    if config.weights not in (None, "none"):
        raise OptionError(f"{config.name} brings its own weights; weights={config.weights!r} must be none or left out")
    settings = _settings(config)
    described = settings.to_dict()
    settings.update(_changes(config, described))
    model = _load(config, settings).float()
    channels = described.get("num_channels", 3)
    if config.in_channels != channels:
        raise OptionError(f"{config.name} takes {channels} channels, got in_channels={config.in_channels}")
    size = config.image_size or native_size(config)
    example = torch.zeros(1, channels, size, size)
    try:
        whole = _classifier(model, example, num_classes)
        with torch.no_grad():
            whole.eval()(example)  # some sizes are refused in no other way
    except (AssertionError, RuntimeError, ValueError) as error:
        if isinstance(error, OptionError) or size == native_size(config):  # whose size is not at fault
            raise
        raise OptionError(f"{config.name} does not take image_size={size}: {str(error).splitlines()[0]}") from error
    return whole.train()


def _classifier(model: Any, example: Tensor, num_classes: int) -> nn.Module:
    """The library's model as a classifier of `num_classes`; a new head is zero."""
    if model.config.model_type == _TIMM:  # timm's own model, as vit/timm_models.py returns it
        if model.timm_model.num_classes != num_classes:
            model.timm_model.reset_classifier(num_classes)
            _zero(model.timm_model.get_classifier())
        return quick_on_processors(model.timm_model)
    options = _options(model, example.size(-1))
    if not _classifies(model.config):
        model = HuggingFaceBackbone(model.eval(), example=example, options=options, num_classes=num_classes)
        _zero(model.classifier)
    _replace_head(model, num_classes)
    return HuggingFaceClassifier(model, options=options)


def _options(model: Any, image_size: int) -> dict[str, bool]:
    """Return what the model's forward needs to be told. Without learnt positions (a ResNet, a ConvNeXt, DINOv3) or
    where they are always interpolated (DINOv2) any size goes in as it is."""
    other = image_size != getattr(model.config, "image_size", image_size)
    accepts = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    return {"interpolate_pos_encoding": True} if accepts and other else {}


def _load(config: ModelConfig, settings: Any) -> Any:
    """The library's model: a classifier where it has a class for that, else the bare backbone."""
    library = _transformers()
    kind = library.AutoModelForImageClassification if _classifies(settings) else library.AutoModel
    with _refusals_of_the_hub(config):
        if config.weights == "none":
            return kind.from_config(settings, trust_remote_code=False)
        if not _classifies(settings):
            kind = library.models.auto.modeling_auto.MODEL_MAPPING[type(settings)]  # AutoModel would read both halves
            return kind.from_pretrained(_source(config), config=settings, use_safetensors=True)
        return kind.from_pretrained(_source(config), config=settings, use_safetensors=True, trust_remote_code=False)


def _classifies(settings: Any) -> bool:
    known = _transformers().models.auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    return type(settings) in known


def native_size(config: ModelConfig) -> int:
    settings = _settings(config)
    size = getattr(settings, "pretrained_cfg", {}).get("input_size") or getattr(settings, "image_size", None) or 224
    return size if isinstance(size, int) else size[-1]


def image_spec(config: ModelConfig) -> ImageSpec:
    """The values of the model's `preprocessor_config.json`; .5 where it has none.

    One thing differs: processors that squash a picture and then crop it (DeiT) keep its proportions here.
    """
    settings, cached_file = _settings(config), _transformers().utils.cached_file
    native, of_timm = native_size(config), getattr(settings, "pretrained_cfg", None)
    if of_timm:
        mean, std = tuple(of_timm["mean"]), tuple(of_timm["std"])
        return ImageSpec(native, mean, std, of_timm["interpolation"], crop_fraction=of_timm["crop_pct"])
    with _refusals_of_the_hub(config):
        path = cached_file(_source(config), "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
    values = json.loads(Path(path).read_text()) if path else {}
    resized, cropped = _side(values.get("size")), _side(values.get("crop_size"))
    kept = cropped / resized if values.get("do_center_crop") and resized and cropped else None
    square = isinstance(values.get("size"), int) or "height" in (values.get("size") or ())
    if "crop_pct" in values:  # of a ConvNeXt, which squashes large pictures only
        square = resized is not None and resized >= 384
    return ImageSpec(
        image_size=native,
        mean=tuple(values.get("image_mean", HALF)),
        std=tuple(values.get("image_std", HALF)),
        interpolation=_RESAMPLE.get(values.get("resample", 2), "bicubic"),
        crop_fraction=values.get("crop_pct") or min(1.0, kept or 1.0),
        fit="squash" if square and not kept else "crop",
    )


def class_names_of(config: ModelConfig) -> tuple[str, ...]:
    """Return the class names of the classifier that `config.name` means."""
    names = {int(index): str(name) for index, name in _settings(config).id2label.items()}
    return tuple(names[index] for index in range(len(names)))


def weights_path(config: ModelConfig) -> None:
    """Nothing to load: `build` does it."""


def _source(config: ModelConfig) -> str:
    return config.name.removeprefix(HF_PREFIX)


def _settings(config: ModelConfig) -> Any:
    """The image tower's settings for CLIP and SigLIP; for ViT-MAE those of the equivalent plain ViT (He et
    al. 2021, arXiv:2111.06377: the same names, the same numbers)."""
    library = _transformers()
    with _refusals_of_the_hub(config):
        settings = library.AutoConfig.from_pretrained(_source(config), trust_remote_code=False)
    if settings.model_type == "vit_mae":
        return library.ViTConfig.from_dict(settings.to_dict() | {"model_type": "vit"})
    return getattr(settings, "vision_config", settings)


def _changes(config: ModelConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Our options under the names of transformers."""
    changes: dict[str, Any] = {} if config.layer_norm_eps is None else {"layer_norm_eps": config.layer_norm_eps}
    names = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    for option, name in names.items():
        value = getattr(config, option)
        if name in settings:
            changes[name] = value
        elif value:
            raise OptionError(f"{config.name} has no option {option}, got {value}")
    return changes


def _side(size: Any) -> int | None:
    """Pixels of `224`, `{"height": 224, "width": 224}` or `{"shortest_edge": 256}`."""
    if isinstance(size, dict):
        return size.get("shortest_edge") or size.get("height")
    return size


def _replace_head(model: Any, num_classes: int) -> None:
    head: Any = getattr(model, "classifier", None)
    name = "classifier"
    if isinstance(head, nn.Sequential):
        head, name = head[-1], f"classifier.{len(head) - 1}"
    if not isinstance(head, nn.Linear):
        raise OptionError(
            f"{type(model).__name__} does not end in a Linear named `classifier`: its head cannot be replaced"
        )
    if head.out_features != num_classes:
        model.set_submodule(name, _zero(nn.Linear(head.in_features, num_classes)))
        model.config.num_labels = model.num_labels = num_classes


def _zero(head: nn.Linear) -> nn.Linear:
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _transformers() -> Any:
    return import_optional(
        "transformers", "models named hf:... need the package transformers: pip install transformers"
    )


@contextmanager
def _refusals_of_the_hub(config: ModelConfig) -> Iterator[None]:
    """Turn what transformers says in many lines into one."""
    try:
        with hub_access(online=not Path(_source(config)).is_dir()):
            yield
    except (OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        if "couldn't connect" in reason:
            page = f"https://huggingface.co/{_source(config)}"
            reason = f"neither in the cache nor to be had from {page}; fetch its files and name their folder: hf:FOLDER"
        raise WeightsError(f"{config.name}: {reason}") from None
