"""Heat maps of any model: `METHODS` by name, and `heat_maps`. B images, G cells per side.

AttnLRP (Achtibat et al. 2024, arXiv:2402.05602): layer-wise relevance propagation through a Transformer.

Relevance is gradient times input, with other rules for the backward pass in three places: the deviation that a
LayerNorm divides by is a constant, an activation function passes on a constant share of its input (the identity rule),
and each factor of a product of two activations gets half of the gradient (the uniform rule). The rules replace the
functions that layers call, so models of any library stay unchanged.

LayerCAM (Jiang et al. 2021, IEEE TIP 30, doi:10.1109/TIP.2021.3089943): heat maps of convolutional networks.

For a layer with activations A (B, K, h, w) and gradients g of the class's score with respect to them, the map is
`ReLU(sum over k of ReLU(g_k) * A_k)` (eq. 6-8): every place has its own weights, so that layers before the last have
maps, too. The deepest layer with enough cells to locate something is used.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from common.errors import NoAttention, OptionError
from trainers.reporting.explanations.subject import (
    MAX_CELLS,
    POINTS,
    NoMap,
    Subject,
    along_path,
    blurred,
    cells,
    on_cells,
    resized,
    shares,
    without,
)
from vit.anatomy import uncompiled
from vit.attention_maps import attention_weights, maps_of
from vit.ensemble import SideBySide

ACTIVATIONS = (F.gelu, F.silu, F.relu)
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
FLOOR = 0.1
"""Floor that `both` adds to each of two maps, as a share of a cell of a uniform map."""
FEWEST = 4
"""Least cells per side of the layer, where the network has such a layer. The last layer of a network for 224 px has 7
at that size, but 2 at 64 px, which locate nothing."""
BATCH = 32
"""Covered images per forward pass of occlusion."""


class Rules(TorchFunctionMode):
    """While entered, functions return their usual values and the gradients of the rules."""

    attended = False
    """True if an attention product was called."""

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
    dims = tuple(range(-len(shape), 0))
    deviation = (x.var(dim=dims, unbiased=False, keepdim=True) + eps).sqrt().detach()
    y = (x - x.mean(dim=dims, keepdim=True)) / deviation
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def integrated_attnlrp(subject: Subject) -> Tensor:
    """Map (B, G, G) the relevance, integrated from the blurred image and squared.

    The relevance of a pixel is the mean gradient times its difference from the blurred image, so that a bright uniform
    sky is not evidence by its brightness. Squaring keeps the order of cells and brings out the strongest.
    Raises NoMap: the model is not a Transformer.
    """
    start = blurred(subject.images)
    gradient = sum((relevance_gradient(point) for point in along_path(subject, start)), torch.zeros_like(start))
    return on_cells(((subject.images - start) * gradient / len(POINTS)).sum(dim=1)).clamp(min=0) ** 2


def relevance_gradient(subject: Subject) -> Tensor:
    """Differentiate the log odds by the images under the rules: (B, C, S, S).

    Raises NoMap: not a Transformer."""
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


def integrated_layercam(subject: Subject) -> Tensor:
    """Map (B, G, G) LayerCAM, which tells which object, times integrated gradients, which tell where.

    Guided Grad-CAM (Selvaraju et al. 2017, arXiv:1610.02391, section 3.2) multiplies them in the same way. Only values
    of LayerCAM above its mean count. Raises NoMap: the model has no feature maps.
    """
    start = blurred(subject.images)
    coarse, gradient = torch.zeros(()), torch.zeros_like(start)
    for point in along_path(subject, start):
        activations, logits = deepest(point)
        with torch.enable_grad():
            by_layer, by_image = torch.autograd.grad(point.odds(logits).sum(), [activations, point.images])
        coarse = coarse + layer_map(activations.detach(), by_layer)
        gradient += by_image
    fine = on_cells(((subject.images - start) * gradient).sum(dim=1))
    return both(resized(coarse - coarse.mean(dim=(1, 2), keepdim=True), fine.size(-1)), fine)


def both(first: Tensor, second: Tensor) -> Tensor:
    """Multiply two maps (B, G, G), with FLOOR of a uniform map added to each.

    So a cell that one of them missed is not lost, and if one is 0 everywhere, the other decides.
    """
    one, other = shares(first), shares(second)
    floor = FLOOR / one[0].numel()
    return one * other + floor * (one + other)


def layer_map(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weight activations by gradients, two (B, K, h, w) -> (B, h, w)."""
    return (gradients.clamp(min=0) * activations).sum(dim=1).clamp(min=0)


def deepest(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return the last activations (B, K, h, w) of sufficient resolution, and the logits.

    A resolution is sufficient with FEWEST cells per side. If there is none, the finest one is used. Raises NoMap: the
    model has no feature maps.
    """
    height, width = subject.images.shape[2:]
    taken: dict[int, Tensor] = {}

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.requires_grad:
            rows, columns = output.shape[2:]
            # Not the (B, h, w, K) of a Swin Transformer: feature maps have the proportions of the images.
            if 1 < rows < height and abs(rows * width - columns * height) < max(height, width):
                taken[rows] = output

    with ExitStack() as hooks, torch.enable_grad():
        for module in subject.network.modules():
            hooks.enter_context(module.register_forward_hook(keep))
        logits = subject(subject.images.requires_grad_())  # a graph even if every parameter is frozen
    reached = {rows: kept for rows, kept in taken.items() if len(kept) == len(subject.images)}
    if not reached:
        raise NoMap(f"{type(subject.network).__name__} has no feature maps (B, K, h, w): LayerCAM has nothing to show")
    return reached[min((rows for rows in reached if rows >= FEWEST), default=max(reached))], logits


def occlusion(subject: Subject) -> Tensor:
    """Measure how far the log odds of the class fall without each cell.

    After Zeiler and Fergus 2014, section 4.2. Windows of 2 x 2 cells are covered; the value of a cell is the mean over
    its windows. It needs no gradients, so it works for programs (ONNX), too, and takes a forward pass per window.
    """
    side = cells(subject.images.size(-1))
    instead, corners = blurred(subject.images), torch.eye((side - 1) ** 2).view(-1, 1, side - 1, side - 1)
    windows = F.conv_transpose2d(corners, torch.ones(1, 1, 2, 2))[:, 0]  # (W, N, N): 1 inside of each window
    maps = []
    with torch.no_grad():
        for row in range(len(subject.images)):
            image, blank = subject.images[row : row + 1], instead[row : row + 1]
            falls = []
            for part in windows.split(BATCH):
                many = replace(subject, classes=subject.classes[row].expand(len(part)))
                covered = without(image, part.to(image.device), blank)
                falls.append(many.odds(many(covered).float()).cpu())
            one = replace(subject, classes=subject.classes[row : row + 1])
            fall = one.odds(one(image).float()).cpu() - torch.cat(falls)
            maps.append((fall[:, None, None] * windows).sum(dim=0) / windows.sum(dim=0))
    return torch.stack(maps)


def rollout(subject: Subject) -> Tensor:
    """Multiply all layers' attention along the residual stream (Abnar and Zuidema 2020), for no class."""
    return maps_of(subject.network, subject.images).rollout


@dataclass(frozen=True)
class Method:
    """A method for heat maps. Raises NoMap or NoAttention: it has none for the model."""

    maps: Callable[[Subject], Tensor]
    """Returns (B, G, G): positive values are evidence for the class, negative ones against it."""
    title: str
    of_class: bool = True
    """True if the map explains a class; False if it is about the image as a whole."""


METHODS: dict[str, Method] = {
    "integrated-attnlrp": Method(integrated_attnlrp, "integrated AttnLRP"),
    "rollout": Method(rollout, "attention rollout", of_class=False),
    "integrated-layercam": Method(integrated_layercam, "LayerCAM with integrated gradients"),
    "occlusion": Method(occlusion, "occlusion"),
}
BEST_FIRST = ("integrated-attnlrp", "integrated-layercam", "occlusion")
"""`auto` is the first of these that has a map for the model. Order by the tables of docs/results.md."""
FINE = 8 * MAX_CELLS
"""Cells per side of an ensemble's map. The maps of its networks, whose cells and borders differ, are resized to it."""


@dataclass(frozen=True)
class HeatMaps:
    """Heat maps: where each image has evidence for a class."""

    method: str
    """Name of the method; `auto` for an ensemble whose networks use different ones."""
    values: Tensor
    """float32 (B, G, G) on the CPU, at least 0. Each map sums to 1, or is 0 without evidence for the class."""
    logits: Tensor
    """(B, classes), on the CPU."""
    classes: Tensor
    """int64 (B,), on the CPU: the classes that the maps explain."""

    @property
    def title(self) -> str:
        return title_of(self.method)

    @property
    def of_class(self) -> bool:
        """Return whether the maps explain classes, not images as a whole."""
        return self.method == "auto" or METHODS[self.method].of_class


def title_of(method: str) -> str:
    return METHODS[method].title if method in METHODS else "each network by its own method"


def heat_maps(model: nn.Module, images: Tensor, classes: Tensor | None = None, *, method: str = "auto") -> HeatMaps:
    """Compute heat maps of normalised images (B, C, S, S) for `classes` (B,).

    These are by default the predicted ones. The model must be in evaluation mode; its parameters and their gradients
    are not changed. The same input gives the same bits. Raises OptionError: there is no such method. NoMap: it has no
    map for this model.
    """
    if method not in ("auto", *METHODS):
        raise OptionError(f"no method {method!r} for heat maps; known: auto, {', '.join(METHODS)}")
    model = uncompiled(model)
    images = images.detach()
    with torch.no_grad():
        logits = model(images)
    chosen = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
    explained = maps_of_ensemble if isinstance(model, SideBySide) else first_maps
    name, values = explained(Subject(model, images, chosen), method)
    return HeatMaps(name, shares(values), logits.float().cpu(), chosen.cpu())


def first_maps(subject: Subject, method: str) -> tuple[str, Tensor]:
    """Return the name and the maps of a method.

    `auto` is the first of BEST_FIRST that has maps for the network."""
    reasons = []
    for name in BEST_FIRST if method == "auto" else (method,):
        try:
            return name, METHODS[name].maps(subject)
        except (NoMap, NoAttention) as error:
            reasons.append(str(error))
    raise NoMap(reasons[0])


def maps_of_ensemble(subject: Subject, method: str) -> tuple[str, Tensor]:
    """Average the maps of an ensemble's networks, weighted by their contributions to the class's logit.

    The logits are a sum over the networks, `W_1 f_1 + W_2 f_2 + ... + b`. The weight is a network's term for the class
    minus its mean over all classes, at least 0.
    """
    ensemble: Any = subject.network
    side, names, total = subject.images.size(-1), set(), torch.zeros(FINE, FINE)
    for view, columns in zip(ensemble.views, ensemble.columns, strict=True):
        head, taken = partial(F.linear, weight=ensemble.head.weight[:, columns]), list[Tensor]()
        with view.network.register_forward_pre_hook(lambda _, given: taken.append(given[0])), torch.no_grad():  # noqa: B023
            logits = head(view(subject.images).float())
        added = logits.gather(1, subject.classes[:, None])[:, 0] - logits.mean(dim=1)
        name, values = first_maps(replace(subject, network=view.network, images=taken[0], head=head), method)
        names.add(name)
        begin, end = (round(FINE * place / side) for place in (view.margin, view.margin + view.cut))
        laid = F.interpolate(shares(values)[:, None], size=(end - begin, end - begin), mode="bilinear")[:, 0]
        laid = shares(F.pad(laid, (begin, FINE - end, begin, FINE - end)))
        total = total + added.clamp(min=0).cpu()[:, None, None] * laid
    return names.pop() if len(names) == 1 else "auto", total
