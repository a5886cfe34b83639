"""Export a classifier, and refuse to leave a file that does not compute what the model computes."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datasets.bundle import BatchKey, image_set
from datasets.errors import DataError, OptionError
from datasets.files import replacing
from datasets.loaders import build_dataloaders
from datasets.transforms import Pipeline
from inference.classifier import Classifier, open_classifier
from inference.images import find_images, read_pixels
from trainers.config import to_dict
from trainers.errors import ConfigError
from trainers.seen.hashes import to_text
from trainers.storage.finished_run import read_run_config, untrusted_run
from trainers.version import VERSION
from vit import ImageSpec, WeightsError
from vit.export import describe, export_onnx, export_pt2, export_safetensors

BATCH_SIZES = (1, 3, 64)
TOLERANCE = 1e-4  # largest difference of logits; relative to the largest logit where that is above 1


@dataclass(frozen=True)
class Parity:
    """How an exported file compares with the model: over `n` images, in batches of each of BATCH_SIZES."""

    n: int
    images: str
    max_difference: float
    largest_logit: float
    top1_agreement: float

    @property
    def good(self) -> bool:
        allowed = TOLERANCE * max(1.0, self.largest_logit)
        return self.max_difference <= allowed and self.top1_agreement == 1

    def __str__(self) -> str:
        return (
            f"logits differ by at most {self.max_difference:.2g} (largest logit {self.largest_logit:.3g}), "
            f"top-1 agrees on {self.top1_agreement:.2%}: {self.n} {self.images}, "
            f"batches of {', '.join(map(str, BATCH_SIZES))}"
        )


def export(classifier: Classifier, kind: str, path: Path, *, images: Sequence[str] = ()) -> tuple[Parity, str]:
    """Write `classifier` to `path` as safetensors, onnx or pt2, once its file has been found to compute the same on
    `images`, files or folders: by default the run's own val images, or generated ones where these are gone.

    Returns its parity with the model, and what a person should know. Raises ConfigError: this kind of classifier has no
    parameters to export. WeightsError: the file computes something else; nothing is left behind.
    """
    if classifier.config is None:
        raise ConfigError(f"{classifier.source} is an export itself; export the run or the weights it came from")
    batch, origin = comparison_images(classifier, images)
    seen = None if classifier.seen is None else to_text(classifier.seen)
    options = {"model": to_dict(classifier.config)}
    versions = {"vit-train": VERSION, "torch": str(torch.__version__)}
    metadata = describe(classifier.spec, classifier.class_names, options, seen=seen, versions=versions)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        if kind == "safetensors":
            note = f"parameter names: {export_safetensors(classifier.model.cpu(), aside, metadata=metadata)}"
        else:
            write, note = export_onnx if kind == "onnx" else export_pt2, ""
            write(classifier.model.cpu(), classifier.spec, aside, metadata=metadata)
        # Our own bytes, written a moment ago: they can be trusted.
        parity = compare(classifier, open_classifier(str(aside), device="cpu", trust=True).logits, batch, origin)
        if not parity.good:
            raise WeightsError(f"{kind} export refused: {parity}; nothing was written")
    return parity, note


def compare(classifier: Classifier, logits: Callable[[Tensor], Tensor], images: Tensor, origin: str) -> Parity:
    """Compare a file with the model it came from, on each batch size."""
    difference = largest = 0.0
    agreed: list[bool] = []
    for size in BATCH_SIZES:
        for start in range(0, min(len(images), 8 * size), size):  # of single images the first few will do
            batch = images[torch.arange(start, start + size) % len(images)]  # whole, from the first image on again
            expected, exported = classifier.logits(batch), logits(batch).detach()
            difference = max(difference, float((expected - exported).abs().max().nan_to_num(torch.inf)))
            largest = max(largest, float(expected.abs().max()))
            agreed += (expected.argmax(1) == exported.argmax(1)).tolist()
    return Parity(len(images), origin, difference, largest, float(np.mean(agreed)))


def comparison_images(classifier: Classifier, paths: Sequence[str], *, count: int = 64) -> tuple[Tensor, str]:
    """Up to `count` images (B, C, S, S), normalised, and what they are."""
    if paths:
        pipeline = Pipeline(classifier.spec)
        read = (read_pixels(file, pipeline) for file in find_images(paths))
        pictures = list(islice((pixels for pixels in read if isinstance(pixels, np.ndarray)), count))
        if not pictures:
            raise DataError(f"{', '.join(paths)}: no image to compare on")
        return pipeline.normalise(torch.from_numpy(np.stack(pictures))), "given images"
    if classifier.run_dir is not None:
        config = read_run_config(classifier.run_dir)
        with suppress(DataError, OptionError, OSError), untrusted_run():  # gone, moved, damaged, or never there
            loader = build_dataloaders(config.data, classifier.spec, seed=config.train.seed).dataloaders["val"]
            rows = np.arange(min(count, len(image_set(loader))))
            return image_set(loader).__getitems__(BatchKey(0, rows))[0], "val images of the run"
    return generated_images(classifier.spec, count), "generated images (the run's own are gone; --images names some)"


def generated_images(spec: ImageSpec, count: int) -> Tensor:
    """Smooth random pictures with the statistics of `spec`: closer to photographs than white noise is."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, spec.in_channels, 7, 7, generator=generator)
    pictures = torch.nn.functional.interpolate(coarse, size=spec.image_size, mode="bicubic").clamp(0, 1)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    return (pictures - mean) / std
