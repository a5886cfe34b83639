"""The class map without classes that have lost all of their images, such as to `--exclude`."""

import numpy as np

from common.text import pluralise, shorten_list
from datasets.bundle import LEFT_OUT, Samples


def classes_in_use(samples: Samples) -> np.ndarray:
    """bool (classes,): which have an image that is not left out."""
    return np.bincount(samples.labels[samples.splits != LEFT_OUT], minlength=len(samples.class_names)) > 0


def without_empty_classes(samples: Samples) -> Samples:
    """Renumber the classes that have images, and say which have none: nothing can be learnt or measured of them."""
    used = classes_in_use(samples)
    if used.all() or not used.any():
        return samples
    names = [name for name, has_images in zip(samples.class_names, used, strict=True) if not has_images]
    number = np.where(used, np.cumsum(used) - 1, -1).astype(samples.labels.dtype)  # -1: of images that are left out
    kept = tuple(name for name in samples.class_names if name not in {*names})
    note = f"{pluralise(len(names), 'class')} without an image left out: {shorten_list(names)}"
    return samples.replace(labels=number[samples.labels], class_names=kept).note(note)
