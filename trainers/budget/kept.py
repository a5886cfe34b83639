"""Which of two finished runs is kept: the one that says more of the truth about the validation images."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.split_reading import clusters_of, groups_in, read_split
from datasets.tables import read_rows
from trainers.engine.intervals import numbered, summed
from trainers.engine.temperature import Floats, losses, sharpness
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_result import RunResult

DECISIVE = 200
"""Validation images, or groups of them, from which the run with the lower log loss is kept, by however little."""
LEAST = 1e-12
"""Probability that stands for those that the file of predictions has rounded to 0."""


class OnValidation(NamedTuple):
    """The validation images of a run, in stored order, and what its best weights say of them."""

    paths: list[str]
    losses: Floats
    """(n,): log loss after the best temperature; as it is where the run has so many images that no logits are kept."""


def on_validation(run_dir: Path) -> OnValidation:
    path = run_dir / "eval" / "val_predictions.npz"
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            return OnValidation(file["paths"].tolist(), file["losses"].astype(np.float64))
    names = class_names(run_dir)
    rows = read_rows(path.with_suffix(".csv"), ("path", "label", "probabilities"))
    labels = np.array([names.index(row["label"]) for row in rows])
    logits = np.log(np.maximum([[float(word) for word in row["probabilities"].split()] for row in rows], LEAST))
    return OnValidation([row["path"] for row in rows], losses(sharpness(logits, labels) * logits, labels))


def class_names(run_dir: Path) -> list[str]:
    return list(read_checkpoint(best_of(run_dir))["class_names"])


def better(later: RunResult, earlier: RunResult, *, favoured: bool) -> bool:
    """Return whether the later of two runs is the one to keep: where its log loss on the validation images, each after
    its own temperature, is the lower. Of fewer than `DECISIVE` images it has to be lower by more than one standard
    error, or, if `favoured`, higher by no more than that. Images of one group count as one: they err together."""
    now, then = (on_validation(run.run_dir) for run in (later, earlier))
    gains = then.losses - now.losses
    clusters = clusters_of(now.paths, groups_in(read_split(later.run_dir / "split.csv")))
    of_groups = summed(gains[None], numbered(clusters, len(gains))[0])[0]
    needed = 0.0 if len(of_groups) >= DECISIVE else float((of_groups**2).sum() ** 0.5)
    return bool(gains.sum() > needed or (favoured and gains.sum() >= -needed))
