"""Build Hugging Face models by id or folder, such as `hf:google/vit-base-patch16-224`.

These are image classifiers, and ViTs without a classifier (DINOv3, the image encoders of CLIP and SigLIP).
transformers is imported inside the functions, so that one line says how to get it. Weights are read from .safetensors;
code that comes with a model is never run.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import NoAttention, OptionError, WeightsError, import_optional
from common.image_spec import ImageSpec
from vit.anatomy import Anatomy, count_parameters, grid_positions, outermost, zero_
from vit.config import HF_PREFIX, ModelConfig, refuse_options
from vit.hub import hub_access, spec_of_processor
from vit.weight_files import damage_named

_LACKS = ("stochastic_depth", "pool", "patch_embedding", "representation_size")
_BETTER_IN_TIMM = ("timm_wrapper", "vit_mae")  # the second hides most patches, at random


class HuggingFaceBackbone(nn.Module):
    """Classify by a Linear on a transformers ViT that has no classifier.

    It reads what the ViT pools, else its class token, and the mean of its patches (DINOv2: Oquab et al. 2023,
    arXiv:2304.07193)."""

    def __init__(self, model: Any, *, num_classes: int) -> None:
        super().__init__()
        self.base_model, self.config = model, model.config
        names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
        self.class_tokens = len(names & {"cls_token", "class_embedding"})
        self.classifier = zero_(nn.Linear(2 * model.config.hidden_size, num_classes))

    def forward(self, pixel_values: Tensor, **options: Any) -> Any:
        output = self.base_model(pixel_values=pixel_values, **options)
        tokens, pooled = output.last_hidden_state, output.get("pooler_output")  # (B, T, D), (B, D)
        patches = tokens[:, self.class_tokens + extra_tokens(self.config) :]
        first = tokens[:, 0] if pooled is None else pooled
        output["logits"] = self.classifier(torch.cat([first, patches.mean(dim=1)], dim=1))
        return output

    def set_attn_implementation(self, name: str) -> None:
        self.base_model.set_attn_implementation(name)


def extra_tokens(settings: Any) -> int:
    """Count tokens between the class token and the patches: registers (Darcet et al. 2023), DeiT's for its teacher."""
    return getattr(settings, "num_register_tokens", 0) + (getattr(settings, "model_type", "") == "deit")


class HuggingFaceClassifier(nn.Module):
    """Let a transformers classifier take images and return logits."""

    def __init__(self, model: Any, *, options: dict[str, bool]) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> logits (B, classes)."""
        return self.model(pixel_values=images, **self.options).logits

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, C, S, S) -> logits (B, classes) and per layer the attention weights (B, H, T, T)."""
        usual = self.model.config._attn_implementation  # transformers has no public name for it
        self.model.set_attn_implementation("eager")  # the fused kernels do not return weights
        try:
            output = self.model(pixel_values=images, output_attentions=True, **self.options)
        finally:
            self.model.set_attn_implementation(usual)
        if not output.get("attentions"):
            raise NoAttention(f"{type(self.model).__name__} returns no attention weights; a ViT does")
        return output.logits, list(output.attentions)


def anatomy(model: nn.Module) -> Anatomy | None:
    """Take the largest outermost list as blocks, and all layers that follow it as norms.

    What lists of the same length next to it hold belongs to the stage of its number, such as a stage's patches."""
    if not isinstance(model, HuggingFaceClassifier):
        return None
    inner = model.model
    modules = dict(inner.base_model.named_modules())
    lists = {name: module for name, module in modules.items() if isinstance(module, nn.ModuleList)}
    roots = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    blocks, norms, kind = list[nn.Module](), list[nn.Module](), "blocks"
    if roots:
        largest = max(roots, key=lambda name: count_parameters(lists[name])[0])
        parent = largest.rpartition(".")[0]
        alike = [
            name for name in roots if name.rpartition(".")[0] == parent and len(lists[name]) == len(lists[largest])
        ]
        stages = zip(*(lists[name] for name in alike), strict=True)
        blocks = [*lists[largest]] if len(alike) == 1 else [nn.ModuleList(stage) for stage in stages]
        within = {layer for part in (*blocks, inner.classifier) for layer in part.modules()}
        following = [*modules.values()][[*modules].index(largest) :]
        norms = outermost([layer for layer in following if layer._parameters and layer not in within])
        kind = "stages" if any(name.startswith(f"{largest}.") for name in lists) else "blocks"
    heads = getattr(inner.config, "num_attention_heads", 0)  # of a pyramid a list
    return Anatomy(
        blocks=blocks,
        norms=norms,
        head=[inner.classifier],
        head_name=f"model.{_linear_of(inner)}",
        block_name=kind,
        positions=grid_positions(model),
        extra_tokens=extra_tokens(inner.config),
        num_heads=heads if isinstance(heads, int) else 0,
    )


def build(config: ModelConfig, *, num_classes: int) -> nn.Module:
    """Build the classifier that `config.name` means, with its weights and, if need be, a zero head.

    Raises OptionError: an option this model does not have. MissingPackage: no transformers. WeightsError: no such model
    here or on the hub, or no .safetensors.
    """
    refuse_options(config, _LACKS)
    if config.weights not in (None, "none"):
        raise OptionError(f"{config.name} brings its own weights; weights={config.weights!r} must be none or left out")
    settings, native = _settings(config), native_size(config)
    size, channels = config.image_size or native, getattr(settings, "num_channels", 3)
    if config.in_channels != channels:
        raise OptionError(f"{config.name} takes {channels} channels, got in_channels={config.in_channels}")
    settings.update(_changes(config, settings))
    model = _load(config, settings).float()
    # DINOv2, SigLIP and others interpolate their positions only on request.
    resizes = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    resized = size != getattr(settings, "image_size", size)
    if not _classifies(settings):
        model = HuggingFaceBackbone(model, num_classes=num_classes)
    _replace_head(model, num_classes)
    whole = HuggingFaceClassifier(model, options={"interpolate_pos_encoding": True} if resizes and resized else {})
    if size != native:
        try:
            with torch.no_grad():
                whole.eval()(torch.zeros(1, channels, size, size))
        except (AssertionError, RuntimeError, ValueError) as error:  # of a LeViT, for one
            raise OptionError(f"{config.name} does not take image_size={size}: {str(error).splitlines()[0]}") from error
    return whole.train()


def native_size(config: ModelConfig) -> int:
    size = getattr(_settings(config), "image_size", None) or 224
    return size if isinstance(size, int) else size[-1]


def image_spec(config: ModelConfig) -> ImageSpec:
    """Return the values of the model's `preprocessor_config.json`; .5 where it has none. Raises WeightsError."""
    native, cached_file = native_size(config), _transformers().utils.cached_file
    with _refusals_of_the_hub(config):
        path = cached_file(_source(config), "preprocessor_config.json", _raise_exceptions_for_missing_entries=False)
    if path is None:
        return spec_of_processor({}, image_size=native)
    with damage_named(Path(path)):
        return spec_of_processor(dict(json.loads(Path(path).read_text("utf-8"))), image_size=native)


def class_names_of(config: ModelConfig) -> tuple[str, ...]:
    """Return the class names of the classifier that `config.name` means."""
    names = {int(index): str(name) for index, name in _settings(config).id2label.items()}
    return tuple(names[index] for index in range(len(names)))


def weights_path(config: ModelConfig) -> None:
    """Return None, for `build` loads the weights."""


def _source(config: ModelConfig) -> str:
    return config.name.removeprefix(HF_PREFIX)


def _settings(config: ModelConfig) -> Any:
    """Return the settings of a model, or of the image encoder of CLIP and SigLIP. Raises OptionError."""
    library = _transformers()
    with _refusals_of_the_hub(config):
        settings = library.AutoConfig.from_pretrained(_source(config), trust_remote_code=False)
    if settings.model_type in _BETTER_IN_TIMM:
        name = getattr(settings, "architecture", "vit_base_patch16_224.mae")
        raise OptionError(f"{config.name} ({settings.model_type}): take it from timm, by a name such as timm:{name}")
    settings = getattr(settings, "vision_config", settings)
    if not (_classifies(settings) or {"hidden_size", "patch_size"} <= settings.to_dict().keys()):
        raise OptionError(f"{config.name} ({settings.model_type}) is neither an image classifier nor a ViT")
    return settings


def _classifies(settings: Any) -> bool:
    return type(settings) in _transformers().MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING


def _changes(config: ModelConfig, settings: Any) -> dict[str, Any]:
    """Translate our options to transformers' settings. Raises OptionError: the model lacks one."""
    changes: dict[str, Any] = {} if config.layer_norm_eps is None else {"layer_norm_eps": config.layer_norm_eps}
    names = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
    for option, name in names.items():
        value = getattr(config, option)
        if hasattr(settings, name):
            changes[name] = value
        elif value:
            raise OptionError(f"{config.name} has no option {option}, got {value}")
    return changes


def _load(config: ModelConfig, settings: Any) -> Any:
    """Load the library's classifier, or the bare backbone if it has no classifier."""
    library = _transformers()
    kind = library.AutoModelForImageClassification if _classifies(settings) else library.AutoModel
    with _refusals_of_the_hub(config):
        if config.weights == "none":
            return kind.from_config(settings, trust_remote_code=False)
        return kind.from_pretrained(_source(config), config=settings, use_safetensors=True, trust_remote_code=False)


def _replace_head(model: Any, num_classes: int) -> None:
    """Replace the Linear of `classifier` by a zero one, unless it has as many outputs."""
    name = _linear_of(model)
    head = model.get_submodule(name)
    if head.out_features != num_classes:
        model.set_submodule(name, zero_(nn.Linear(head.in_features, num_classes)))


def _linear_of(model: Any) -> str:
    """Name the Linear of `classifier`. Raises OptionError: none, or several."""
    named = ((name, module) for name, module in model.named_modules() if name.partition(".")[0] == "classifier")
    heads = [name for name, module in named if isinstance(module, nn.Linear)]
    if len(heads) != 1:
        raise OptionError(f"{type(model).__name__} has no Linear named `classifier`: its head cannot be replaced")
    return heads[0]


def _transformers() -> Any:
    return import_optional(
        "transformers", "models named hf:... need the package transformers: pip install transformers"
    )


@contextmanager
def _refusals_of_the_hub(config: ModelConfig) -> Iterator[None]:
    """Turn errors of transformers into one WeightsError, and silence its report of a new head."""
    logs = _transformers().utils.logging
    verbosity, shows = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        with hub_access(online=not Path(_source(config)).is_dir()):
            yield
    except (OSError, ValueError) as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        if "couldn't connect" in reason:
            page = f"https://huggingface.co/{_source(config)}"
            reason = f"neither in the cache nor to be had from {page}; fetch its files and name their folder: hf:FOLDER"
        raise WeightsError(f"{config.name}: {reason}") from None
    finally:
        logs.set_verbosity(verbosity)
        if shows:
            logs.enable_progress_bar()
