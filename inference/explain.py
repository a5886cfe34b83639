"""What a Vision Transformer looked at when it classified one image, as maps over its patches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datasets.transforms import eval_pipeline
from inference.classifier import Classifier
from inference.predict import Source, read_source
from trainers.errors import ConfigError
from vit.attention_maps import class_map, head_map, maps_of, reading, relevance, select  # noqa: F401


@dataclass(frozen=True)
class Explanation:
    """One image. G patches per side, S pixels per side, H heads; maps sum to 1 (or are all 0: nothing spoke for it)."""

    path: str
    pixels: np.ndarray  # uint8 (C, S, S): what the model saw
    top: tuple[tuple[str, float], ...]
    target: str
    """The class that `relevance` is about."""
    attention: tuple[Tensor, ...]
    """Per layer (H, T, T); rows sum to 1."""
    heads: Tensor
    """Attention of the class token, per layer and head: (L, H, G, G)."""
    rollout: Tensor
    relevance: Tensor
    distance: Tensor
    """Mean attention distance in pixels, per layer and head: (L, H)."""

    def chosen(self, *, layer: int, head: int | None) -> Tensor:
        """The map (G, G) of one head, or of a layer's mean over heads."""
        return class_map(select([weights[None] for weights in self.attention], layer=layer, head=head))[0]


def explain(classifier: Classifier, source: Source, *, target: str | None = None, top: int = 3) -> Explanation | str:
    """Explain one image; a string says why it cannot be read.

    Args:
        target: the class to explain. Default: the predicted one.

    Raises:
        ConfigError: a class the model does not have.
        ValueError: no attention weights, or tokens that are not one class token and a square grid.
    """
    if target is not None and target not in classifier.class_names:
        raise ConfigError(f"class {target!r} is not one of the model's: {', '.join(classifier.class_names[:20])}")
    pipeline = eval_pipeline(classifier.spec)
    pixels = read_source(source, pipeline)
    if isinstance(pixels, str):
        return pixels
    images = pipeline.normalise(torch.from_numpy(pixels[None])).to(classifier.device)
    maps = maps_of(classifier.model, images)
    probabilities = maps.logits[0].double().softmax(dim=0)
    best = probabilities.topk(min(top, len(classifier.class_names)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ranked = tuple((classifier.class_names[index], value) for index, value in pairs)
    wanted = target or ranked[0][0]
    classes = torch.tensor([classifier.class_names.index(wanted)], device=classifier.device)
    _, spoke = relevance(classifier.model, images, classes=classes)
    return Explanation(
        path=source.path,
        pixels=pixels,
        top=ranked,
        target=wanted,
        attention=tuple(weights[0].cpu() for weights in maps.attention),
        heads=torch.stack([class_map(weights[0]) for weights in maps.attention]).cpu(),
        rollout=maps.rollout[0].cpu(),
        relevance=head_map(classifier.model, spoke)[0].cpu(),
        distance=maps.distance[0].cpu(),
    )
