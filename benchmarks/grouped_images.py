"""Do intervals and verdicts hold where test images come in groups? Simulated test sets, with and without the groups.

python -m benchmarks.grouped_images [--sets 2000] [--pairs 2000] [--output benchmarks/results/grouped_images.json]

Coverage: how often the 95 % interval of one accuracy holds the true one, for accuracies of 60 to 95 % and 100 to 400
images whose correctness is correlated within groups. Told apart: how often two arms of equal accuracy are called
different, at 60 pictures with 5 near copies each and at 300 distinct ones.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.environment import describe
from tests.simulated_groups import ACCURACIES, KINDS, LAWS, SIZES, coverage, told_apart


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
    for (pictures, copies), seeds, agree in product([(300, 1), (60, 5)], [1, 3, 5], [False, True]):
        by_groups, by_images = told_apart(pictures, copies, seeds=seeds, agree=agree, pairs=pairs)
        yield {
            "pictures": pictures, "copies": copies, "seeds": seeds, "agree": agree, "pairs": pairs,
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
