"""Every method by its name, and the one door to them: `heat_maps`. B images, G cells per side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.errors import OptionError
from trainers.reporting.explanations.attention import attention_rollout, last_attention
from trainers.reporting.explanations.attnlrp import integrated_attnlrp
from trainers.reporting.explanations.layercam import integrated_layercam
from trainers.reporting.explanations.mixtures import in_picture, is_mixture, parts_of, together
from trainers.reporting.explanations.perturbation import occlusion
from trainers.reporting.explanations.subject import NoMap, Subject, shares


@dataclass(frozen=True)
class Method:
    """A way to make heat maps. Raises NoMap for a model that it has none for."""

    maps: Callable[[Subject], Tensor]
    """(B, G, G), the more the brighter; what is below 0 spoke against the class."""
    title: str
    source: str
    of_class: bool = True
    """True if the map is about one class, or about the picture as a whole."""


METHODS: dict[str, Method] = {
    "integrated-attnlrp": Method(
        integrated_attnlrp, "integrated AttnLRP", "Achtibat et al. 2024; Sundararajan et al. 2017"
    ),
    "rollout": Method(attention_rollout, "attention rollout", "Abnar and Zuidema 2020", of_class=False),
    "attention": Method(last_attention, "attention of the last layer", "Vaswani et al. 2017", of_class=False),
    "integrated-layercam": Method(
        integrated_layercam, "LayerCAM with integrated gradients", "Jiang et al. 2021; Sundararajan et al. 2017"
    ),
    "occlusion": Method(occlusion, "occlusion", "Zeiler and Fergus 2014"),
}
BEST_FIRST = ("integrated-attnlrp", "integrated-layercam", "occlusion")
"""`auto` is the first of these that has a map for the model: by the tables of docs/results.md."""


@dataclass(frozen=True)
class PartMap:
    """The map of one network within a mixture."""

    name: str
    method: str
    values: Tensor
    """(B, N, N) over the common picture."""
    spoke: Tensor
    """(B,): what this network adds to the logit of the class, over the mean of all classes."""


@dataclass(frozen=True)
class HeatMaps:
    """Heat maps: what speaks for a class of each image, and where."""

    method: str
    values: Tensor
    """float32 (B, G, G) on the CPU, at least 0; each map sums to 1, or is 0 where nothing spoke for the class."""
    logits: Tensor
    """(B, classes), on the CPU."""
    classes: Tensor
    """int64 (B,), on the CPU: what the maps are about."""
    parts: tuple[PartMap, ...] = ()
    """Maps of each network of a mixture."""

    @property
    def title(self) -> str:
        return title_of(self.method)

    @property
    def of_class(self) -> bool:
        """True if the maps are about the classes, or about the pictures as a whole."""
        return self.method == MIXTURE or METHODS[self.method].of_class


MIXTURE = "mixture"
"""The name of what `auto` does with a mixture whose networks get different methods, each the best for it."""


def title_of(method: str) -> str:
    return "each network by its own method" if method == MIXTURE else METHODS[method].title


def heat_maps(model: nn.Module, images: Tensor, classes: Tensor | None = None, *, method: str = "auto") -> HeatMaps:
    """The heat maps of normalised images (B, C, S, S), for `classes` (B,), by default the predicted ones.

    The model is in evaluation mode; its parameters and their gradients stay as they are. A mixture is explained by its
    parts. The same input gives the same bits. Raises OptionError: no such method. NoMap: it has no map for this model.
    """
    require_method(method)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    images = images.detach()
    with torch.no_grad():
        logits = model(images)
    chosen = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
    subject = Subject(model, images, chosen)
    found: tuple[PartMap, ...] = ()
    if is_mixture(model):
        found = tuple(_maps_of_parts(model, subject, method))
        values = together([part.spoke for part in found], [part.values for part in found])
        names = {part.method for part in found}
        name = names.pop() if len(names) == 1 else MIXTURE
    else:
        name, values = _first(subject, method)
    return HeatMaps(name, shares(values), logits.float().cpu(), chosen.cpu(), found)


def require_method(method: str) -> None:
    if method not in ("auto", *METHODS):
        raise OptionError(f"no method {method!r} for heat maps; known: auto, {', '.join(METHODS)}")


def _first(subject: Subject, method: str) -> tuple[str, Tensor]:
    """The maps of a method, or of the first of BEST_FIRST that has some for this network; and its name."""
    reasons = []
    for name in BEST_FIRST if method == "auto" else (method,):
        try:
            return name, METHODS[name].maps(subject)
        except NoMap as error:
            reasons.append(str(error))
    raise NoMap(reasons[0])


def _maps_of_parts(model: nn.Module, subject: Subject, method: str) -> Iterator[PartMap]:
    for part in parts_of(model, subject):
        name, values = _first(part.subject, method)
        yield PartMap(part.name, name, in_picture(shares(values), part.place), part.spoke)
