"""Report on the answers of an evaluation: sentences, a table, a picture, numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import text_file, write_bytes
from common.text import printable
from inference.certainty.answers import LEVEL, RATE, Answers, fit_answers, own_probabilities, write_answers
from inference.certainty.conformal import CONFIDENCE, LEVELS, sets_of, unit_weights
from inference.prediction_table import columns_of_evaluation, write_rows
from inference.scored_pass import ScoredPass
from trainers.calibration import WANTED, answered
from trainers.reporting.figures.images import ImagePrediction

LEAST_OF_CLASS = 20
"""Images of a class from which its own share of false alarms is said."""


@dataclass(frozen=True, eq=False)
class JudgedPass:
    """A scored pass over N images, and what answers say of each.

    There are K columns of probabilities."""

    scored: ScoredPass
    answers: Answers | None
    """None: nothing is promised for this model."""
    unlike: NDArray[np.float64] | None
    """How unlike the validation images each is (N,), NaN of those that the score is fitted to; None: not known."""
    fitted: bool = False
    """Whether the answers were fitted to these very images."""

    @property
    def temperature(self) -> float | None:
        """Divisor of the logits; None: none was fitted, or the logits were not kept."""
        return self.answers.temperature if self.answers is not None and self.scored.outputs.whole else None

    @property
    def sets(self) -> NDArray[np.bool_] | None:
        """Classes in the set of each image at LEVEL (N, K); None: no promise."""
        cut = None if self.answers is None else self.answers.cuts.get(LEVEL)
        return None if cut is None else sets_of(self.scored.probabilities, cut)

    @property
    def unknown(self) -> NDArray[np.float64] | None:
        """1 for each image (N,) that is unknown at RATE, else 0.

        NaN and None as in `unlike`; None also where nothing can be promised."""
        threshold = None if self.answers is None else self.answers.thresholds.get(RATE)
        if threshold is None or self.unlike is None:
            return None
        return np.where(np.isnan(self.unlike), np.nan, self.unlike > threshold)


def fit_to(scored: ScoredPass, weights: str) -> JudgedPass:
    """Fit answers to a pass over validation images.

    `weights`: name of the weights that they hold for."""
    if not scored.outputs.whole and scored.features is None:
        return JudgedPass(scored, None, None, fitted=True)
    answers, unlike = fit_answers(scored.outputs, scored.features, scored.units, weights=weights)
    return JudgedPass(scored, answers, unlike, fitted=True)


def hold_against(scored: ScoredPass, answers: Answers | None) -> JudgedPass:
    """Score each image of a pass by answers that were fitted to other images."""
    if answers is None:
        return JudgedPass(scored, None, None)
    score = answers.unlikeness
    if (score.needs_logits and not scored.outputs.whole) or (score.needs_features and scored.features is None):
        return JudgedPass(scored, answers, None)
    return JudgedPass(scored, answers, score(scored.outputs.logits, scored.features).double().numpy())


def write_answers_report(folder: Path, judged: JudgedPass) -> tuple[dict[str, Any], list[str], list[Path]]:
    """Write `<name>_answers.csv` and `<name>_answers.png` into a folder, and answers that were fitted to these images.

    Returns the numbers of `numbers_of_answers`, sentences, and the files.
    """
    scored, answers, files = judged.scored, judged.answers, list[Path]()
    sets, unknown = judged.sets, judged.unknown
    if answers is not None:
        if judged.fitted:
            files.append(write_answers(folder, answers))
        files.append(folder / f"{scored.name}_answers.csv")
        with text_file(files[-1]) as file:
            write_rows(judged_images(judged), file, columns_of_evaluation())
    files.append(folder / f"{scored.name}_answers.png")
    draw_answers(files[-1], scored, sets)
    numbers = numbers_of_answers(judged, unknown)
    sentences = [*sentences_of(answers, numbers, fitted=judged.fitted)]
    if unknown is not None:
        known = ~np.isnan(unknown)
        of_classes, worst = unknown_by_class(unknown[known], scored.outputs.labels.numpy()[known], scored.class_names)
        numbers["unknown_by_class"], sentences = of_classes, [*sentences, *worst]
    return numbers, sentences, files


def numbers_of_answers(judged: JudgedPass, unknown: NDArray[np.float64] | None) -> dict[str, Any]:
    """Count how often answers are right, as fractions.

    Of groups of images each weighs as one image. `sets`: for each level that can be promised the share of
    images whose set has the right class, and the mean number of classes. `unknown`: the share of images called unlike
    the validation images.
    """
    scored, answers = judged.scored, judged.answers
    shares, correct = scored.probabilities, scored.outputs.correct.numpy()
    weights = unit_weights(scored.units)
    weights = weights / weights.sum()
    found: dict[str, Any] = {"right": WANTED, "answered": answered(shares.max(axis=1), correct)}
    if answers is None:
        return found
    own = own_probabilities(scored.outputs)
    sets = {}
    for level, cut in answers.cuts.items():
        covered = (own >= cut) | correct
        sizes = sets_of(shares, cut).sum(axis=1)
        sets[f"{level:g}"] = {"cut": cut, "cover": float(weights @ covered), "size": float(weights @ sizes)}
    found |= {"fitted_on": answers.images, "units": answers.units, "sets": sets}
    alarms = None
    if unknown is not None:
        known = ~np.isnan(unknown)
        alarms = float(np.average(unknown[known], weights=unit_weights(scored.units[known])))
    return found | {"false_alarms": RATE, "unknown": alarms}


def sentences_of(answers: Answers | None, numbers: dict[str, Any], *, fitted: bool) -> Iterator[str]:
    """Yield the sentences, each with its name in 17 columns."""
    share, right = numbers["answered"], f"{WANTED:.0%} right"
    of = "all" if share == 1 else f"the most confident {share:.1%}" if share else "none"
    yield f"{right:>17}  on {of} of these images"
    if answers is None:
        return
    for level in LEVELS:
        if (found := numbers["sets"].get(f"{level:g}")) is not None:
            here = "" if fitted else f", here {found['cover']:.1%}"
            head = f"{level:.0%} sets"
            yield f"{head:>17}  right class in at least {level:.0%}{here}; {found['size']:.2f} classes each"
    if (needed := answers.images_needed(LEVELS, RATE)) is not None:
        yield f"{'too few':>17}  {needed}"
    if numbers["unknown"] is not None:
        here = "of the half held back" if fitted else f"{RATE:.0%} are to be"
        yield f"{'unknown':>17}  {numbers['unknown']:.1%} unlike the validation images ({here})"
    yield f"{'promised':>17}  with {CONFIDENCE:.0%} probability, for images of the same source only"


def unknown_by_class(
    unlike: NDArray, labels: NDArray, class_names: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """Return the share of each class called unknown, and a line on a large one.

    A class without images is not among them."""
    images = np.bincount(labels, minlength=len(class_names))
    alarms = np.bincount(labels, weights=unlike, minlength=len(class_names))
    shares = alarms / np.maximum(images, 1)
    of_classes = {class_names[label]: float(shares[label]) for label in np.flatnonzero(images).tolist()}
    worst = int(np.where(images >= LEAST_OF_CLASS, shares, 0).argmax())
    sentence = f"most of them of class {printable(class_names[worst])}: {alarms[worst]:.0f} of {images[worst]:,}"
    many = images[worst] >= LEAST_OF_CLASS and shares[worst] > 2 * RATE
    return of_classes, [f"{'':>17}  {sentence}"] if many else []


def judged_images(judged: JudgedPass) -> Iterator[ImagePrediction]:
    """Yield each image with its likeliest class, set, and whether it is unknown."""
    scored, sets, unknown = judged.scored, judged.sets, judged.unknown
    names, shares, classes = scored.class_names, scored.probabilities, scored.columns
    predicted, labels = scored.outputs.predicted.tolist(), scored.outputs.labels.tolist()
    for row, (label, guess) in enumerate(zip(labels, predicted, strict=True)):
        inside = None
        if sets is not None:
            order = np.argsort(-shares[row], kind="stable")
            inside = tuple(names[classes[row, place]] for place in order[sets[row][order]])
        known = None if unknown is None or np.isnan(unknown[row]) else bool(unknown[row])
        best = ((names[guess], float(shares[row].max())),)
        yield ImagePrediction(scored.images.path(row), best, names[label], set=inside, unknown=known)


def draw_answers(path: Path, scored: ScoredPass, sets: NDArray | None) -> None:
    """Draw the accuracy on the most confident images, and the sizes of the sets."""
    from trainers.reporting.figures.results import coverage_picture  # matplotlib takes a second to import

    confidence, correct = scored.probabilities.max(axis=1), scored.outputs.correct.numpy()
    sizes, title = None if sets is None else sets.sum(axis=1), f"{scored.name}: {len(correct):,} images"
    write_bytes(path, coverage_picture(confidence, correct, title=title, sizes=sizes, level=LEVEL))
