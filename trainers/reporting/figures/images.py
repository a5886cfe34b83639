"""Images that a model classified, for commands and figures, and images as data URIs. No matplotlib here."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from datasets.fitting import Box

SMALL = 96  # pixels; images up to this size are kept lossless


@dataclass(frozen=True)
class ImagePrediction:
    """An image, its true class if known, and the classes that a model predicted."""

    path: str
    ranked: tuple[tuple[str, float], ...]
    """Classes with their probabilities, best first: all of them, or the best few."""
    label: str | None = None
    pixels: np.ndarray | None = None
    """uint8 (C, h, w): the original, upright."""
    heat: Tensor | None = None
    """(G, G): evidence of each part of the image for the prediction."""
    set: tuple[str, ...] | None = None
    """Prediction set, most probable class first, which contains the true class with the promised frequency; None
    without one."""
    unknown: bool | None = None
    """True if the image is unlike the model's validation images; None if nothing is known of these."""
    view: Box | None = None
    """Part of the pixels that the map covers; None: all of them."""

    @property
    def predicted(self) -> str:
        return self.ranked[0][0]

    @property
    def probability(self) -> float:
        """Return the probability of the predicted class."""
        return self.ranked[0][1]


def ranked_classes(
    probabilities: Tensor, class_names: Sequence[str], *, top: int | None = None
) -> list[tuple[tuple[str, float], ...]]:
    """Rank each row's classes (B, classes), or only the `top`; ties in class order."""
    if top is None:
        best, order = probabilities.sort(dim=1, descending=True, stable=True)
    else:
        best, order = probabilities.topk(min(top, len(class_names)), dim=1)  # a 20th of the time for 1000 classes
    rows = zip(order.tolist(), best.tolist(), strict=True)
    return [tuple((class_names[index], value) for index, value in zip(*row, strict=True)) for row in rows]


def thumbnail(image: Image.Image, side: int) -> str:
    """Encode an image of at most `side` pixels as a data URI."""
    image = image.convert("RGB")
    lossless = max(image.size) <= SMALL
    image.thumbnail((side, side))
    content = io.BytesIO()
    if lossless:
        image.save(content, "PNG", optimize=True)
    else:
        image.save(content, "JPEG", quality=85)
    return data_uri(content.getvalue(), "png" if lossless else "jpeg")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
