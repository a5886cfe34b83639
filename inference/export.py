"""Export a classifier, and leave no file that computes something else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.Image import Image as Picture
from torch import Tensor, nn

from common.errors import CheckpointError, DataError, OptionError, import_optional
from common.files import replacing
from common.shell import EXTRAS
from common.text import printable
from common.versions import versions_of
from datasets.images import picture_of, read_image, to_mode
from datasets.transforms import Pipeline
from inference.certainty.answers import LEVEL, RATE, metadata_of
from inference.certainty.layer_features import UNLIKE, WithUnlikeness
from inference.classifier import Classifier, open_classifier
from inference.images import find_images
from trainers.config import to_dict
from trainers.run_record import open_validation_images
from vit import WeightsError
from vit.export import describe, export_onnx, export_safetensors, open_pictures

BATCH_SIZES = (1, 3, 64)
MOST_PICTURES = 64
"""Pictures on which a file is compared with its model."""
PICTURE_TOLERANCE = 0.02
"""Largest difference of a probability between a file of pictures and `predict`, whose pixels may differ by a grey level
of 255 here and there."""
TOLERANCE = 1e-4  # largest difference of logits; relative to the largest logit where that is above 1


@dataclass(frozen=True)
class Parity:
    """Agreement of an exported file with the model, over `n` images.

    They come in batches of each of BATCH_SIZES."""

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
            f"top-1 agrees on {self.top1_agreement:.1%}: {self.n} {self.images}, "
            f"batches of {', '.join(map(str, BATCH_SIZES))}"
        )


def export(
    classifier: Classifier,
    kind: str,
    path: Path,
    *,
    images: Sequence[str] = (),
    pictures: bool = False,
    temperature: float = 1.0,
) -> tuple[Parity, str]:
    """Write a classifier as safetensors or onnx, if the file computes the same.

    They are compared on `images`, files or folders: by default the run's own val images, or generated ones where these
    are gone or changed.

    With `pictures` an onnx file takes pictures of any size, and its logits are divided by the `temperature`.

    Returns its parity with the model, and what a person should know. Raises OptionError: this kind of classifier has no
    parameters to export. WeightsError: the file computes something else; nothing is left behind.
    """
    if classifier.config is None:
        raise OptionError(f"{classifier.source} is an export itself; export the run or the weights it came from")
    whole, origin = comparison_pictures(classifier, images)
    options = {"model": to_dict(classifier.config)}
    metadata = describe(classifier.spec, classifier.class_names, options, versions=versions_of("torch"))
    if pictures:
        metadata["temperature"] = f"{temperature:.9g}"
    if classifier.answers is not None:
        metadata |= metadata_of(classifier.answers, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        if kind == "safetensors":
            note = f"parameter names: {export_safetensors(classifier.model.cpu(), aside, metadata=metadata)}"
        else:
            note = ""
            write_onnx(classifier, aside, metadata, pictures=pictures, temperature=temperature)
        parity = compare(classifier, open_classifier(str(aside), device="cpu").logits, whole, origin)
        if not parity.good:
            raise WeightsError(f"{kind} export refused: {parity}; nothing was written")
        if pictures:
            note = compare_pictures(classifier, aside, whole[:16], temperature)
    return parity, note


def write_onnx(
    classifier: Classifier, path: Path, metadata: dict[str, str], *, pictures: bool, temperature: float
) -> None:
    """Write the network.

    Of an evaluated model it has the output `unlike`, and with pictures also `set` and `unknown`."""
    model: nn.Module = classifier.model.cpu()
    outputs, cut, threshold = ["logits"], None, None
    if (answers := classifier.answers) is not None:
        model, outputs = WithUnlikeness(model, answers.unlikeness).eval(), ["logits", UNLIKE]
        cut, threshold = answers.cuts.get(LEVEL), answers.thresholds.get(RATE)
    form = None
    if pictures:
        import_optional("onnx", f"--format onnx needs the package onnx: {EXTRAS}")
        from vit.onnx_pictures import PictureForm

        form = PictureForm(tuple(classifier.class_names), temperature, cut, threshold)
    export_onnx(model, classifier.spec, path, metadata=metadata, form=form, outputs=outputs)


def compare_pictures(classifier: Classifier, file: Path, pictures: Sequence[Picture], temperature: float) -> str:
    """Compare a file of pictures with `predict`, and return a line on the difference.

    Raises WeightsError: another class, or probabilities that differ by more than PICTURE_TOLERANCE."""
    session, difference = open_pictures(file), 0.0
    for picture in pictures:
        logits = classifier.logits(prepared(classifier, [picture])).double()
        expected = (logits / temperature).softmax(dim=1)[0].numpy()
        probabilities, labels = session.run(["probabilities", "label"], {"picture": np.asarray(picture)})
        difference = max(difference, float(np.abs(probabilities[0] - expected).max()))
        first, second = np.sort(expected)[::-1][:2] if len(expected) > 1 else (1.0, 0.0)
        named = printable(classifier.class_names[int(expected.argmax())])
        if first - second > PICTURE_TOLERANCE and labels[0] != named:
            raise WeightsError(f"onnx export refused: {labels[0]!r} for a picture that the model calls {named!r}")
    if not difference <= PICTURE_TOLERANCE:
        raise WeightsError(f"onnx export refused: probabilities differ by {difference:.3g}; nothing was written")
    of = "predict" if temperature == 1 else "predict --calibrated"
    return f"probabilities of {len(pictures)} whole pictures differ by at most {difference:.2g} from those of {of}"


def prepared(classifier: Classifier, pictures: Sequence[Picture]) -> Tensor:
    """Prepare pictures as the model takes them: float32 (B, C, S, S), normalised.

    Other channels are made from RGB."""
    pipeline = Pipeline(classifier.spec)
    mode = "L" if pipeline.channels == 1 else "RGB"
    pixels = np.stack([pipeline.store(to_mode(picture, mode)) for picture in pictures])
    return pipeline.normalise(torch.from_numpy(pixels[:, np.arange(pipeline.channels) % pixels.shape[1]]))


def compare(
    classifier: Classifier, logits: Callable[[Tensor], Tensor], pictures: Sequence[Picture], origin: str
) -> Parity:
    """Compare a file with the model it came from, on each batch size."""
    images = prepared(classifier, pictures)
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


def comparison_pictures(classifier: Classifier, paths: Sequence[str]) -> tuple[list[Picture], str]:
    """Take up to MOST_PICTURES whole pictures, RGB, and say what they are.

    They are given ones, validation images of the run or, where these are gone or changed, generated ones. Raises
    DataError: none of the given ones can be read."""
    least = Pipeline(classifier.spec).least
    if paths:
        pictures = list(islice(readable_pictures(paths, least), MOST_PICTURES))
        if not pictures:
            raise DataError(f"{', '.join(paths)}: no image to compare on")
        return pictures, "given images"
    with suppress(DataError, CheckpointError, OptionError, OSError):  # gone, moved, changed, damaged, or never there
        if classifier.run is not None:
            images = open_validation_images(classifier.run, classifier.spec)
            rows = images.indices[:MOST_PICTURES].tolist()
            return [picture_of(images.samples, row, channels=3, least=least) for row in rows], "val images of the run"
    shape = (MOST_PICTURES, 5, 7, 3)
    coarse = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)  # smoother than white noise
    sizes = [(40 + 30 * (number % 16), 300 - 12 * (number % 16)) for number in range(MOST_PICTURES)]
    pictures = [Image.fromarray(pixels).resize(size) for pixels, size in zip(coarse, sizes, strict=True)]
    return pictures, "generated images (the run's own are gone or changed; --images names some)"


def readable_pictures(paths: Sequence[str], least: Any) -> Iterator[Picture]:
    for file in find_images(paths):
        with suppress(DataError):
            yield read_image(file.path, least=least, alone=True)
