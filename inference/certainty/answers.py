"""Fit to validation images what lets later answers say how sure they are.

N images, C classes, D features.
"""

import copy
import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import WeightsError
from common.files import write_text
from inference.certainty import conformal, unknown
from inference.certainty.conformal import LEVELS, fit_cut, sets_of, unit_weights
from inference.certainty.layer_features import WithUnlikeness
from inference.certainty.unknown import RATES, Gaussian, RobustScale, Unlikeness, fit_threshold, fit_unlikeness
from trainers.calibration import sharpness

FILE = "answers.json"
"""Name of the file in the folder of a run's predictions."""
RECORD = "answers"
"""The name among the metadata of an export."""
FORMAT = 4
Verdict = tuple[tuple[str, ...] | None, bool | None]
"""The names in the set of an image, the likeliest first, and whether it is unknown; None: nothing is promised."""
LEVEL, RATE = 0.95, 0.05
"""Default promise: coverage of the sets, and rate of false alarms."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Cuts for sets of classes, and a score with its thresholds for unknown images."""

    images: int
    """Validation images that they were fitted to."""
    units: int
    """Number of groups in which these come; an image that stands alone is one."""
    cuts: Mapping[float, float]
    """Level -> the least probability with which a class is in a set. A level with too few images is not there."""
    thresholds: Mapping[float, float]
    """Rate of false alarms -> the score above which an image is unknown."""
    unlikeness: Unlikeness
    weights: str = ""
    """SHA-256 of the checkpoint that they hold for, in a run."""
    temperature: float | None = None
    """Divisor of logits for calibrated probabilities; sets are made from probabilities as they are."""
    halved: bool = False
    """Whether half of the images fitted the score, and the thresholds are those of the other half."""

    def images_needed(self, levels: Iterable[float], rate: float) -> str | None:
        """Say how many images it takes for what cannot be promised; None: all can."""
        few = [level for level in levels if level not in self.cuts]
        needed = [f"{level:.0%} sets need {conformal.fewest_for_level(level)}" for level in few]
        if rate not in self.thresholds:
            needed.append(f"unknowns need {unknown.fewest_for_rate(rate) * (1 + self.halved)}")
        what = "images" if self.units == self.images else "groups"
        return f"{self.units} {what}; {', '.join(needed)}" if needed else None


def fit_answers(
    outputs: Any,
    features: Sequence[Tensor] | None,
    units: NDArray,
    *,
    weights: str = "",
) -> tuple[Answers, NDArray[np.float64]]:
    """Fit answers to the `Predictions` of N validation images.

    features: their parts (N, width), if they are known; units: the unit (N,) of each image. Returns the score for
    unknowns (N,), too; NaN of images that it is fitted to.
    """
    own = own_probabilities(outputs)
    unlikeness, scores = fit_unlikeness(outputs.logits if outputs.whole else None, features, units)
    cuts = {level: fit_cut(own, units, level) for level in LEVELS}
    thresholds = {rate: fit_threshold(scores, units, rate) for rate in RATES}
    answers = Answers(
        len(own),
        round(unit_weights(units).sum()),
        {level: cut for level, cut in cuts.items() if cut is not None},
        {rate: threshold for rate, threshold in thresholds.items() if threshold is not None},
        unlikeness,
        weights,
        fitted_temperature(outputs) if outputs.whole else None,
        halved=unlikeness.gaussian is not None,
    )
    return answers, scores


def fitted_temperature(outputs: Any) -> float:
    """Fit the temperature (Guo et al. 2017) to the logits and labels of validation images."""
    return 1 / sharpness(outputs.logits.double().numpy(), outputs.labels.numpy())


def own_probabilities(outputs: Any) -> NDArray[np.float64]:
    """Return each image's probability of its own class (N,).

    It is a float64 softmax where the logits were kept."""
    if not outputs.whole:
        return np.exp(-outputs.losses.double().numpy())
    shares = outputs.logits.double().softmax(dim=1)
    return shares.gather(1, outputs.labels[:, None])[:, 0].numpy()


class Judge:
    """A model with its answers: images in, logits and verdicts out, in one pass."""

    def __init__(
        self,
        model: nn.Module,
        answers: Answers,
        class_names: Sequence[str],
        *,
        level: float = LEVEL,
        rate: float = RATE,
        amp_dtype: torch.dtype | None = None,
    ) -> None:
        """Take a model in evaluation mode, on the device that its images come to.

        Autocast computes it in `amp_dtype`."""
        place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.model = WithUnlikeness(model, copy.deepcopy(answers.unlikeness).to(place), amp_dtype)
        self.class_names = class_names
        self.cut, self.threshold = answers.cuts.get(level), answers.thresholds.get(rate)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> tuple[Tensor, list[Verdict]]:
        """Score normalised images (B, channels, S, S): logits (B, C), and verdicts.

        They are float32, on the model's device."""
        logits, unlike = (part.float().cpu() for part in self.model(images))
        sets: list[Any] = [None] * len(images)
        unknown = sets if self.threshold is None else (unlike.numpy() > self.threshold).tolist()
        if self.cut is not None:
            in_set = sets_of(logits.double().softmax(dim=1).numpy(), self.cut)
            order = logits.argsort(dim=1, descending=True, stable=True).tolist()
            sets = [
                tuple(self.class_names[place] for place in places if inside[place])
                for places, inside in zip(order, in_set, strict=True)
            ]
        return logits, list(zip(sets, unknown, strict=True))


def write_answers(folder: Path, answers: Answers) -> Path:
    write_text(folder / FILE, to_text(answers))
    return folder / FILE


def read_answers(folder: Path, weights: str) -> Answers | None:
    """Read what `write_answers` left in a folder for these weights; None: nothing.

    Raises WeightsError: the file is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    answers = from_text(path.read_text("utf-8", errors="replace"), path)
    return answers if answers.weights == weights else None


def metadata_of(answers: Answers, kind: str) -> dict[str, str]:
    """Return what an export of this kind carries.

    In an ONNX file the score is a part of the network, and its numbers are not repeated."""
    if kind == "onnx":
        answers = dataclasses.replace(answers, unlikeness=Unlikeness(None, None, None))
    return {RECORD: to_text(answers)}


def answers_in(metadata: Mapping[str, Any], source: object) -> Answers | None:
    """Read what `metadata_of` gave; None: nothing. Raises WeightsError: it is not readable."""
    text = metadata.get(RECORD)
    return from_text(text, source) if text else None


def to_text(answers: Answers) -> str:
    """Return the answers as JSON; tensors are float32, little-endian, in base64."""
    score = answers.unlikeness
    gaussian = score.gaussian
    return json.dumps(
        {
            "format": FORMAT,
            "images": answers.images,
            "units": answers.units,
            "cuts": [*answers.cuts.items()],
            "thresholds": [*answers.thresholds.items()],
            "weights": answers.weights,
            "temperature": answers.temperature,
            "halved": answers.halved,
            "distance": score.distance and [score.distance.middle, score.distance.spread],
            "energy": score.energy and [score.energy.middle, score.energy.spread],
            "gaussian": gaussian and {name: _as_text(tensor) for name, tensor in gaussian.state_dict().items()},
            "rest": gaussian and gaussian.rest,
            "lengths": gaussian and gaussian.lengths,
        }
    )


def _as_text(tensor: Tensor) -> dict[str, Any]:
    return {"shape": [*tensor.shape], "float32": b64encode(tensor.numpy().astype("<f4").tobytes()).decode()}


def from_text(text: str, source: object) -> Answers:
    """Read what `to_text` gave. Raises WeightsError: the file `source` holds something else."""
    try:
        record = json.loads(text, parse_constant=lambda name: float(f"{name} is no number"))
        if record["format"] != FORMAT:
            raise WeightsError(
                f"{source}: answers of format {record['format']!r:.20}, and this version has {FORMAT}: evaluate again"
            )
        distance, energy = (record[name] and RobustScale(*map(float, record[name])) for name in ("distance", "energy"))
        gaussian = record["gaussian"] and _gaussian(record)
        if (gaussian is None) != (distance is None):
            raise ValueError("no whole score")
        cuts, thresholds = (
            {float(name): float(value) for name, value in record[part]} for part in ("cuts", "thresholds")
        )
        temperature = None if record["temperature"] is None else float(record["temperature"])
        images, units, weights = int(record["images"]), int(record["units"]), str(record["weights"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{source} is damaged: its answers are not readable ({str(error)[:60]})") from None
    score = Unlikeness(gaussian, distance, energy)
    return Answers(images, units, cuts, thresholds, score, weights, temperature, record["halved"] is True)


def _gaussian(record: Mapping[str, Any]) -> Gaussian:
    tensors = {}
    for name, kept in record["gaussian"].items():
        numbers = np.frombuffer(b64decode(kept["float32"], validate=True), "<f4").reshape(kept["shape"])
        tensors[name] = torch.from_numpy(numbers.astype(np.float32))
    mean, scale, axes, rest = tensors["mean"], tensors["scale"], tensors["axes"], float(record["rest"])
    if mean.shape != scale.shape or axes.shape[:1] != mean.shape or mean.dim() != 1 or axes.dim() != 2 or rest <= 0:
        raise ValueError("tensors that do not fit together")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("a tensor that is not finite")
    return Gaussian(mean, scale, axes, rest, [bool(own) for own in record["lengths"]])
