"""Report of an evaluation on its answers: in sentences, as a table of images, as a picture, and as numbers.

N images, K columns of probabilities: of all classes, or of a large pass the likeliest of each image.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from common.files import text_file, write_bytes
from common.tables import csv_lines
from common.text import printable
from datasets.copies import units_of
from inference.certainty.answers import LEVEL, RATE, Answers, fit_answers, own_probabilities, write_answers
from inference.certainty.conformal import CONFIDENCE, LEVELS, sets_of, unit_weights
from inference.certainty.features import in_one
from inference.predict import JOINT
from trainers.calibration import WANTED, answered

LEAST_OF_CLASS = 20
"""Images of a class from which its own share of false alarms is said."""


def report(
    folder: Path,
    name: str,
    outputs: Any,
    kept: Sequence[tuple[Tensor, ...]],
    dataset: Any,
    class_names: Sequence[str],
    *,
    answers: Answers | None,
    fit_for: str | None = None,
    temperature: float | None = None,
) -> tuple[dict[str, Any], list[str], list[Path]]:
    """Hold answers against a pass over N labelled images, or with `fit_for`, the name of the weights, fit them to it
    and write them into the folder. Writes `<name>_answers.csv` and `<name>_answers.png`; returns the numbers of
    `numbers_of`, sentences, and the files.

    outputs: the `Predictions` of the pass; kept: what `recorded` gave; dataset: its `samples`, `indices` and `path`.
    """
    units, features = units_of(dataset.samples, dataset.indices), in_one(kept, len(outputs.labels))
    scores, files = None, []
    if fit_for is not None and (outputs.whole or features is not None):
        answers, scores = fit_answers(outputs, features, units, weights=fit_for, temperature=temperature)
        files.append(write_answers(folder, answers))
    elif answers is not None:
        scores = scores_of(answers, outputs, features)
    shares, _ = columns_of(outputs)
    cut = None if answers is None else answers.cuts.get(LEVEL)
    sets = None if cut is None else sets_of(shares, cut)
    threshold = None if answers is None else answers.thresholds.get(RATE)
    unlike = None if threshold is None or scores is None else np.where(np.isnan(scores), np.nan, scores > threshold)
    if answers is not None:
        files.append(folder / f"{name}_answers.csv")
        with text_file(files[-1]) as file:
            rows = table_rows(outputs, dataset, class_names, sets, unlike)
            file.writelines(csv_lines(("path", "label", "predicted", "set", "unknown"), rows))
    files.append(folder / f"{name}_answers.png")
    draw(files[-1], shares.max(axis=1), outputs.correct.numpy(), sets, title=name)
    numbers = numbers_of(answers, outputs, unlike, units)
    said = [*lines(answers, numbers, fitted=fit_for is not None)]
    if unlike is not None:
        judged = ~np.isnan(unlike)
        of_classes, worst = unknown_by_class(unlike[judged], outputs.labels.numpy()[judged], class_names)
        numbers["unknown_by_class"], said = of_classes, [*said, *worst]
    return numbers, said, files


def scores_of(answers: Answers, outputs: Any, features: Sequence[Tensor] | None) -> NDArray[np.float64] | None:
    """Return how unlike the validation images each is (N,); None where a part of the score is not there."""
    score = answers.unlikeness
    of_features = score.gaussian is not None or score.energy is None  # or of an ONNX file, which gives its own
    if (score.energy is not None and not outputs.whole) or (of_features and features is None):
        return None
    return score(outputs.logits, features).double().numpy()


def columns_of(outputs: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Probabilities (N, K), and the classes (N, K) that they are of."""
    if not outputs.whole:
        return outputs.probabilities.double().numpy(), outputs.classes.numpy()
    shares = outputs.logits.double().softmax(dim=1).numpy()
    return shares, np.broadcast_to(np.arange(shares.shape[1]), shares.shape)


def numbers_of(answers: Answers | None, outputs: Any, unlike: NDArray | None, units: NDArray) -> dict[str, Any]:
    """Shares as fractions. `sets`: for each level that can be promised the share of images whose set has the right
    class, and the mean number of classes. `unknown`: the share of images called unlike the validation images. Of groups
    of images each weighs as one image."""
    shares, _ = columns_of(outputs)
    weights = unit_weights(units)
    weights = weights / weights.sum()
    found: dict[str, Any] = {"right": WANTED, "answered": answered(shares.max(axis=1), outputs.correct.numpy())}
    if answers is None:
        return found
    own = own_probabilities(outputs)
    sets = {}
    for level, cut in answers.cuts.items():
        held = (own >= cut) | outputs.correct.numpy()
        sizes = sets_of(shares, cut).sum(axis=1)
        sets[f"{level:g}"] = {"cut": cut, "cover": float(weights @ held), "size": float(weights @ sizes)}
    found |= {"fitted_on": answers.images, "units": answers.units, "sets": sets}
    alarms = None
    if unlike is not None:
        judged = ~np.isnan(unlike)
        alarms = float(np.average(unlike[judged], weights=unit_weights(units[judged])))
    return found | {"false_alarms": RATE, "unknown": alarms}


def lines(answers: Answers | None, numbers: dict[str, Any], *, fitted: bool) -> Iterator[str]:
    """Yield the sentences, each with its name in 17 columns and short enough for a terminal of 80."""
    share, right = numbers["answered"], f"{WANTED:.0%} right"
    of = "all" if share == 1 else f"the surest {share:.1%}" if share else "none"
    yield f"{right:>17}  on {of} of these images"
    if answers is None:
        return
    for level in LEVELS:
        if (found := numbers["sets"].get(f"{level:g}")) is not None:
            here = "" if fitted else f", here {found['cover']:.1%}"
            head = f"{level:.0%} sets"
            yield f"{head:>17}  right class in at least {level:.0%}{here}; {found['size']:.2f} classes each"
    if (lack := answers.without(LEVELS, RATE)) is not None:
        yield f"{'too few':>17}  {lack}"
    if numbers["unknown"] is not None:
        here = "of the half not fitted to" if fitted else f"{RATE:.0%} are to be"
        yield f"{'unknown':>17}  {numbers['unknown']:.1%} unlike the validation images ({here})"
    yield f"{'promised':>17}  with {CONFIDENCE:.0%} probability, for images of the same source alone"


def unknown_by_class(
    unlike: NDArray, labels: NDArray, class_names: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """Return which share of the images of each class, if it has any, is called unknown; and a line on the class where
    it is the largest, if it is large."""
    images = np.bincount(labels, minlength=len(class_names))
    alarms = np.bincount(labels, weights=unlike, minlength=len(class_names))
    shares = alarms / np.maximum(images, 1)
    of_classes = {class_names[label]: float(shares[label]) for label in np.flatnonzero(images).tolist()}
    worst = int(np.where(images >= LEAST_OF_CLASS, shares, 0).argmax())
    said = f"most of them of class {printable(class_names[worst])}: {alarms[worst]:.0f} of {images[worst]:,}"
    many = images[worst] >= LEAST_OF_CLASS and shares[worst] > 2 * RATE
    return of_classes, [f"{'':>17}  {said}"] if many else []


def table_rows(
    outputs: Any, dataset: Any, class_names: Sequence[str], sets: NDArray[np.bool_] | None, unlike: NDArray | None
) -> Iterator[list[str]]:
    """Yield a row per image: path, label, predicted, the set, and whether it is unknown.

    The last is empty where nothing is promised, and for images that the score is fitted to.
    """
    shares, classes = columns_of(outputs)
    predicted, labels = outputs.predicted.tolist(), outputs.labels.tolist()
    for row, (label, guess) in enumerate(zip(labels, predicted, strict=True)):
        names = ""
        if sets is not None:
            order = np.argsort(-shares[row], kind="stable")
            names = JOINT.join(class_names[classes[row, place]] for place in order[sets[row][order]])
        known = "" if unlike is None or np.isnan(unlike[row]) else ("yes" if unlike[row] else "no")
        cells = (dataset.path(row), class_names[label], class_names[guess], names, known)
        path, *others = cells
        yield [path, *map(printable, others)]


def draw(path: Path, confidence: NDArray, correct: NDArray, sets: NDArray | None, *, title: str) -> None:
    """Draw the accuracy on the images that it is surest of, and the sizes of the sets."""
    from trainers.reporting.figures.results import coverage_picture  # matplotlib takes a second to import

    sizes, title = None if sets is None else sets.sum(axis=1), f"{title}: {len(correct):,} images"
    write_bytes(path, coverage_picture(confidence, correct, title=title, sizes=sizes, level=LEVEL))
