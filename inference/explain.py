"""Explain one image by a heat map, and say how faithful such maps are.

Of a Vision Transformer also its attention is shown, layer by layer and head by head.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import CheckpointError, DataError, NoAttention, OptionError
from common.files import cut_name
from common.text import pluralise, printable
from datasets.fitting import Box, view_of
from datasets.images import read_image, to_array
from datasets.transforms import Pipeline
from inference.classifier import Classifier
from inference.images import ImageFile, Unreadable, read_pixels
from trainers.reporting.console import say
from trainers.reporting.explanations.faithfulness import IMAGES, Faithfulness, measure_run, read_faithfulness
from trainers.reporting.explanations.methods import heat_maps
from trainers.reporting.figures.images import ImagePrediction, ranked_classes
from trainers.run_record import open_validation_images
from vit.attention_maps import head_map, maps_of, pools_patches, select
from vit.tensor_files import require_finite

DISPLAYED = 800  # pixels of the longer side of a picture that is kept for its figure
DECODED = 400  # and of those that decoding leaves at least


@dataclass(frozen=True)
class AttentionWeights:
    """Attention of the heads of a Vision Transformer.

    G patches per side, H heads, L layers, T tokens."""

    weights: list[Tensor]
    """Per layer (1, H, T, T); rows sum to 1."""
    asking: str
    """Tokens that the maps are about: those that the head reads."""
    map_of: Callable[[Tensor], Tensor]
    """(B, T, T) -> (B, G, G): what these tokens see of each patch."""
    distance: Tensor
    """Mean attention distance in pixels, per layer and head: (L, H)."""

    @property
    def heads(self) -> Tensor:
        """Attention of what the head reads, per layer and head: (L, H, G, G)."""
        return torch.stack([self.map_of(weights[0]) for weights in self.weights])

    def layer_map(self, *, layer: int, head: int | None) -> Tensor:
        """Return the map (G, G) of one head, or of a layer's mean over heads."""
        return self.map_of(select(self.weights, layer=layer, head=head))[0]


@dataclass(frozen=True)
class Explanation:
    """One image, with its heat map.

    Maps sum to 1 (or are all 0: nothing spoke for the class)."""

    image: ImagePrediction
    """Its original picture, and the heat map (G, G) that lies over what the model saw of it."""
    target: str
    """The class that the map is about."""
    method: str
    title: str
    """The method by its usual name."""
    of_class: bool
    """True if the map is about this class, or about the picture as a whole."""
    attention: AttentionWeights | None = None
    """None for a model whose attention weights cannot be read, or that has none."""

    @property
    def heat(self) -> Tensor:
        assert self.image.heat is not None
        return self.image.heat

    def drawn(self, *, layer: int | None = None, head: int | None = None) -> list[tuple[str, Tensor]]:
        """List the map, and the attention that is asked for, each with its title.

        Raises OptionError: no such layer, or no attention."""
        about = f"evidence for {self.target}" if self.of_class else "what the model looked at"
        shown = [(f"{about} ({self.title})", self.heat)]
        if layer is not None:
            if self.attention is None:
                raise NoAttention("this model has no attention weights to show: leave --layer out")
            title = f"attention of layer {layer}" + ("" if head is None else f", head {head}")
            shown.append((title, self.attention.layer_map(layer=layer, head=head)))
        return shown


def explain(
    classifier: Classifier, file: ImageFile, *, target: str | None = None, method: str = "auto"
) -> Explanation | Unreadable:
    """Explain one image: why it could be of class `target`, by default the predicted one.

    Raises OptionError: a class that the model does not have, no such method, or none for this model (NoMap)."""
    if target is not None and target not in classifier.class_names:
        raise OptionError(f"class {target!r} is not one of the model's: {', '.join(classifier.class_names[:20])}")
    pipeline = Pipeline(classifier.spec)
    pixels = read_pixels(file, pipeline)
    if isinstance(pixels, Unreadable):
        return pixels
    images = pipeline.normalise(torch.from_numpy(pixels[None])).to(classifier.device)
    classes = None if target is None else torch.tensor([classifier.class_names.index(target)])
    found = heat_maps(classifier.model, images, classes, method=method)
    require_finite(classifier.source, {"the output": found.logits})
    ranked = ranked_classes(found.logits.double().softmax(dim=1), classifier.class_names, top=3)[0]
    picture, view = _displayed(classifier, file, channels=len(pixels))
    return Explanation(
        ImagePrediction(file.path, ranked, pixels=picture, heat=found.values[0], view=view),
        target or ranked[0][0],
        found.method,
        found.title,
        found.of_class,
        attention_of(classifier, images),
    )


def _displayed(classifier: Classifier, file: ImageFile, *, channels: int) -> tuple[Any, Box]:
    """Return the whole picture, small, and the part of it that the model sees.

    It is uint8 (C, h, w), as small as a figure needs it."""
    image = read_image(file.source, channels=channels, name=file.path, least=lambda *_: (DECODED, DECODED))
    box = view_of(*image.size, classifier.spec)
    width, height = image.size
    image.thumbnail((DISPLAYED, DISPLAYED))
    across, down = image.width / width, image.height / height
    return to_array(image), Box(box.left * across, box.top * down, box.right * across, box.bottom * down)


def attention_of(classifier: Classifier, images: Tensor) -> AttentionWeights | None:
    """Read the attention of one image (1, C, S, S); None where there is none."""
    try:
        found = maps_of(classifier.model, images)
    except NoAttention:
        return None
    return AttentionWeights(
        [weights.cpu() for weights in found.attention],
        asking="all patches, on average" if pools_patches(classifier.model) else "the class token",
        map_of=partial(head_map, classifier.model),
        distance=found.distance[0].cpu(),
    )


def faithfulness_of(classifier: Classifier, explanation: Explanation) -> Faithfulness | str:
    """Return how faithful the method of an explanation is, or why that is not known.

    It is measured once, and kept in the run."""
    unknown, run = "How faithful these maps are is not known", classifier.run
    if run is None:
        return f"{unknown}: that is measured on the validation images of a run."
    if found := read_faithfulness(run.path).get(explanation.method):
        return found
    try:
        images = open_validation_images(run, classifier.spec)
        number = pluralise(min(IMAGES, len(images)), "validation image")
        say(f"measuring once, on {number}, how faithful its heat maps are", label="maps")
        found = measure_run(run.path, classifier.model, images, method=explanation.method)
    except (DataError, CheckpointError, OptionError, OSError) as error:  # gone, changed, damaged, or of another package
        return f"{unknown}: {error}."
    return found or f"{unknown}: the run has no validation images."


def write_pictures(
    explanation: Explanation, shown: Sequence[tuple[str, Tensor]], folder: Path, number: int, *, note: str
) -> str:
    """Write the pictures of one image; return a line on what it shows.

    Its number begins their names. They have the maps `shown` and a `note`."""
    from trainers.reporting.figures.results import save
    from trainers.reporting.figures.sheets import (
        DPI,
        heads_figure,  # matplotlib takes a second to import
        heat_sheet,
    )

    image, attention = explanation.image, explanation.attention
    stem = re.sub(r"[^\w.-]+", "_", Path(image.path).stem)
    name = cut_name(f"{number:03d}_{stem}")
    files = [f"{folder / name}.png"]
    title = f"{Path(image.path).name}\n{note}"
    save(heat_sheet(image, shown, title=title), folder / f"{name}.png", dpi=DPI)
    if attention is not None:
        save(heads_figure(attention.heads, asking=attention.asking), folder / f"{name}_heads.png")
        files.append(f"{name}_heads.png")
    ranked = ", ".join(f"{printable(label)} {probability:.1%}" for label, probability in image.ranked)
    return f"{printable(image.path)}: {ranked}; {', '.join(files)}"
