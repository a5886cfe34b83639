"""What a Vision Transformer looked at when it classified one image, as maps over its patches."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from datasets.text import printable
from datasets.transforms import Pipeline
from figures.judged import Judged, rank
from inference.classifier import Classifier
from inference.images import ImageFile, Unreadable, read_pixels
from trainers.errors import ConfigError
from vit.attention_maps import head_map, maps_of, pools_patches, relevance, select


@dataclass(frozen=True)
class Explanation:
    """One image. G patches per side, H heads; maps sum to 1 (or are all 0: nothing spoke for the class)."""

    image: Judged
    """With its pixels and its rollout."""
    target: str
    relevance: Tensor
    """(G, G): what spoke for the class `target`."""
    attention: list[Tensor]
    """Per layer (1, H, T, T); rows sum to 1."""
    asking: str
    """Which tokens the maps are about: those that the head reads."""
    map_of: Callable[[Tensor], Tensor]
    """(B, T, T) -> (B, G, G): what these tokens see of each patch."""
    distance: Tensor
    """Mean attention distance in pixels, per layer and head: (L, H)."""

    @property
    def heads(self) -> Tensor:
        """Attention of the tokens that the head reads, per layer and head: (L, H, G, G)."""
        return torch.stack([self.map_of(weights[0]) for weights in self.attention])

    def layer_map(self, *, layer: int, head: int | None) -> Tensor:
        """The map (G, G) of one head, or of a layer's mean over heads."""
        return self.map_of(select(self.attention, layer=layer, head=head))[0]


def explain(classifier: Classifier, file: ImageFile, *, target: str | None = None) -> Explanation | Unreadable:
    """Explain one image: why it could be of class `target`, by default the predicted one. Raises ConfigError: a class
    the model does not have. NoAttention: no attention weights, or tokens that are no class token and a square grid."""
    if target is not None and target not in classifier.class_names:
        raise ConfigError(f"class {target!r} is not one of the model's: {', '.join(classifier.class_names[:20])}")
    pipeline = Pipeline(classifier.spec)
    pixels = read_pixels(file, pipeline)
    if isinstance(pixels, Unreadable):
        return pixels
    images = pipeline.normalise(torch.from_numpy(pixels[None])).to(classifier.device)
    maps = maps_of(classifier.model, images)
    ranked = rank(maps.logits.double().softmax(dim=1), classifier.class_names, top=3)[0]
    target = target or ranked[0][0]
    classes = torch.tensor([classifier.class_names.index(target)], device=classifier.device)
    _, spoke = relevance(classifier.model, images, classes=classes)
    return Explanation(
        Judged(file.path, ranked, pixels=pixels, rollout=maps.rollout[0].cpu()),
        target,
        relevance=head_map(classifier.model, spoke)[0].cpu(),
        attention=[weights.cpu() for weights in maps.attention],
        asking="all patches, on average" if pools_patches(classifier.model) else "the class token",
        map_of=partial(head_map, classifier.model),
        distance=maps.distance[0].cpu(),
    )


def write_pictures(explanation: Explanation, folder: Path, number: int, *, layer: int | None, head: int | None) -> str:
    """The pictures of one image, whose number begins their names; a line that says what it was taken for."""
    from figures.attention import heads_figure  # matplotlib takes a second to import
    from figures.results import save
    from figures.sheets import DPI, overview_sheet

    image, chosen = explanation.image, []
    if layer is not None:
        title = f"layer {layer}" + ("" if head is None else f", head {head}")
        chosen = [(title, explanation.layer_map(layer=layer, head=head))]
    stem = re.sub(r"[^\w.-]+", "_", Path(image.path).stem)
    name = f"{number:03d}_{stem[:80]}"
    overview = overview_sheet(image, explanation.relevance, target=explanation.target, chosen=chosen)
    save(overview, folder / f"{name}.png", dpi=DPI)
    save(heads_figure(explanation.heads, asking=explanation.asking), folder / f"{name}_heads.png")
    ranked = ", ".join(f"{label} {probability:.1%}" for label, probability in image.ranked)
    return f"{printable(image.path)}: {ranked}; {folder / name}.png, {name}_heads.png"
