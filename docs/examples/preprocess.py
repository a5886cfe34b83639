"""Prepare an image as an export's `image_spec` says, with Pillow and numpy alone."""

import numpy as np
from PIL import Image, ImageOps


def preprocess(path, spec):
    """Image file -> float32 (1, C, S, S): shorter side to S / crop_fraction, central S x S, (x / 255 - mean) / std."""
    mode = "L" if spec["in_channels"] == 1 else "RGB"
    image = ImageOps.exif_transpose(Image.open(path)).convert(mode)
    side, crop = round(spec["image_size"] / spec["crop_fraction"]), spec["image_size"]
    short, long = sorted(image.size)
    if short != side:
        other = int(side * long / short)
        size = (side, other) if image.width <= image.height else (other, side)
        image = image.resize(size, Image.Resampling[spec["interpolation"].upper()])
    left, top = round((image.width - crop) / 2), round((image.height - crop) / 2)
    pixels = np.asarray(image.crop((left, top, left + crop, top + crop)), np.float32).reshape(crop, crop, -1)
    normalised = (pixels / 255 - np.float32(spec["mean"])) / np.float32(spec["std"])
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None])
