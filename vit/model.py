"""The Vision Transformer, from primitives: "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2020, arXiv:2010.11929).

Read from top to bottom: the parts in the order of the data flow, the whole, then another way to make patches, the
initial weights and what is refused. Docstrings name the equation that they implement. Three steps take a shorter way
to the same numbers, and say why: `PatchConvolution`, `attend` and the last block in `VisionTransformer.forward`.
Shapes, everywhere in this file:

    B batch, C channels, S image side, P patch side, G = S / P patches per side, N = G * G patches,
    T = N + 1 tokens (the class token first), D embed_dim, H heads, K = D / H width of one head
"""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy, wrap
from torch.nn import functional as F

from vit.config import ViTConfig


def cut_patches(images: Tensor, patch_size: int) -> Tensor:
    """(B, C, S, S) -> (B, N, C*P*P): patches row by row, each flattened in the order (channel, row, column).

    The permute matters: reshaping without it mixes pixels of different patches, and nothing complains.
    """
    batch, channels, height, width = images.shape
    rows, columns = height // patch_size, width // patch_size
    patches = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch_size**2)


class PatchConvolution(nn.Conv2d):
    """Convolve (B, C, S, S) -> (B, D, G, G) with a stride equal to the kernel, so that no pixel is read twice.

    It *is* a linear map of the flattened patches. On a CPU the gradients of that product take a quarter of the time.
    """

    def forward(self, images: Tensor) -> Tensor:
        # A trace is to be the same graph with gradients and without; a symbolic one has no device.
        traced = isinstance(images, Proxy) or torch.jit.is_tracing()
        if traced or images.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(images)
        side = self.kernel_size[0]
        patches = F.linear(cut_patches(images, side), self.weight.flatten(1), self.bias)  # (B, N, D)
        return patches.transpose(1, 2).unflatten(2, (images.size(2) // side, -1))


class PatchEmbed(nn.Module):
    """Cut the image into P x P patches and map each to D numbers: `x_p E` of eq. 1."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        channels, side = config.in_channels, config.patch_size
        self.projection = PatchConvolution(channels, config.embed_dim, side, stride=side)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(images).flatten(2).transpose(1, 2)  # (B, C, S, S) -> (B, D, G, G) -> (B, N, D)


class Embedding(nn.Module):
    """Patches, class token and positions: `z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos` (eq. 1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PATCH_EMBEDDINGS[config.patch_embedding](config)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        self.positions = nn.Parameter(torch.empty(1, config.num_patches + 1, config.embed_dim))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        check_images(images, self.config)
        patches = self.patches(images)  # (B, C, S, S) -> (B, N, D)
        # size(0), not len(): an int would fix the batch size of an exported model.
        class_token = self.class_token.expand(patches.size(0), -1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self.positions  # (B, T, D)
        # The dropout acts on the sum: a dropped token loses its content *and* its position.
        return self.dropout(tokens)


@wrap  # one step of a symbolic trace (torch.fx), as `attend` and the check of the images are
def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts * D) -> so many views (B, H, T, K)."""
    # Taken apart before the transpose: their gradients are then put together in one copy.
    return tuple(part.transpose(1, 2) for part in x.unflatten(2, (parts, num_heads, -1)).unbind(2))


@wrap
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`A = softmax(q k^T / sqrt(K))` (eq. 6), then `A v` (eq. 7): (B, H, T, K) -> (B, H, T, K), and A (B, H, T, T).

    Without the division the scores have variance K, and the softmax of such numbers is nearly one-hot. A is None where
    PyTorch's fused kernel does the work: it never stores A. In bfloat16 on a CPU that kernel is the slower way at every
    length measured (benchmarks/attention_paths.py).
    """
    if not need_weights and not (q.device.type == "cpu" and q.dtype is torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout), None
    # alpha * q k^T + 0 * unread: the division inside the product saves a pass over A.
    scale, unread = q.size(-1) ** -0.5, q.new_empty(1, 1, 1)
    scores = torch.baddbmm(unread, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=scale)
    weights = scores.softmax(dim=-1).to(v.dtype)  # (B*H, T, T), rows sum to 1; autocast may compute it in float32
    weights = weights.unflatten(0, (-1, q.size(1)))  # (B, H, T, T)
    return F.dropout(weights, dropout) @ v, weights


class Attention(nn.Module):
    """Multi-head self-attention (eq. 5-8): every token looks at every token, H times in parallel."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim, bias=config.qkv_bias)  # eq. 5, all heads at once
        self.projection = nn.Linear(config.embed_dim, config.embed_dim)  # U_msa of eq. 8

    def forward(
        self, x: Tensor, *, num_queries: int | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), or of the first `num_queries` tokens; with `need_weights` also A (B, H, T, T).

        The weights belong to this very pass: softmaxed, before dropout and before the output projection.
        """
        if num_queries is None:
            q, k, v = split_heads(self.qkv(x), 3, self.num_heads)
        else:  # the rows of the fused weight are [q; k; v]
            width, weight, bias = x.size(-1), self.qkv.weight, self.qkv.bias
            few = F.linear(x[:, :num_queries], weight[:width], None if bias is None else bias[:width])
            others = F.linear(x, weight[width:], None if bias is None else bias[width:])
            q, k, v = *split_heads(few, 1, self.num_heads), *split_heads(others, 2, self.num_heads)
        out, weights = attend(q, k, v, dropout=self.dropout if self.training else 0.0, need_weights=need_weights)
        out = self.projection(out.transpose(1, 2).flatten(2))  # heads side by side: (B, H, T, K) -> (B, T, D)
        return (out, weights) if need_weights else out  # type: ignore[return-value]


class MLP(nn.Module):
    """Two Linears with one GELU between them, for each token on its own; no activation after the second."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        hidden = int(config.embed_dim * config.mlp_ratio)
        self.fc1 = nn.Linear(config.embed_dim, hidden)
        self.fc2 = nn.Linear(hidden, config.embed_dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(F.gelu(self.fc1(x)))  # (B, T, D) -> (B, T, 4D)
        return self.dropout(self.fc2(x))  # (B, T, 4D) -> (B, T, D)


class StochasticDepth(nn.Module):
    """Drop, in training, a residual branch for whole samples with this probability (Huang et al. 2016).

    The surviving branches are divided by the survival probability, so evaluation needs no correction.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return branch
        survival = 1 - self.probability
        keep = branch.new_empty(branch.size(0), 1, 1).bernoulli_(survival)  # one draw per sample
        return branch * (keep / survival)


class Block(nn.Module):
    """One pre-norm encoder layer: `z' = MSA(LN(z)) + z` (eq. 2) and `z = MLP(LN(z')) + z'` (eq. 3).

    With both output projections at zero it is the identity: the residual stream passes untouched.
    """

    def __init__(self, config: ViTConfig, *, stochastic_depth: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=config.layer_norm_eps)
        self.attention = Attention(config)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=config.layer_norm_eps)
        self.mlp = MLP(config)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(
        self, x: Tensor, *, num_queries: int | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), or of the first `num_queries` tokens; with `need_weights` also the weights."""
        attended = self.attention(self.norm1(x), num_queries=num_queries, need_weights=need_weights)
        if need_weights:
            attended, weights = attended
        x = x[:, :num_queries] + self.stochastic_depth(self.dropout(attended))
        x = x + self.stochastic_depth(self.mlp(self.norm2(x)))
        return (x, weights) if need_weights else x


class VisionTransformer(nn.Module):
    """Images (B, C, S, S) -> logits (B, classes): embedding, `depth` blocks, LayerNorm, pooling, head (eq. 1-4).

    The shape is a `ViTConfig`, its fields as keywords, or both: `VisionTransformer(image_size=32, patch_size=4)`.
    """

    def __init__(self, config: ViTConfig | None = None, **shape: Any) -> None:
        super().__init__()
        self.config = config = dataclasses.replace(config or ViTConfig(), **shape)
        self.embedding = Embedding(config)
        # Block l of L is dropped with probability l / (L - 1) * stochastic_depth: early blocks matter more.
        rates = [config.stochastic_depth * layer / max(config.depth - 1, 1) for layer in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, stochastic_depth=rate) for rate in rates)
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.layer_norm_eps)
        width = config.representation_size or config.embed_dim
        self.pre_logits = nn.Linear(config.embed_dim, width) if config.representation_size else None
        self.head = nn.Linear(width, config.num_classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) float, normalised -> (B, classes) logits."""
        *blocks, last = self.blocks
        x = self.embedding(images)  # (B, C, S, S) -> (B, T, D)
        for block in blocks:
            x = block(x)
        # Where only the class token is read, the last block computes no other: (B, T, D) -> (B, 1, D).
        alone = not isinstance(images, Proxy) and only_class_token_is_read(self)
        x = last(x, num_queries=1) if alone else last(x)
        return self.forward_head(self._normalise_tokens(x))  # -> (B, classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, S, S) -> all tokens (B, T, D), class token first: a backbone for any other head.

        They are normalised, except with pool="mean_norm", where the norm belongs to the head.
        """
        x = self.embedding(images)
        for block in self.blocks:
            x = block(x)
        return self._normalise_tokens(x)

    def forward_with_attention(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, C, S, S) -> logits (B, classes) and, per layer, the attention weights (B, H, T, T) that made them."""
        x = self.embedding(images)
        attention = []
        for block in self.blocks:
            x, weights = block(x, need_weights=True)
            attention.append(weights)
        return self.forward_head(self._normalise_tokens(x)), attention

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, D) of `forward_features` -> logits (B, classes): pooling and eq. 4."""
        x = tokens[:, 0] if self.config.pool == "cls" else tokens[:, 1:].mean(dim=1)  # (B, T, D) -> (B, D)
        if self.config.pool == "mean_norm":
            x = self.norm(x)
        if self.pre_logits is not None:
            x = torch.tanh(self.pre_logits(x))  # (B, D) -> (B, representation_size)
        return self.head(x)

    def no_weight_decay(self) -> set[str]:
        """Name the parameters that no optimizer should decay, as timm's optimizer factory asks."""
        return {"embedding.class_token", "embedding.positions"}

    def _normalise_tokens(self, x: Tensor) -> Tensor:
        return x if self.config.pool == "mean_norm" else self.norm(x)  # mean_norm: after pooling instead


def only_class_token_is_read(model: VisionTransformer) -> bool:
    """Return whether the head reads one token, and no hook or replaced module needs the others."""
    last = model.blocks[-1]
    if model.config.pool != "cls" or not (isinstance(last, Block) and isinstance(last.attention, Attention)):
        return False
    watched = any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in (*last.modules(), model.norm)
    )
    # The weight of qkv is read and qkv is not called, so it must do what nn.Linear does: an adapter may do more.
    return not watched and getattr(last.attention.qkv.forward, "__func__", None) is nn.Linear.forward


class ConvStem(nn.Module):
    """Make patches by 3 x 3 convolutions, each before a max-pooling that halves the side (Hassani et al. 2021,
    arXiv:2104.05704, section 3.3; widths double up to D as in Xiao et al. 2021, arXiv:2106.14881).

    Not the ViT of the paper: that neighbouring pixels belong together is built in, which pays where images are few.
    `stem_bn` has two convolutions before each max-pooling but the first, and a batch norm before each ReLU: it learns
    faster, and an image depends on its batch in training. Channels lie last in memory: half the time on a CPU.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, doubled in pairwise(config.stem_widths):
            convolution, pooling = nn.Conv2d(width, doubled, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)
            if config.patch_embedding == "stem":
                layers += [convolution, nn.ReLU(), pooling]
                continue
            if layers:  # not where the image is largest
                layers += [convolution, nn.BatchNorm2d(doubled), nn.ReLU()]
                convolution = nn.Conv2d(doubled, doubled, 3, padding=1)
            layers += [convolution, pooling, nn.BatchNorm2d(doubled), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        return self.convolutions(images).flatten(2).transpose(1, 2)  # (B, C, S, S) -> (B, D, G, G) -> (B, N, D)


PATCH_EMBEDDINGS = {"conv": PatchEmbed, "stem": ConvStem, "stem_bn": ConvStem}


@torch.no_grad()
def initialise(model: VisionTransformer) -> None:
    """Set the initial weights of the paper's code (google-research/vision_transformer, `models_vit.py`).

    Class token and head are zero: every class starts equally likely, the first loss is ln(classes), and the first
    gradient reaches the head alone. Positions are truncated-normal with std .02. Linears of the blocks are
    Xavier-uniform, each of q, k and v by itself (a fused matrix drawn at once would come out too small); patch and
    pre-logits projections truncated-normal with variance 1 / fan-in, as in torchvision. A stem's convolutions, each
    before a ReLU, are normal with variance 2 / fan-in (He et al. 2015, eq. 10).
    """
    nn.init.trunc_normal_(model.embedding.positions, std=0.02)
    for module in model.modules():
        if isinstance(module, PatchEmbed):
            _initialise_projection(module.projection)
        elif isinstance(module, ConvStem):
            for layer in module.convolutions:
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        elif isinstance(module, Attention):
            for weight in (*module.qkv.weight.chunk(3), module.projection.weight):
                nn.init.xavier_uniform_(weight)
            for bias in (module.qkv.bias, module.projection.bias):
                if bias is not None:
                    nn.init.zeros_(bias)
        elif isinstance(module, MLP):
            for linear in (module.fc1, module.fc2):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.normal_(linear.bias, std=1e-6)
    if model.pre_logits is not None:
        _initialise_projection(model.pre_logits)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)


def _initialise_projection(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.trunc_normal_(layer.weight, std=math.sqrt(1 / layer.weight[0].numel()))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


@wrap
def check_images(images: Tensor, config: ViTConfig) -> None:
    """Refuse images of another kind, with what would work. Raises ValueError."""
    if images.dim() != 4:
        raise ValueError(f"images have shape {tuple(images.shape)}; expected (batch, channels, height, width)")
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; expected floats, normalised as the model's ImageSpec says")
    _, channels, height, width = images.shape
    if channels != config.in_channels:
        raise ValueError(f"images have {channels} channels; this model was built with in_channels={config.in_channels}")
    if (height, width) != (config.image_size, config.image_size):
        raise ValueError(f"images are {height} x {width}; this model was built for image_size={config.image_size}")
