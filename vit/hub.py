"""Ask once a minute whether Hugging Face's hub answers, and read how its models prepare images.

Its library asks five times for each file, which takes half a minute without a network.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from common.image_spec import HALF, ImageSpec
from vit.config import HUB_OFFLINE


@contextmanager
def hub_access(*, online: bool) -> Iterator[None]:
    """Let the hub's library use only its cache unless `online`, and the hub answers."""
    from huggingface_hub import constants as hub

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt without a network
    usual = hub.HF_HUB_OFFLINE
    minute = int(time.monotonic() / 60)
    hub.HF_HUB_OFFLINE = usual or HUB_OFFLINE.get() or not (online and hub_answers(hub.ENDPOINT, minute=minute))
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = usual


@lru_cache(maxsize=1)
def hub_answers(url: str, *, minute: int) -> bool:
    """Return whether the hub answers; `minute` makes the answer of this minute the same."""
    try:
        from huggingface_hub.utils import get_session

        get_session().head(url, timeout=10)
    except Exception:  # of its HTTP client, whichever that is
        return False
    return True


def spec_of_processor(values: Mapping[str, Any], *, image_size: int = ImageSpec.image_size) -> ImageSpec:
    """Return what a `preprocessor_config.json` says, with .5 where it says nothing.

    Two things differ: processors that squash a picture and then crop it (DeiT) keep its proportions here, and filters
    other than bilinear are bicubic. Raises ValueError: a value that cannot be.
    """
    resized, cropped = _side(values.get("size")), _side(values.get("crop_size"))
    kept = cropped / resized if values.get("do_center_crop") and resized and cropped else None
    square = isinstance(values.get("size"), int) or "height" in (values.get("size") or ())
    if "crop_pct" in values:  # of a ConvNeXt, which squashes large pictures only
        square = resized is not None and resized >= 384
    return ImageSpec(
        image_size=image_size,
        mean=tuple(values.get("image_mean", HALF)),
        std=tuple(values.get("image_std", HALF)),
        interpolation="bilinear" if values.get("resample", 2) == 2 else "bicubic",
        crop_fraction=values.get("crop_pct") or min(1.0, kept or 1.0),
        fit="squash" if square and not kept else "crop",
    )


def _side(size: Any) -> int | None:
    """Return the pixels of `224`, `{"height": 224, "width": 224}` or `{"shortest_edge": 256}`."""
    return size.get("shortest_edge") or size.get("height") if isinstance(size, dict) else size
