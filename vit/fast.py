"""Fast paths that compute the same as `vit/model.py` in less time: patches as one product, measured attention, fewer
queries.

| step of the model | here | why |
|---|---|---|
| patch convolution | a Linear over cut patches, on a CPU in training | its gradients take up to a quarter of the time |
| softmax attention | PyTorch's fused kernel, or `baddbmm` and softmax | a pass over (B, H, T, T) less, or none |
| last block | only the class token asks, if the head and no hook reads another | most of one block is left out |

`VisionTransformer` is the model of `vit/model.py` with these steps in place of its own: the same weights and numbers.
`ViTConfig(fast=False)` leaves all of this out, and tests hold both equal. Shapes are those of `vit/model.py`. What is
marked `wrap` is one step of a symbolic trace (torch.fx).
"""

from itertools import chain
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.fx import Proxy, wrap
from torch.nn import functional as F
from torch.nn.modules import module as hooks_of_all
from torch.utils.module_tracker import ModuleTracker

from vit import model
from vit.config import Shape, ViTConfig


class PatchConvolution(nn.Conv2d):
    """A convolution whose stride equals its kernel, (B, C, S, S) -> (B, D, G, G): no pixel is seen twice."""

    def forward(self, images: Tensor) -> Tensor:
        # A trace is to be the same graph with gradients and without; a symbolic one has no device.
        traced = isinstance(images, Proxy) or torch.jit.is_tracing()
        if traced or images.device.type != "cpu" or not torch.is_grad_enabled():
            return super().forward(images)
        # As the Linear it is, the same in all but rounding: a CPU finds its gradients up to four times faster.
        side = self.kernel_size[0]
        rows, columns = images.size(2) // side, images.size(3) // side
        patches = images.unflatten(3, (columns, side)).unflatten(2, (rows, side))  # (B, C, G, P, G, P)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, C*P*P)
        patches = F.linear(patches, self.weight.flatten(1), self.bias)  # (B, N, D)
        return patches.transpose(1, 2).unflatten(2, (rows, columns))


class Attention(model.Attention):
    """Attention of the first `num_queries` tokens, or of all, by the path that is fastest here."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.path = config.attention

    def forward(
        self, x: Tensor, *, num_queries: int | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), with the weights (B, H, T, T) if asked for; of the first `num_queries` tokens."""
        dropout = self.dropout if self.training else 0.0
        q, k, v = queries_keys_values(x, self.qkv, self.num_heads, num_queries)
        out, weights = attend(q, k, v, path=self.path, dropout=dropout, need_weights=need_weights)
        out = self.projection(out.transpose(1, 2).flatten(2))  # (B, H, T, K) -> (B, T, D)
        return (out, weights) if need_weights else out  # type: ignore[return-value]


class Block(model.Block):
    """Encoder layer that can leave out the work for all tokens but the first `num_queries`."""

    def forward(
        self, x: Tensor, *, num_queries: int | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, T, D), with the attention weights if asked for; of the first `num_queries` tokens if
        given."""
        attended = self.attention(self.norm1(x), num_queries=num_queries, need_weights=need_weights)
        if need_weights:
            attended, weights = attended
        x = x[:, :num_queries] + self.stochastic_depth(self.dropout(attended))
        x = x + self.stochastic_depth(self.mlp(self.norm2(x)))
        return (x, weights) if need_weights else x


class VisionTransformer(model.VisionTransformer):
    """The model of `vit/model.py`; its steps are the fast ones of this file where `config.fast` says so."""

    def __init__(self, config: ViTConfig | None = None, **shape: Unpack[Shape]) -> None:
        super().__init__(config, **shape)
        if self.config.fast:
            use_fast_steps(self)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, S, S) float, normalised -> (B, classes) logits."""
        if not self.config.fast:
            return super().forward(images)
        *blocks, last = self.blocks
        x = self.embedding(images)
        for block in blocks:
            x = block(x)
        # Where the head reads the class token alone, no other token needs the last block; a symbolic trace may.
        class_token_alone = self.config.pool == "cls" and not isinstance(images, Proxy)
        x = last(x, num_queries=1) if class_token_alone and nobody_sees_the_rest(last, self.norm) else last(x)
        return self.forward_head(self._normalise_tokens(x))


def nobody_sees_the_rest(block: nn.Module, norm: nn.Module) -> bool:
    """True if the block is one of this file, with a plain Linear for queries, keys and values, and no hook waits in it,
    in `norm` or in all modules for what all tokens become."""
    if not (isinstance(block, Block) and isinstance(block.attention, Attention)):
        return False
    # Its weight is read and it is not called, so it must do with it what nn.Linear does: an adapter may do more.
    plain = getattr(block.attention.qkv.forward, "__func__", None) is nn.Linear.forward
    return plain and not any(map(has_hooks, (*block.modules(), norm))) and not global_hooks_wait()


def has_hooks(module: nn.Module) -> bool:
    given = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(map(len, given))


def global_hooks_wait() -> bool:
    """True if hooks of all modules wait, but for those of counters such as FlopCounterMode, which read no tensor."""
    given = (hooks_of_all._global_forward_hooks, hooks_of_all._global_forward_pre_hooks)
    backward = (hooks_of_all._global_backward_hooks, hooks_of_all._global_backward_pre_hooks)
    hooks = chain.from_iterable(each.values() for each in (*given, *backward))
    return any(not isinstance(getattr(hook, "__self__", None), ModuleTracker) for hook in hooks)


FASTER: dict[type[nn.Module], type[nn.Module]] = {model.Attention: Attention, model.Block: Block}
"""Modules of the textbook, each with the one that takes its weights over."""


def use_fast_steps(network: model.VisionTransformer) -> None:
    """Let the modules of a textbook model compute by the fast steps; weights and names stay as they are."""
    for module in network.modules():
        if isinstance(module, model.PatchEmbed):
            module.projection.__class__ = PatchConvolution
        elif type(module) in FASTER:
            module.__class__ = FASTER[type(module)]
        if isinstance(module, Attention):
            module.path = network.config.attention


def queries_keys_values(x: Tensor, qkv: nn.Linear, num_heads: int, num_queries: int | None) -> tuple[Tensor, ...]:
    """(B, T, D) -> queries (B, H, T, K) of the first `num_queries` tokens or of all, keys and values of all (eq. 5)."""
    if num_queries is None:
        return _split_heads(qkv(x), 3, num_heads)
    # Rows of the fused weight are [q; k; v]: the queries of a few tokens need only the first third.
    dim, weight, bias = x.size(-1), qkv.weight, qkv.bias
    q = F.linear(x[:, :num_queries], weight[:dim], None if bias is None else bias[:dim])
    kv = F.linear(x, weight[dim:], None if bias is None else bias[dim:])
    return *_split_heads(q, 1, num_heads), *_split_heads(kv, 2, num_heads)


@wrap
def _split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts * D) -> so many views (B, H, T, K)."""
    # Taken apart before the transpose: their gradients are then put together where they belong, in one copy.
    return tuple(part.transpose(1, 2) for part in x.unflatten(2, (parts, num_heads, -1)).unbind(2))


@wrap
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, path: str, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """`model.attend` by the given path; "auto" takes the fastest. Only the explicit path has weights to return."""
    if path == "auto":
        path = attention_path(q.device.type, q.dtype)
    if need_weights or path == "explicit":
        return explicit_attention(q, k, v, dropout=dropout)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout), None


def attention_path(device_type: str, dtype: torch.dtype) -> Literal["sdpa", "explicit"]:
    """The fastest way to compute attention, at every length measured: "sdpa" (PyTorch's fused kernel) or "explicit".

    A static table, measured by benchmarks/attention_paths.py; never timed at run time, so that a run is reproducible.
    """
    if device_type == "cpu" and dtype is torch.bfloat16:
        return "explicit"  # docs/evidence/benchmarks.md, "How fast"
    return "sdpa"


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """`model.attend` with one pass over memory less: three (B, H, T, K) -> (B, H, T, K), weights (B, H, T, T)."""
    heads, scale = q.size(1), q.size(-1) ** -0.5
    # alpha * q k^T, the scaling inside the product: no pass of its own over memory. beta=0: the first tensor is unread.
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=scale)
    weights = scores.softmax(dim=-1).to(v.dtype)  # (B*H, T, T), rows sum to 1; autocast may compute it in float32
    weights = weights.unflatten(0, (-1, heads))  # (B, H, T, T): what is returned is what `out` comes from
    return F.dropout(weights, dropout) @ v, weights
