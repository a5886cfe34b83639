"""AttnLRP (Achtibat et al. 2024, arXiv:2402.05602): layer-wise relevance propagation through a Transformer.

Relevance is gradient times input, where the backward pass follows other rules at three places: the deviation that a
LayerNorm divides by is a constant, an activation function lets a constant share of its input through (the identity
rule), and of a product of two activations each factor gets one half (the uniform rule). The rules take the place of
the functions that layers call, so the model stays as it is, whichever library made it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from common.errors import NoAttention
from trainers.reporting.explanations.perturbation import POINTS, blurred, way
from trainers.reporting.explanations.subject import NoMap, Subject, on_cells
from vit.attention_maps import attention_weights

ACTIVATIONS = (F.gelu, F.silu, F.relu)
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class Rules(TorchFunctionMode):
    """Give functions their usual values, and the gradients of the rules, while entered."""

    attended = False
    """True if a product of attention was among them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in ACTIVATIONS:
            return _identity_rule(function, *args, **kwargs)
        if function is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            self.attended = True
            query, key, value, *rest = args
            return function(half(half(query)), half(half(key)), half(value), *rest, **kwargs)
        if function is torch.baddbmm:  # of vit/model.py: the scores, between queries and keys
            start, query, key, *rest = args
            return function(start, half(query), half(key), *rest, **kwargs)
        if function in PRODUCTS and all(factor.requires_grad and factor.dim() == 4 for factor in args):
            self.attended = True
            return function(*map(half, args), **kwargs)
        return function(*args, **kwargs)


def half(x: Tensor) -> Tensor:
    """Return the same values with half of their gradient."""
    return (x + x.detach()) / 2


def _identity_rule(function: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    with torch.no_grad():
        y = function(x.clone() if options.get("inplace") else x, *args, **options)
        share = torch.where(x.abs() > 1e-6, y / x, 0.0)
    return x * share


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    deviation = (x.var(dim=-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
    y = (x - x.mean(dim=-1, keepdim=True)) / deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def integrated_attnlrp(subject: Subject) -> Tensor:
    """Map (B, G, G) the relevance on the way from the blurred picture, squared.

    Of a pixel it is the mean gradient times what the blurred picture lacks, so that a bright even sky is not evidence
    for being bright. Squaring leaves the order of cells as it is, and most of the map to those that stand out.
    Raises NoMap: no Transformer.
    """
    start = blurred(subject.images)
    gradient = sum((relevance_gradient(point) for point in way(subject, start)), torch.zeros_like(start))
    return on_cells(((subject.images - start) * gradient / len(POINTS)).sum(dim=1)).clamp(min=0) ** 2


def relevance_gradient(subject: Subject) -> Tensor:
    """Differentiate the log odds by the images under the rules: (B, C, S, S). Raises NoMap: no Transformer."""
    images = subject.images.detach().requires_grad_()
    with torch.enable_grad(), Rules() as rules:
        try:
            outputs = attention_weights(subject.network, images)[0]  # torchvision's fused layers hide their products
        except NoAttention:
            outputs = subject.network(images)
        odds = subject.odds(subject.head(outputs)).sum()
    if not rules.attended:
        raise NoMap(f"{type(subject.network).__name__} has no attention that is known: AttnLRP has nothing to follow")
    return torch.autograd.grad(odds, images)[0]
