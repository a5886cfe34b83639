"""Do intervals and verdicts hold where test images come in groups? Simulated test sets, with and without the groups.

python -m benchmarks.grouped_images [--sets 2000] [--pairs 2000] [--output benchmarks/results/grouped_images.json]

Coverage: how often the 95 % interval of one accuracy holds the true one, for accuracies of 60 to 95 % and 100 to 400
images whose correctness is correlated within groups. Told apart: how often two arms of equal accuracy are called
different, at 60 pictures with 5 near copies each and at 300 distinct ones; `--until-sure` takes 3 to 10 seeds.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import describe
from comparison.certainty import decide
from comparison.runs import Certainty
from comparison.statistics import is_claim, paired_difference
from trainers.intervals import design_of, wilson

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
ACCURACIES = (0.6, 0.7, 0.8, 0.9, 0.95)
SIZES = (100, 200, 400)
LAWS = ("beta", "copy", "whole")
FLIPPED = 0.02
"""Answers to near copies that differ from the answer to the first."""


def groups_of(kind: str, images: int, generator: np.random.Generator) -> Ints:
    """(images,): groups of 8 (the last may be smaller); of 1, 2, 3, 5, 8, 13 or 21 by chance; half of the images alone
    and half in groups of 8; four groups of 10, all others alone; or one group of a quarter, all others alone."""
    if kind == "eights":
        sizes = [8] * -(-images // 8)
    elif kind == "unequal":
        sizes = generator.choice([1, 2, 3, 5, 8, 13, 21], size=images).tolist()
    else:
        size, count = {"half in eights": (8, images // 16), "four of ten": (10, 4), "one": (images // 4, 1)}[kind]
        sizes = [size] * count + [1] * (images - size * count)
    return np.repeat(np.arange(len(sizes)), sizes)[:images]


KINDS = ("eights", "unequal", "half in eights", "four of ten", "one")


def right_images(
    groups: Ints, accuracy: float, *, correlation: float, law: str, generator: np.random.Generator
) -> Bools:
    """Which images are right, (N,), with this correlation between any two of a group. beta: each group has its own
    probability. copy: an image repeats its group's answer or has one of its own. whole: all of a group do, or none."""
    images, count = len(groups), groups.max() + 1
    own = generator.random(images) < accuracy
    if law == "beta":
        spread = 1 / correlation - 1
        return generator.random(images) < generator.beta(accuracy * spread, (1 - accuracy) * spread, count)[groups]
    shared = (generator.random(count) < accuracy)[groups]
    repeats = generator.random(images) < correlation**0.5
    if law == "whole":
        repeats = (generator.random(count) < correlation)[groups]
    return np.where(repeats, shared, own)


def coverage(
    kind: str, law: str, *, correlation: float, accuracy: float, images: int, sets: int
) -> tuple[float, float]:
    """How often the interval holds the accuracy, by groups and by images."""
    generator, held = np.random.default_rng([round(1000 * accuracy), images]), np.zeros(2)
    for _ in range(sets):
        groups = groups_of(kind, images, generator)
        right = right_images(groups, accuracy, correlation=correlation, law=law, generator=generator)
        for place, clusters in enumerate((groups, None)):
            low, high = wilson(int(right.sum()), images, design_of(right, clusters))
            held[place] += low <= accuracy <= high
    by_groups, by_images = held / sets
    return float(by_groups), float(by_images)


def equal_arms(
    pictures: int, copies: int, *, seeds: int, agree: bool, generator: np.random.Generator
) -> tuple[Bools, Bools]:
    """Two arms (K, N) of the same accuracy, whose runs agree as those of linear probes do, or differ as those from
    scratch do, also from seed to seed as a whole."""
    difficulty, of_runs, of_seeds = generator.normal(2.4, 2, pictures), 0.2 if agree else 1.5, 0.0 if agree else 0.1
    arms = []
    for _ in range(2):
        noise = of_runs * generator.standard_normal((seeds, pictures)) + of_seeds * generator.normal(size=(seeds, 1))
        right = np.repeat(difficulty + generator.standard_normal(pictures) + noise > 0, copies, axis=1)
        arms.append(right ^ (generator.random(right.shape) < FLIPPED) if copies > 1 else right)
    return arms[0], arms[1]


def told_apart(pictures: int, copies: int, *, seeds: int, agree: bool, pairs: int) -> tuple[float, float]:
    """How often equal arms are called different, by groups and by images; of 0 seeds: by `--until-sure`."""
    generator, told = np.random.default_rng([copies, seeds]), np.zeros(2)
    groups = np.repeat(np.arange(pictures), copies)
    for _ in range(pairs):
        arms = equal_arms(pictures, copies, seeds=seeds or Certainty().max_seeds, agree=agree, generator=generator)
        for place, clusters in enumerate((groups, None)):
            if seeds:
                told[place] += is_claim(paired_difference(*arms, clusters))
            else:
                told[place] += decide(*arms, Certainty(), clusters).verdict == "better"
    by_groups, by_images = told / pairs
    return float(by_groups), float(by_images)


def covered(sets: int) -> Iterator[dict]:
    """A line for each kind of groups and law: the mean over accuracies and sizes, and the cells it is of."""
    for kind, law, correlation in [*product(KINDS, LAWS, [0.5]), *((kind, "copy", 0.9) for kind in KINDS)]:
        cell = partial(coverage, kind, law, correlation=correlation, sets=sets)
        cells = np.array([cell(accuracy=accuracy, images=images) for accuracy in ACCURACIES for images in SIZES])
        yield {
            "groups": kind, "law": law, "correlation": correlation, "sets": sets * len(cells),
            "covered": float(cells[:, 0].mean()), "least": float(cells[:, 0].min()), "most": float(cells[:, 0].max()),
            "covered_by_images": float(cells[:, 1].mean()), "most_by_images": float(cells[:, 1].max()),
        }  # fmt: skip


def apart(pairs: int) -> Iterator[dict]:
    for (pictures, copies), seeds, agree in product([(300, 1), (60, 5)], [1, 3, 5, 0], [False, True]):
        by_groups, by_images = told_apart(pictures, copies, seeds=seeds, agree=agree, pairs=pairs)
        yield {
            "pictures": pictures, "copies": copies, "seeds": seeds or "until sure", "agree": agree, "pairs": pairs,
            "told_apart": by_groups, "told_apart_by_images": by_images,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=2000, help="for each accuracy and number of images")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/grouped_images.json"))
    options = parser.parse_args()
    found: dict[str, list[dict]] = {"coverage": [], "equal_arms": []}
    for name, rows in (("coverage", covered(options.sets)), ("equal_arms", apart(options.pairs))):
        for row in rows:
            found[name].append(row)
            print(
                {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
            options.output.write_text(json.dumps({**found, **describe()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
