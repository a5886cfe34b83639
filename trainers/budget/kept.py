"""Choice between two finished runs: the one is kept that says more of the truth about the validation images."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.split_csv import clusters_of, groups_in, read_split
from trainers.heads.temperature import Floats, losses, sharpness
from trainers.statistics import numbered, summed
from trainers.storage.predictions_file import read_predictions
from trainers.storage.run_folder import read_json
from trainers.storage.run_result import RunResult

DECISIVE = 200
"""Validation images, or groups of them, from which the run with the lower log loss is kept, by however little."""
LEAST = 1e-12
"""Probability that stands for those that the file of predictions has rounded to 0."""


class OnValidation(NamedTuple):
    """The validation images of a run, in an order that runs on the same images share, and what its best weights say of
    them."""

    paths: list[str]
    losses: Floats
    """(n,): log loss after the best temperature; as it is where the run has so many images that no logits are kept."""


def on_validation(run_dir: Path) -> OnValidation:
    path = run_dir / "eval" / "val_predictions.npz"
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            paths = file["paths"].tolist()
            order = sorted(range(len(paths)), key=paths.__getitem__)  # as read_predictions has them
            return OnValidation([paths[row] for row in order], file["losses"].astype(np.float64)[order])
    names = read_json(run_dir / "meta.json", class_names=list)["class_names"]
    paths, labels, _, probabilities, _ = read_predictions(path.with_suffix(".csv"), names)
    logits = np.log(np.maximum(probabilities, LEAST))
    return OnValidation(list(paths), losses(sharpness(logits, labels) * logits, labels))


def better(later: RunResult, earlier: RunResult, *, favoured: bool) -> bool:
    """Return whether the later of two runs is the one to keep: where its log loss on the validation images, each after
    its own temperature, is the lower. Of fewer than `DECISIVE` images it has to be lower by more than one standard
    error, or, if `favoured`, higher by no more than that. Images of one group count as one: they err together."""
    now, then = (on_validation(run.run_dir) for run in (later, earlier))
    gains = then.losses - now.losses
    clusters = clusters_of(now.paths, groups_in(read_split(later.run_dir / "split.csv")))
    of_groups = summed(gains[None], numbered(clusters, len(gains))[0])[0]
    needed = 0.0 if len(of_groups) >= DECISIVE else float((of_groups**2).sum() ** 0.5)
    gained = of_groups.sum()
    return bool(gained > needed or (favoured and gained >= -needed))
