"""Everything that an evaluation fits to validation images so that later answers say how sure they are, and its file.

N images, C classes, D features.
"""

import copy
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import WeightsError
from common.files import replacing
from inference.certainty import conformal, unknown
from inference.certainty.conformal import LEVELS, fit_cut, sets_of, unit_weights
from inference.certainty.directions import Directions
from inference.certainty.features import two_outputs
from inference.certainty.gaussian import Gaussian
from inference.certainty.unknown import (
    OF_CLASSES,
    RATES,
    TENSORS,
    RobustScale,
    Scales,
    Unlikeness,
    fit_threshold,
    fit_unlikeness,
)
from vit.tensor_files import read_tree, write_tree

FILE = "answers.safetensors"
"""Name of the file beside the predictions of a run."""
RECORD = "answers"
"""The name among the metadata of an export."""
FORMAT = 2
READ = (1, 2)
"""The formats that are read: 1 had a score without directions and odds, and keeps it until the next evaluation."""
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
    """The file of the weights that they hold for, in a run."""
    temperature: float | None = None
    """Divisor of logits for calibrated probabilities; sets are made from probabilities as they are."""

    def without(self, levels: Iterable[float], rate: float) -> str | None:
        """Say what of this cannot be promised, and how many images it would take; None: nothing."""
        parts = [
            f"sets of {level:.0%} need {self._lack(conformal.fewest(level))}"
            for level in levels
            if level not in self.cuts
        ]
        if rate not in self.thresholds:
            parts.append(f"unknowns at {rate:.0%} false alarms need {self._lack(unknown.fewest(rate))}")
        return "; ".join(parts) or None

    def _lack(self, needed: int) -> str:
        what = "validation images" if self.units == self.images else "groups of validation images"
        return f"{needed} {what}, {needed - self.units} more than there are"


def fit_answers(
    outputs: Any,
    features: Sequence[Tensor] | None,
    units: NDArray,
    *,
    weights: str = "",
    temperature: float | None = None,
) -> tuple[Answers, NDArray[np.float64]]:
    """Fit to the `Predictions` of N validation images, with the parts (N, width) of their features, or None, and the
    unit (N,) of each; and the score for unknowns of each image, as if the image had not been there."""
    own = own_probabilities(outputs)
    unlikeness, scores = fit_unlikeness(
        outputs.logits if outputs.whole else None, features, outputs.labels.numpy(), units
    )
    cuts = {level: fit_cut(own, units, level) for level in LEVELS}
    thresholds = {rate: fit_threshold(scores, units, rate) for rate in RATES}
    answers = Answers(
        len(own),
        round(unit_weights(units).sum()),
        {level: cut for level, cut in cuts.items() if cut is not None},
        {rate: threshold for rate, threshold in thresholds.items() if threshold is not None},
        unlikeness,
        weights,
        temperature,
    )
    return answers, scores


def own_probabilities(outputs: Any) -> NDArray[np.float64]:
    """(N,): of each image the probability of its own class, as float64 softmax where the logits were kept."""
    if not outputs.whole:
        return np.exp(-outputs.losses.double().numpy())
    shares = outputs.logits.double().softmax(dim=1)
    return shares.gather(1, outputs.labels[:, None])[:, 0].numpy()


class Verdicts(NamedTuple):
    """Verdicts on B images."""

    logits: Tensor
    """float32 (B, C), on the CPU."""
    sets: NDArray[np.bool_] | None
    """(B, C): the classes in each set; None without a cut."""
    unknown: NDArray[np.bool_] | None
    """(B,): unlike the validation images; None without a threshold."""

    def each(self, class_names: Sequence[str]) -> Iterator[tuple[tuple[str, ...] | None, bool | None]]:
        """Yield for each image the names in its set, the likeliest first, and whether it is unknown."""
        order = self.logits.argsort(dim=1, descending=True, stable=True).tolist() if self.sets is not None else []
        for row in range(len(self.logits)):
            names = None
            if self.sets is not None:
                names = tuple(class_names[place] for place in order[row] if self.sets[row, place])
            yield names, None if self.unknown is None else bool(self.unknown[row])


class Judge:
    """A model with its answers: images in, logits and verdicts out, from one forward pass and one product."""

    def __init__(self, model: nn.Module, answers: Answers, *, level: float = LEVEL, rate: float = RATE) -> None:
        """`model` is in evaluation mode, on the device that its images come to."""
        place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.model = two_outputs(model, copy.deepcopy(answers.unlikeness).to(place))
        self.cut, self.threshold = answers.cuts.get(level), answers.thresholds.get(rate)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Verdicts:
        """float32 (B, channels, S, S), normalised, on the model's device."""
        logits, unlike = (part.float().cpu() for part in self.model(images))
        shares = logits.double().softmax(dim=1).numpy()
        sets = None if self.cut is None else sets_of(shares, self.cut)
        return Verdicts(logits, sets, None if self.threshold is None else unlike.numpy() > self.threshold)


def to_tree(answers: Answers) -> dict[str, Any]:
    """The answers as tensors and what JSON can say."""
    score = answers.unlikeness
    return {
        "format": FORMAT,
        "images": answers.images,
        "units": answers.units,
        "cuts": [*answers.cuts.items()],
        "thresholds": [*answers.thresholds.items()],
        "weights": answers.weights,
        "temperature": answers.temperature,
        **{name: scale and [scale.middle, scale.spread] for name, scale in vars(score.scales).items()},
        "rest": score.rest,
        "lengths": [*score.lengths],
        "gaussian": {name: score.get_buffer(name) for name in TENSORS} if score.scales.distance else None,
        "rest_within": score.rest_within,
        "of_classes": {name: score.get_buffer(name) for name in OF_CLASSES} if score.scales.direction else None,
    }


def from_tree(tree: Mapping[str, Any], source: object) -> Answers:
    """Read what `to_tree` gave. Raises WeightsError: the file `source` holds something else."""
    try:
        if tree["format"] not in READ:
            known = " and ".join(map(str, READ))
            raise WeightsError(f"{source}: answers of format {tree['format']!r:.20}; this version reads {known}")
        cuts, thresholds = (
            {_number(name): _number(value) for name, value in tree[part]} for part in ("cuts", "thresholds")
        )
        unlikeness = _unlikeness(tree)
        temperature = None if tree["temperature"] is None else _number(tree["temperature"])
        images, units, weights = int(tree["images"]), int(tree["units"]), str(tree["weights"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise WeightsError(f"{source} is damaged: its answers are not readable ({str(error)[:60]})") from None
    return Answers(images, units, cuts, thresholds, unlikeness, weights, temperature)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)


def _scale(pair: Any) -> RobustScale | None:
    if pair is None:
        return None
    middle, spread = map(_number, pair)
    if spread <= 0:
        raise ValueError(f"a spread of {spread}")
    return RobustScale(middle, spread)


def _unlikeness(tree: Mapping[str, Any]) -> Unlikeness:
    scales = Scales(**{name: _scale(tree.get(name)) for name in vars(Scales())})
    gaussian = directions = None
    if scales.distance is not None:
        gaussian = _gaussian(tree["gaussian"], _number(tree["rest"]), tree["lengths"])
    if scales.direction is not None:
        if gaussian is None:
            raise ValueError("directions without a distance")
        directions = _directions(tree["of_classes"], _number(tree["rest_within"]), len(gaussian.variances))
    if all(scale is None for scale in vars(scales).values()):
        raise ValueError("no score")
    return Unlikeness(gaussian, directions, scales)


def _directions(tensors: Mapping[str, Any], rest: float, width: int) -> Directions:
    whitening, classes = (tensors[name] for name in OF_CLASSES)
    _check("whitening", whitening, (width, width))
    _check("classes", classes, (width, classes.shape[1] if classes.dim() == 2 else 0))
    if rest <= 0 or classes.shape[1] == 0:
        raise ValueError("directions of no class")
    return Directions(whitening, classes, rest)


def _check(name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.shape != shape:
        raise ValueError(f"{name} is no tensor {shape}")
    if not tensor.isfinite().all():
        raise ValueError(f"{name} is not finite")


def _gaussian(tensors: Mapping[str, Any], rest: float, lengths: Any) -> Gaussian:
    mean, deviation, directions, variances = (tensors[name] for name in TENSORS)
    shapes = {"mean": (len(mean),), "directions": (len(mean), len(variances)), "variances": (len(variances),)}
    shapes["deviation"] = shapes["mean"]
    for name, shape in shapes.items():
        _check(name, tensors[name], shape)
    if rest <= 0 or (variances <= 0).any() or (deviation <= 0).any():
        raise ValueError("a variance that is not positive")
    if not isinstance(lengths, list) or not all(isinstance(own, bool) for own in lengths):
        raise ValueError("no list of parts")
    return Gaussian(mean, deviation, directions, variances, rest, tuple(lengths))


def write_answers(folder: Path, answers: Answers) -> Path:
    path = folder / FILE
    with replacing(path) as aside, aside.open("wb") as file:
        write_tree(file, {RECORD: to_tree(answers)})
    return path


def read_answers(folder: Path, weights: str) -> Answers | None:
    """Read what `write_answers` left in a folder for these weights; None: nothing. Raises WeightsError: the file is
    damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    tree = read_tree(path)
    if not isinstance(tree.get(RECORD), Mapping):
        raise WeightsError(f"{path} is damaged: it holds no answers")
    answers = from_tree(tree[RECORD], path)
    return answers if answers.weights == weights else None


def to_text(answers: Answers) -> str:
    """The answers as JSON for the metadata of an export; tensors float32, little-endian, in base64."""

    def as_text(value: Tensor) -> dict[str, Any]:
        return {"shape": [*value.shape], "float32": b64encode(value.numpy().astype("<f4").tobytes()).decode()}

    return json.dumps(to_tree(answers), default=as_text)


def from_text(text: str, source: object) -> Answers:
    """Read what `to_text` gave. Raises WeightsError: something else stands in the file `source`."""

    def put_back(value: dict[str, Any]) -> Any:
        if value.keys() != {"shape", "float32"}:
            return value
        numbers = np.frombuffer(b64decode(value["float32"], validate=True), "<f4").reshape(value["shape"])
        return torch.from_numpy(numbers.astype(np.float32))

    try:
        tree = json.loads(text, object_hook=put_back)
    except (ValueError, TypeError, RecursionError) as error:
        raise WeightsError(f"{source} is damaged: its answers are not readable ({type(error).__name__})") from None
    if not isinstance(tree, Mapping):
        raise WeightsError(f"{source} is damaged: its answers are not readable")
    return from_tree(tree, source)
