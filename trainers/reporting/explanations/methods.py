"""Heat maps of any model: every method by its name, and `heat_maps`. B images, G cells per side."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import NoAttention, OptionError
from trainers.reporting.explanations.attnlrp import integrated_attnlrp
from trainers.reporting.explanations.layercam import integrated_layercam
from trainers.reporting.explanations.perturbation import occlusion
from trainers.reporting.explanations.subject import MAX_CELLS, NoMap, Subject, shares
from vit.attention_maps import maps_of
from vit.mixture import SideBySide


def rollout(subject: Subject) -> Tensor:
    """Multiply the attention of all layers along the residual stream (Abnar and Zuidema 2020); of no class."""
    return maps_of(subject.network, subject.images).rollout


@dataclass(frozen=True)
class Method:
    """A way to make heat maps. Raises NoMap or NoAttention for a model that it has none for."""

    maps: Callable[[Subject], Tensor]
    """(B, G, G), the more the brighter; what is below 0 spoke against the class."""
    title: str
    of_class: bool = True
    """True if the map is about one class, or about the picture as a whole."""


METHODS: dict[str, Method] = {
    "integrated-attnlrp": Method(integrated_attnlrp, "integrated AttnLRP"),
    "rollout": Method(rollout, "attention rollout", of_class=False),
    "integrated-layercam": Method(integrated_layercam, "LayerCAM with integrated gradients"),
    "occlusion": Method(occlusion, "occlusion"),
}
BEST_FIRST = ("integrated-attnlrp", "integrated-layercam", "occlusion")
"""`auto` is the first of these that has a map for the model: by the tables of docs/results.md."""
FINE = 8 * MAX_CELLS
"""Cells per side of a mixture's map, on which those of its networks are laid: their cells and borders differ."""


@dataclass(frozen=True)
class HeatMaps:
    """Heat maps: what speaks for a class of each image, and where."""

    method: str
    """Name of the method; `auto` for a mixture whose networks get different ones."""
    values: Tensor
    """float32 (B, G, G) on the CPU, at least 0; each map sums to 1, or is 0 where nothing spoke for the class."""
    logits: Tensor
    """(B, classes), on the CPU."""
    classes: Tensor
    """int64 (B,), on the CPU: what the maps are about."""

    @property
    def title(self) -> str:
        return title_of(self.method)

    @property
    def of_class(self) -> bool:
        """True if the maps are about the classes, or about the pictures as a whole."""
        return self.method == "auto" or METHODS[self.method].of_class


def title_of(method: str) -> str:
    return METHODS[method].title if method in METHODS else "each network by its own method"


def heat_maps(model: nn.Module, images: Tensor, classes: Tensor | None = None, *, method: str = "auto") -> HeatMaps:
    """Compute heat maps of normalised images (B, C, S, S), for `classes` (B,), by default the predicted ones.

    The model is in evaluation mode; its parameters and their gradients stay as they are. The same input gives the same
    bits. Raises OptionError: no such method. NoMap: it has no map for this model.
    """
    if method not in ("auto", *METHODS):
        raise OptionError(f"no method {method!r} for heat maps; known: auto, {', '.join(METHODS)}")
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    images = images.detach()
    with torch.no_grad():
        logits = model(images)
    chosen = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
    explained = maps_of_mixture if isinstance(model, SideBySide) else first_maps
    name, values = explained(Subject(model, images, chosen), method)
    return HeatMaps(name, shares(values), logits.float().cpu(), chosen.cpu())


def first_maps(subject: Subject, method: str) -> tuple[str, Tensor]:
    """Return the maps of a method, or of the first of BEST_FIRST that has some for this network, after its name."""
    reasons = []
    for name in BEST_FIRST if method == "auto" else (method,):
        try:
            return name, METHODS[name].maps(subject)
        except (NoMap, NoAttention) as error:
            reasons.append(str(error))
    raise NoMap(reasons[0])


def maps_of_mixture(subject: Subject, method: str) -> tuple[str, Tensor]:
    """Average the maps of a mixture's networks, each weighted by what its network adds to the logit of the class.

    The logits are a sum over the networks, `W_1 f_1 + W_2 f_2 + ... + b`; what one adds is counted over the mean of all
    classes, and from 0 on.
    """
    mixture: Any = subject.network
    side, names, total = subject.images.size(-1), set(), torch.zeros(FINE, FINE)
    for view, columns in zip(mixture.views, mixture.columns, strict=True):
        head, taken = partial(F.linear, weight=mixture.head.weight[:, columns]), list[Tensor]()
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
