"""`export --int8`: a network in 8-bit whole numbers, written only where it is faster and scores the same.

ONNX Runtime's static quantisation (after Jacob et al. 2018, arXiv:1712.05877): the ranges of activations come from
validation images, weights have a scale for each output channel, and what has no 8-bit form stays in float32. N images.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from comparison.analysis.statistics import PairedDifference, images_text, paired_difference
from datasets.bundle import BatchKey
from datasets.errors import DataError, OptionError
from datasets.sampling import evenly
from datasets.text import printable
from datasets.transforms import Pipeline
from datasets.units import units_of
from inference.classifier import Classifier
from inference.export import export, validation_images
from inference.images import find_images, read_pixels
from inference.predict import label_of
from trainers.errors import ConfigError
from vit.errors import WeightsError, import_optional
from vit.export import OnnxModule, open_session
from vit.logs import log_level

CALIBRATED_ON = 128
"""Images whose activations give the ranges."""
MEMORY = 2 * 2**30
"""Bytes that the judging images may take, 3,500 of them at 224 px; of more so many are taken, spread over the set."""
BATCH, ROUNDS = 32, 9
HALF_A_POINT = 0.005
LEAST_GAIN, LEAST = 1.1, 0.9
"""Times as fast that 8 bits must be, one picture at a time or in batches; and in the other of the two."""


@dataclass(frozen=True)
class Labelled:
    """Images (N, C, S, S), normalised, their classes, and which of them belong together."""

    images: torch.Tensor
    labels: np.ndarray
    units: np.ndarray
    called: str


@dataclass(frozen=True)
class Worth:
    """Worth of 8 bits, compared with float32."""

    faster: float
    """Speed at one picture at a time, the median of ROUNDS; with as many threads as PyTorch has."""
    faster_in_batches: float
    difference: PairedDifference
    """Accuracy of 8 bits minus that of float32."""
    accuracies: tuple[float, float]
    """Accuracies of float32 and of 8 bits."""
    called: str

    @property
    def same(self) -> bool:
        """True if the whole interval lies within half a point."""
        return max(-self.difference.low, self.difference.high) <= HALF_A_POINT

    @property
    def gains(self) -> bool:
        slower, faster = sorted((self.faster, self.faster_in_batches))
        return faster >= LEAST_GAIN and slower >= LEAST

    @property
    def good(self) -> bool:
        return self.same and self.gains

    def __str__(self) -> str:
        before, after = (f"{share:.1%}" for share in self.accuracies)
        interval = f"95 % interval {100 * self.difference.low:+.2f} to {100 * self.difference.high:+.2f} points"
        images = images_text(self.difference.images, self.difference.groups, self.called)
        batches = f"{self.faster_in_batches:.2f} times in batches of {BATCH}"
        return (
            f"{self.faster:.2f} times as fast, {batches}, with {torch.get_num_threads()} threads; accuracy {after}"
            f" against {before} ({interval}, {images})"
        )

    def refusal(self) -> str:
        """Sentence that says which of the two is not reached, and both numbers."""
        reasons = []
        if not self.gains:
            reasons.append("8 bits are no faster here")
        if not self.same and abs(self.difference.mean) <= HALF_A_POINT:
            reasons.append(
                "these images are too few to tell that they score the same within half a point; --images names more,"
                " in folders named after their classes"
            )
        elif not self.same:
            reasons.append("they do not score the same within half a point")
        return f"int8 export refused: {', and '.join(reasons)}: {self}; nothing was written"


def export_int8(classifier: Classifier, path: Path, *, images: Sequence[str] = (), **options: Any) -> Worth:
    """Write `classifier` to `path` in 8 bits, as ONNX; `options` as of `inference.export.export`. Raises WeightsError:
    it is not worth it, and why; nothing is written. ConfigError: there are no labelled images to judge it by."""
    import_optional(
        "onnxruntime.quantization", "--int8 needs onnx and onnxruntime: pip install -r requirements-extras.txt"
    )
    judged_by = labelled_images(classifier, images)
    with tempfile.TemporaryDirectory() as folder:
        full, small = Path(folder, "full.onnx"), Path(folder, "int8.onnx")
        export(classifier, "onnx", full, images=images)
        calibration = judged_by.images[evenly(len(judged_by.labels), CALIBRATED_ON)].numpy()
        kept: list[Any] = []
        export(classifier, "onnx", small, images=images, change=partial(quantised, calibration=calibration, kept=kept))
        worth = judged(full, small, judged_by)
    if not worth.good:
        raise WeightsError(worth.refusal())
    export(classifier, "onnx", path, images=images, change=lambda _: kept[0], **options)
    return worth


def quantised(model: Any, *, calibration: np.ndarray, kept: list[Any]) -> Any:
    """An onnx.ModelProto with its matrix products and convolutions in 8 bits; it is also appended to `kept`."""
    import logging

    import onnx
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[dict[str, np.ndarray]] = iter({"images": image[None]} for image in calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    with tempfile.TemporaryDirectory() as folder, log_level("root", logging.ERROR):
        source, prepared, target = (str(Path(folder, name)) for name in ("float.onnx", "ready.onnx", "int8.onnx"))
        onnx.save(model, source)
        quantization.quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            target,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            op_types_to_quantize=["Conv", "Gemm", "MatMul"],
            calibrate_method=quantization.CalibrationMethod.MinMax,
        )
        kept.append(onnx.load(target))
    return kept[-1]


def judged(full: Path, small: Path, images: Labelled) -> Worth:
    """Judge both networks on the same images, and against the clock in turns."""
    networks = [OnnxModule(open_session(file)) for file in (full, small)]
    batches = images.images.split(BATCH)
    right = [
        np.concatenate([network(batch).argmax(dim=1).numpy() for batch in batches]) == images.labels
        for network in networks
    ]
    difference = paired_difference(right[1][None], right[0][None], images.units)
    alone, together = (ratio(networks, images.images[:size]) for size in (1, BATCH))
    return Worth(alone, together, difference, (float(right[0].mean()), float(right[1].mean())), images.called)


def ratio(networks: Sequence[Callable[[torch.Tensor], torch.Tensor]], batch: torch.Tensor) -> float:
    """Time of the first network over that of the second on one batch: the median over rounds in which they take
    turns."""
    found = []
    for network in networks:
        network(batch)
    for _ in range(ROUNDS):
        seconds = []
        for network in networks:
            start = time.perf_counter()
            for _ in range(4 if len(batch) == 1 else 1):
                network(batch)
            seconds.append(time.perf_counter() - start)
        found.append(seconds[0] / seconds[1])
    return median(found)


def labelled_images(classifier: Classifier, paths: Sequence[str]) -> Labelled:
    """The run's validation images; or images in folders named after their classes."""
    if paths:
        return _in_folders(classifier, paths)
    try:
        images = validation_images(classifier)
    except (DataError, OptionError, OSError) as error:
        raise ConfigError(f"--int8 is judged by validation images, and these are gone: {error}") from None
    if images is None:
        raise ConfigError(
            "--int8 is judged by labelled images: --images names some, in folders named after the classes"
        )
    rows = evenly(len(images), most_images(classifier))
    pixels = images.__getitems__(BatchKey(0, rows))[0]
    return Labelled(pixels, images.labels[rows], units_of(images.samples, images.indices[rows]), "validation")


def most_images(classifier: Classifier) -> int:
    """Number of images of the model's size that MEMORY holds as float32."""
    spec = classifier.spec
    return max(1, MEMORY // (4 * spec.in_channels * spec.image_size**2))


def _in_folders(classifier: Classifier, paths: Sequence[str]) -> Labelled:
    pipeline, names, pixels, labels = Pipeline(classifier.spec), list(classifier.class_names), [], []
    for file in islice(find_images(paths), most_images(classifier)):
        label = label_of(file.path, names)
        read = read_pixels(file, pipeline) if label is not None else None
        if isinstance(read, np.ndarray):
            pixels.append(read)
            labels.append(names.index(str(label)))
    if not labels:
        raise ConfigError(f"{printable(', '.join(paths))}: no image in a folder named after a class to judge --int8 by")
    batch = pipeline.normalise(torch.from_numpy(np.stack(pixels)))
    return Labelled(batch, np.array(labels), np.arange(len(labels)), "given")
