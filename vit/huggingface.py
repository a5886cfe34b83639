"""Hugging Face image classifiers by id or folder (`hf:google/vit-base-patch16-224`), when `transformers` is installed.

transformers is imported inside the functions, so that one line says how to get it. Weights are read from .safetensors;
code that comes with a model is never run.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from vit.config import AT_HAND, HALF, HF_PREFIX, ImageSpec, ModelConfig, refuse_options
from vit.errors import WeightsError, imported
from vit.parts import Parts

_LACKS = ("stochastic_depth", "pool", "patch_embedding", "representation_size", "attention", "weights_source")
_RESAMPLE: dict[int, Literal["nearest", "bilinear", "bicubic"]] = {0: "nearest", 2: "bilinear", 3: "bicubic"}


class HuggingFaceClassifier(nn.Module):
    """A transformers classifier that takes images and returns logits, as every model here does."""

    def __init__(self, model: Any, *, image_size: int) -> None:
        super().__init__()
        self.model = model
        settings = model.config.to_dict()
        native = settings.get("image_size", image_size)
        accepts = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        if image_size != native and "patch_size" in settings and not accepts:
            raise ValueError(f"{type(model).__name__} takes image_size={native} only, got {image_size}")
        # Without positions (a ResNet, a ConvNeXt) there is nothing to interpolate: any size goes in as it is.
        self.options = {"interpolate_pos_encoding": True} if accepts and image_size != native else {}

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> logits (B, classes)."""
        return self.model(pixel_values=images, **self.options).logits

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, C, S, S) -> logits (B, classes) and per layer the attention weights (B, H, T, T)."""
        usual = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")  # the fused kernels do not return weights
        try:
            output = self.model(pixel_values=images, output_attentions=True, **self.options)
        finally:
            self.model.set_attn_implementation(usual)
        if not output.get("attentions"):
            raise ValueError(f"{type(self.model).__name__} returns no attention weights; a ViT does")
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
    Raises ValueError: transformers is not installed, or an option this model does not have. WeightsError: no such model
    here or on the hub, or no .safetensors."""
    auto = _transformers().AutoModelForImageClassification
    refuse_options(config, _LACKS)
    if config.weights not in (None, "none"):
        raise ValueError(f"{config.name} brings its own weights; weights={config.weights!r} must be none or left out")
    settings = _settings(config)
    described = settings.to_dict()
    settings.update(_changes(config, described))
    with _refusals_of_the_hub(config):
        if config.weights == "none":
            model = auto.from_config(settings, trust_remote_code=False)
        else:
            model = auto.from_pretrained(
                _source(config), config=settings, use_safetensors=True, trust_remote_code=False
            )
    channels = described.get("num_channels", 3)
    if config.in_channels != channels:
        raise ValueError(f"{config.name} takes {channels} channels, got in_channels={config.in_channels}")
    _replace_head(model, num_classes)
    return HuggingFaceClassifier(model.float(), image_size=config.image_size or described.get("image_size") or 224)


def native_size(config: ModelConfig) -> int:
    return _settings(config).to_dict().get("image_size") or 224


def image_spec(config: ModelConfig) -> ImageSpec:
    """The values of the model's `preprocessor_config.json`; .5 where it has none.

    One thing differs: many Hugging Face processors squeeze the picture into a square, here it keeps its proportions.
    """
    native, cached_file = native_size(config), _transformers().utils.cached_file
    with _refusals_of_the_hub(config):
        path = cached_file(_source(config), "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
    values = json.loads(Path(path).read_text()) if path else {}
    resized, cropped = _side(values.get("size")), _side(values.get("crop_size"))
    return ImageSpec(
        image_size=config.image_size or native,
        mean=tuple(values.get("image_mean", HALF)),
        std=tuple(values.get("image_std", HALF)),
        interpolation=_RESAMPLE.get(values.get("resample", 2), "bicubic"),
        crop_fraction=min(1.0, cropped / resized) if values.get("do_center_crop") and resized and cropped else 1.0,
    )


def class_names_of(config: ModelConfig) -> tuple[str, ...]:
    """What the outputs of the classifier that `config.name` means stand for."""
    names = {int(index): str(name) for index, name in _settings(config).id2label.items()}
    return tuple(names[index] for index in range(len(names)))


def weights_path(config: ModelConfig) -> None:
    """Nothing to load: `build` does it."""


def _source(config: ModelConfig) -> str:
    return config.name.removeprefix(HF_PREFIX)


def _settings(config: ModelConfig) -> Any:
    auto = _transformers().AutoConfig
    with _refusals_of_the_hub(config):
        return auto.from_pretrained(_source(config), trust_remote_code=False)


def _changes(config: ModelConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Our options under the names of transformers."""
    changes: dict[str, Any] = {}
    for option, name, value in (
        ("dropout", "hidden_dropout_prob", config.dropout),
        ("attention_dropout", "attention_probs_dropout_prob", config.attention_dropout),
    ):
        if name in settings:
            changes[name] = value
        elif value:
            raise ValueError(f"{config.name} has no option {option}, got {value}")
    if config.layer_norm_eps is not None:
        changes["layer_norm_eps"] = config.layer_norm_eps
    return changes


def _side(size: Any) -> int | None:
    """Pixels of `224`, `{"height": 224, "width": 224}` or `{"shortest_edge": 256}`."""
    if isinstance(size, dict):
        return size.get("shortest_edge") or size.get("height")
    return size


def _replace_head(model: Any, num_classes: int) -> None:
    head = dict(model.named_children()).get("classifier")
    last = head[-1] if isinstance(head, nn.Sequential) else head
    if not isinstance(last, nn.Linear):
        raise ValueError(
            f"{type(model).__name__} does not end in a Linear named `classifier`: its head cannot be replaced"
        )
    if last.out_features != num_classes:
        new = nn.Linear(last.in_features, num_classes)
        nn.init.zeros_(new.weight)
        nn.init.zeros_(new.bias)
        if isinstance(head, nn.Sequential):
            head[-1] = new
        else:
            model.classifier = new
        model.config.num_labels = model.num_labels = num_classes


def _transformers() -> Any:
    return imported("transformers", "models named hf:... need the package transformers: pip install transformers")


@contextmanager
def _refusals_of_the_hub(config: ModelConfig) -> Iterator[None]:
    """Turn what transformers says in many lines into one; keep it from the network where nobody asked for that."""
    hub: Any = import_module("huggingface_hub.constants")
    usual = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = usual or AT_HAND.get()
    try:
        yield
    except (OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise WeightsError(f"{config.name}: {lines[0] if lines else type(error).__name__}") from None
    finally:
        hub.HF_HUB_OFFLINE = usual
