"""Options of a model. No torch here: `python main.py --help` imports this file."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import OptionError
from common.options import (
    Arg,
    ForAllArms,
    Hparam,
    InFiles,
    InFits,
    InPlans,
    NoWord,
    OfWeights,
    Shape,
    require,
    require_counts,
    require_finite,
    take_types,
)
from common.text import did_you_mean


@dataclass(frozen=True)
class ViTConfig:
    """Shape of a Vision Transformer (Dosovitskiy et al. 2020, table 1)."""

    image_size: int = 224
    patch_size: int = 16
    in_channels: int = 3
    num_classes: int = 1000
    embed_dim: int = 192
    depth: int = 12
    num_heads: int = 3
    mlp_ratio: float = 4.0
    patch_embedding: Literal["conv", "stem", "stem_bn"] = "conv"
    pool: Literal["cls", "mean", "mean_norm"] = "cls"
    representation_size: int | None = None
    qkv_bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        require_finite(self)
        counts = ("image_size", "patch_size", "in_channels", "num_classes", "embed_dim", "depth", "num_heads")
        require_counts(self, *counts, "representation_size")
        if self.image_size % self.patch_size:
            raise OptionError(
                f"image_size={self.image_size} is not divisible by patch_size={self.patch_size}; "
                f"nearest: {nearest_sizes(self.image_size, self.patch_size)}"
            )
        if self.patch_embedding.startswith("stem") and (self.patch_size < 2 or self.patch_size.bit_count() != 1):
            raise OptionError(
                f"patch_embedding={self.patch_embedding} halves the image several times: "
                f"patch_size={self.patch_size} must be 2, 4, 8, 16 or another power of 2"
            )
        if self.embed_dim % self.num_heads:
            raise OptionError(f"embed_dim={self.embed_dim} is not divisible by num_heads={self.num_heads}")
        _check_probabilities(self)

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def stem_widths(self) -> tuple[int, ...]:
        """List the channels of the images, then of each convolution of a `stem`, embed_dim last."""
        halvings = self.patch_size.bit_length() - 1  # patch_size = 2 ** halvings
        return (self.in_channels, *(self.embed_dim // 2**left for left in reversed(range(halvings))))


VIT_SHAPES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text("utf-8"))
HF_PREFIX, TIMM_PREFIX = "hf:", "timm:"
TORCHVISION_MODELS: tuple[str, ...] = ("vit_b_16", "resnet18")
PACKAGED_MODELS: tuple[str, ...] = ("efficientnet_lite0", "efficientnet_lite2")
"""Their ImageNet weights come in a pip package: Tan and Le 2019 (arXiv:1905.11946), the Lite variant, Apache 2.0."""


@dataclass(frozen=True)
class ModelLibrary:
    """Describe where models come from: a row of `LIBRARIES`."""

    module: str
    """Module of this package that has the functions of `Library` (vit/factory.py)."""
    classes: str
    """Package or module in which the classes of its models are defined."""
    names: tuple[str, ...] = ()
    weights: str | None = None
    """Default weights of these names."""
    prefix: str | None = None
    """Start of further names, which the library itself knows."""
    rest: str = "NAME"
    """Word for what follows the prefix."""


LIBRARIES = (
    ModelLibrary("scratch_models", f"{__package__}.model", tuple(VIT_SHAPES)),
    ModelLibrary("torchvision_models", "torchvision", TORCHVISION_MODELS, "IMAGENET1K_V1"),
    ModelLibrary("huggingface", f"{__package__}.huggingface", prefix=HF_PREFIX, rest="ID_OR_FOLDER"),
    ModelLibrary("timm_models", "timm", PACKAGED_MODELS, "imagenet", prefix=TIMM_PREFIX),
    ModelLibrary("ensemble", f"{__package__}.ensemble"),  # of models of the others; vit/factory.py builds it
)
MODEL_NAMES: tuple[str, ...] = tuple(name for row in LIBRARIES for name in row.names)
FURTHER_NAMES = {row.prefix: f"{row.prefix}{row.rest}" for row in LIBRARIES if row.prefix}
MODELS_IN_WORDS = (
    f"Choose the model, such as vit_tiny_16 or resnet18. Also {' or '.join(FURTHER_NAMES.values())}. auto: vit_tiny_16,"
    f" or a smaller one for built-in sets of small images. All names: {', '.join(MODEL_NAMES)}."
)
DEFAULT_WEIGHTS = {name: row.weights for row in LIBRARIES for name in row.names if row.weights}
WHAT_THEY_ARE: dict[str, str] = dict.fromkeys(
    PACKAGED_MODELS,
    "a convolutional network, no ViT; its ImageNet weights were learnt from 1.28 million labelled photographs of 1,000"
    " classes",
)
"""Description, for every report, of a model that is not what one expects here."""
EMBEDDED_WEIGHTS: dict[str, str] = {"fashion_mnist": "vit_nano_8", "tiny_imagenet": "vit_stem_16"}
"""Weights that come with the application, under vit/weights/: their name, and the model they belong to."""
SHA256: dict[str, str] = {
    "fashion_mnist": "c5a31c75835b0792902b0837765e91e3e8581910dad7dec449fe393b9ce6b75b",
    "tiny_imagenet": "07c7539f6c505f8836439b7efbbe8e8137c5ad8c42d331ee4573c50ba611981d",
    "efficientnet_lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
"""Hash of each file of weights that comes with the application or in a pip package. torchvision's names have theirs."""
ENSEMBLE = "ensemble"
"""Name of a model that is several networks side by side; which ones, its `networks` say."""
HUB_OFFLINE: ContextVar[bool] = ContextVar("hub_offline", default=False)
"""Load `hf:` models from local files only; set while a run is opened that may be a stranger's."""
OWN_PREFIX = "own:"
"""A module that a program gave to `trainers.run.train`: only that program can build it."""


@dataclass(frozen=True)
class Network:
    """Name one network of an ensemble: frozen with its usual weights, or trained by a run."""

    name: str
    image_size: int
    """Side of its own input in pixels."""
    stages: bool = False
    """Use features of its stages, too. Only a convolutional network has them."""
    weights: str | None = None
    """Run that trained it on the same images; the ensemble takes over its head."""

    def __str__(self) -> str:
        return f"{self.name}@{self.image_size}{' with stages' * self.stages}{' trained' * bool(self.weights)}"


@dataclass(frozen=True)
class ModelConfig:
    """Choose the model, the weights that it starts from, and the parameters that train."""

    name: Annotated[str, Hparam, Arg(name="model", metavar="NAME", help=MODELS_IN_WORDS)] = "auto"
    weights: Annotated[str | None, Hparam, InFits, Arg(metavar="WEIGHTS")] = None
    """Start from weights: none, a file, a run, or a name. imagenet is the default of vit_b_16 and resnet18 (there also
    IMAGENET1K_V1) and of efficientnet_lite0; fashion_mnist is for vit_nano_8, tiny_imagenet for vit_stem_16 (of
    pictures for research and teaching). auto: all pretrained networks that need no download, frozen and side by side,
    under one fitted head."""
    trainable: Annotated[str, Hparam, Arg(metavar="PART")] = "all"
    """Train all, head, norms, last:K or lora:R; freeze the rest. all is fine-tuning; head a linear probe; norms head
    and every LayerNorm; last:K head, final norm and the last K blocks; lora:R head, and low-rank updates of rank R in
    each block's attention."""
    image_size: Annotated[int | None, Hparam, ForAllArms, Shape] = None
    """Resize images to squares of this side in pixels. Position embeddings are interpolated to it. Default: the model's
    own."""
    in_channels: Annotated[int, InFiles] = 3
    """Take images of 3 channels (colour) or 1 (grey). For 1, pretrained stems are summed over their channels."""
    pool: Annotated[Literal["cls", "mean", "mean_norm"], Hparam, InFiles, Shape] = "cls"
    """Choose the tokens that the head reads. cls: the class token; mean: the mean of the normalised patch tokens;
    mean_norm: the normalised mean of the patch tokens (timm's fc_norm)."""
    patch_embedding: Annotated[Literal["conv", "stem", "stem_bn"], Hparam, InFiles, Shape] = "conv"
    """Choose the patch embedding. conv: a strided convolution, as in the paper; stem or stem_bn: 3 x 3 convolutions,
    which learn faster from few images."""
    representation_size: Annotated[int | None, InFiles, Shape] = None
    """Put a Tanh layer of this width before the head. Default: no such layer."""
    dropout: Annotated[float, InFiles] = 0.0
    """Drop out after the position embedding and in the MLPs, with this probability."""
    attention_dropout: Annotated[float, InFiles] = 0.0
    """Drop out attention weights with this probability."""
    stochastic_depth: Annotated[float, InFiles] = 0.0
    """Skip the last block in training with this probability. It rises linearly from 0 at the first block."""
    mean: Annotated[tuple[float, ...] | None, InFiles, OfWeights] = None
    """Subtract this mean from each channel. Default: the pretrained weights' own; 0.5 from scratch."""
    std: Annotated[tuple[float, ...] | None, InFiles, OfWeights] = None
    """Divide each channel by this standard deviation. Default: the pretrained weights' own; 0.5 from scratch."""
    layer_norm_eps: Annotated[float | None, InFiles, OfWeights] = None
    """Set epsilon of every LayerNorm. Default: the pretrained weights' own; 1e-6 from scratch."""
    fit: Annotated[Literal["auto", "crop", "pad", "squash"], InPlans, InFits] = "auto"
    """Make pictures square: crop, pad or squash. crop keeps the middle, pad adds a border, squash gives up the
    proportions. auto: crop, unless it would cut much off many of the images."""
    decoding: Annotated[Literal["auto", "full", "scaled"], InPlans, InFiles] = "auto"
    """Decode JPEG files in full or scaled. scaled reads one of over twice the size needed at 1/2, 1/4 or 1/8 of it,
    several times as fast. auto: scaled in training; with weights as they are, the weights' own."""
    networks: Annotated[tuple[Network, ...], InFiles, NoWord] = ()
    """Set these networks of an ensemble. Their features are joined under one linear head."""

    def __post_init__(self) -> None:
        take_types(self)
        require_finite(self)
        if (self.name == ENSEMBLE) != bool(self.networks):
            raise OptionError(
                f"model {self.name!r}: an ensemble has the name {ENSEMBLE!r} and a list of networks, in a file for"
                " --config (docs/train.md); --minutes and --weights auto make one"
            )
        by_prefix = re.fullmatch(f"({'|'.join((*FURTHER_NAMES, OWN_PREFIX))}).+", self.name)
        if self.name not in ("auto", ENSEMBLE, *MODEL_NAMES) and not by_prefix:
            known = ", ".join((*MODEL_NAMES, *FURTHER_NAMES.values()))
            raise OptionError(f"unknown model {self.name!r}{did_you_mean(self.name, MODEL_NAMES)} Known: {known}")
        if not re.fullmatch(r"all|head|norms|(last|lora):[1-9]\d{0,3}", self.trainable):
            raise OptionError(
                f"trainable={self.trainable!r:.100} must be all, head, norms, last:K or lora:R with K, R >= 1"
            )
        require_counts(self, "image_size", "in_channels", "representation_size")
        for field, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, self.in_channels):
                raise OptionError(
                    f"{field} has {len(values)} values; in_channels={self.in_channels} needs as many, or one"
                )
        require(self, "be positive", lambda size: size > 0, "layer_norm_eps")
        require(self, "be positive", lambda deviations: min(deviations) > 0, "std")
        _check_probabilities(self)

    @property
    def in_words(self) -> str:
        """Describe the model for the screen: its name, or the networks of an ensemble."""
        return " + ".join(map(str, self.networks)) or self.name


def default_weights(name: str) -> str | None:
    """Return the weights that a model or its library has here, if any."""
    embedded = {model: weights for weights, model in EMBEDDED_WEIGHTS.items()}
    return DEFAULT_WEIGHTS.get(name) or embedded.get(name)


def embedded_weights(config: ModelConfig) -> str | None:
    """Return the embedded weights for a model; None if its options name others or change its parts."""
    parts = ("pool", "patch_embedding", "representation_size")
    untouched = all(getattr(config, part) == getattr(ModelConfig, part) for part in parts)
    embedded = config.weights is None and untouched and config.name in EMBEDDED_WEIGHTS.values()
    return default_weights(config.name) if embedded else None


def nearest_sizes(size: int, patch_size: int) -> str:
    """List the sizes next to `size` that patches of `patch_size` divide, such as `224, 240`."""
    below = size // patch_size * patch_size
    return ", ".join(str(near) for near in (below, below + patch_size) if near > 0)


def grid_side(tokens: int) -> int:
    """Return the patches per side of one class token and a square grid; 0 for other tokens."""
    side = math.isqrt(max(tokens - 1, 0))
    return side if side * side == tokens - 1 else 0


def _check_probabilities(config: ViTConfig | ModelConfig) -> None:
    shares = ("dropout", "attention_dropout", "stochastic_depth")
    require(config, "lie in [0, 1)", lambda share: 0 <= share < 1, *shares)


def refuse_options(config: ModelConfig, options: Iterable[str]) -> None:
    """Refuse options that a model does not have: without effect they would mislead."""
    given, defaults = dataclasses.asdict(config), dataclasses.asdict(ModelConfig())
    for option in options:
        if given[option] != defaults[option]:
            raise OptionError(f"{config.name} has no option {option} (got {given[option]!r}); the scratch ViTs do")
