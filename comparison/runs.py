"""Read finished runs, name them, and require what makes them comparable."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.errors import CheckpointError, DataError
from common.options import ChoosesImages, Neutral, OfWeights
from common.shell import command
from common.text import pluralise
from datasets.bundle import SPLITS
from datasets.config import data_name
from datasets.split_csv import SplitRow, clusters_of, read_split
from trainers.config import run_options, to_dict
from trainers.seen import left_out_of
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import SavedPredictions, predictions_of
from vit.config import Network


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run: options, results, test images, and its place in a comparison."""

    folder: RunFolder
    seed: int
    config: dict[str, Any]
    summary: dict[str, Any]
    meta: dict[str, Any]
    history: list[dict[str, Any]]
    """metrics.csv: numbers, None where a cell is empty."""
    class_names: tuple[str, ...]
    predictions: pd.DataFrame
    """A row per test image, sorted by path: see `scored_images`."""
    left_out: frozenset[str] = frozenset()
    """Paths left out because another run started from weights trained on them."""
    labels_per_class: int | None = None
    """None: all training images."""
    arm: str = ""


def scored_images(saved: SavedPredictions, groups: Mapping[str, str]) -> pd.DataFrame:
    """Return a row per image: what it is, what was predicted, and with what probability.

    path; label and predicted as numbers of classes; whether that is right; the probabilities of the predicted class
    (confidence) and of the label; unit, a number that images of one group share. `groups`: the group by path of the
    images that have one.
    """
    paths, labels, predicted, probabilities, _ = saved
    columns = {
        "path": pd.Series(paths, dtype=object),  # pandas' own text holds only names in Unicode
        "label": labels,
        "predicted": predicted,
        "right": labels == predicted,
        "confidence": probabilities.max(axis=1),
        "of_label": probabilities[np.arange(len(labels)), labels],
        "unit": clusters_of(paths, groups),
    }
    return pd.DataFrame(columns)


def read_run(run_dir: Path) -> FinishedRun:
    """Read a finished run.

    Raises FileNotFoundError: no run directory, or it lacks a file. DataError: it is not finished, or has no test
    images. CheckpointError: a damaged file."""
    run = RunFolder.find(str(run_dir))
    config, summary = run.given, run.summary
    if (status := summary["status"]) != "finished":
        raise DataError(f"{run} is {status}, not finished; finish it with: {command('resume', run.path)}")
    open_yet = [name for name in ("epochs", "lr") if getattr(config.train, name) is None]
    if open_yet:
        raise CheckpointError(f"{run}/config.json is damaged: {open_yet[0]} of a run that has ended is open")
    if not any(run.path.glob("eval/test_predictions.*")):
        raise DataError(
            f"{run} has no eval/test_predictions.csv: runs are compared on test images; where a set has none, "
            f"{command('compare', '--data', 'FOLDER')} holds some out"
        )
    saved, rows = predictions_of(run, "test"), read_split(run.split_file)
    if {*saved.paths} != {row.path for row in rows if row.split == "test"}:
        raise DataError(f"{run}/eval has predictions of other images than its test images: evaluate it again")
    images = scored_images(saved, {row.path: row.group for row in rows if row.split == "test" and row.group})
    known = (run, config.train.seed, to_dict(config), summary, run.meta, run.history, saved.class_names)
    return FinishedRun(*known, images)


def on_unseen(runs: Sequence[FinishedRun]) -> tuple[list[FinishedRun], list[str]]:
    """Leave out of all runs the test images that one of them was trained on.

    Weights that a run started from count, too. Returns also lines about it. A run with `--allow-seen` left
    nothing out: its own lines are returned. Raises DataError: less than half is left.
    """
    allowed = [run.folder for run in runs if run.config["data"].get("allow_seen")]
    said = [f"{folder}: {line}" for folder in allowed for line in folder.seen]
    gone = frozenset(path for run in runs for path in left_out_of(run.folder))
    kept = [run.predictions[~run.predictions["path"].isin(gone)].reset_index(drop=True) for run in runs]
    parts = [replace(run, predictions=images, left_out=gone) for run, images in zip(runs, kept, strict=True)]
    lost = max(len(run.predictions) - len(images) for run, images in zip(runs, kept, strict=True))
    if not lost:
        return parts, said
    most = max(len(run.predictions) for run in runs)
    line = f"{pluralise(lost, 'image')} of {most:,} were used to train what some of these runs started from"
    if 2 * (most - lost) < most:
        raise DataError(f"{line}: too few are left to compare on; train them from one start, or with one --split")
    return parts, [f"{line}: left out for all of them", *said]


def require_same_data(runs: Sequence[FinishedRun], *, splits: Sequence[str] = SPLITS) -> None:
    """Raise DataError for runs with different images, classes or labels in these splits."""
    first, *others = runs
    for other in others:
        if reasons := differences(first, other, splits):
            raise DataError(f"{first.folder} and {other.folder} cannot be compared: {'; '.join(reasons)}")


def differences(first: FinishedRun, other: FinishedRun, splits: Sequence[str] = SPLITS) -> list[str]:
    """List as phrases how two runs, A and B, differ in these splits."""
    if first.class_names != other.class_names:
        unlike = _unlike("classes", set(first.class_names), set(other.class_names))
        return unlike or ["the same classes in another order"]
    ours, theirs = ({path: row for path, row in split_rows(run) if row.split in splits} for run in (first, other))
    reasons = []
    for split in reversed(splits):
        named = ({path for path, row in table.items() if row.split == split} for table in (ours, theirs))
        reasons += _unlike(f"{split} images", *named)
    both = [(row, theirs[path]) for path, row in ours.items() if path in theirs]
    alike = [(row, their) for row, their in both if row.kind == their.kind]  # a hash of a path says nothing of contents
    for pairs, column, name in ((alike, "hash", "content"), (both, "label", "label")):
        changed = [row.path for row, their in pairs if getattr(row, column) != getattr(their, column)]
        if changed:
            reasons.append(f"{pluralise(len(changed), 'image')} changed {name}, first {changed[0]!r}")
    predicted = [run.predictions["path"].tolist() for run in (first, other)]
    if not reasons and predicted[0] != predicted[1]:
        reasons.append(f"predictions for {len(predicted[0]):,} images in A, {len(predicted[1]):,} in B")
    return reasons


def split_rows(run: FinishedRun) -> Iterator[tuple[str, SplitRow]]:
    """Yield the images of a run by path, sorted, as its split.csv has them."""
    rows = sorted(read_split(run.folder.split_file))
    return ((row.path, row) for row in rows if row.path not in run.left_out)


def _unlike(noun: str, ours: set[str], theirs: set[str]) -> list[str]:
    only = {"A": ours - theirs, "B": theirs - ours}
    parts = [f"{len(names):,} only in {run}, first {min(names)!r}" for run, names in only.items() if names]
    return [f"{len(ours):,} {noun} in A, {len(theirs):,} in B ({'; '.join(parts)})"] if parts else []


def group_into_arms(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Group runs that differ in their seed alone into models.

    Models come in the order of first appearance, the runs of each by seed. A second run of the same configuration and
    seed begins a model of its own. Raises DataError: one model, or other seeds.
    """
    groups: dict[tuple[str, int], dict[int, FinishedRun]] = {}
    for run in runs:
        text = json.dumps(settings(run.config), sort_keys=True)
        copy = next(number for number in count(1) if run.seed not in groups.get((text, number), {}))
        groups.setdefault((text, copy), {})[run.seed] = run
    if len(groups) < 2:
        raise DataError(
            f"{pluralise(len(runs), 'run')} of one configuration are one model, not a comparison; "
            "name runs that differ in more than their seed"
        )
    arms = list(groups.values())
    names = folder_names([next(iter(arm.values())).folder.path for arm in arms])
    if all(len(arm) > 1 for arm in arms):  # a run's default name ends in its seed
        shorter = [re.sub(r"_s\d+$", "", name) for name in names]
        names = shorter if len({*shorter}) == len(names) else names
    names = [f"{name} ({copy})" if copy > 1 else name for name, (_, copy) in zip(names, groups, strict=True)]
    if any(arm.keys() != arms[0].keys() for arm in arms):
        listed = "; ".join(f"{name}: {sorted(arm)}" for name, arm in zip(names, arms, strict=True))
        raise DataError(f"the models have different seeds ({listed}); name runs of the same seeds")
    labels = runs[0].config["data"]["labels_per_class"]
    return [
        replace(arm[seed], arm=name, labels_per_class=labels)
        for name, arm in zip(names, arms, strict=True)
        for seed in sorted(arm)
    ]


def cautions(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Yield which models were trained on other images than the first."""
    first, *others = (run for run in runs if run.seed == runs[0].seed)
    for run in others:
        if reasons := differences(first, run):
            yield f"{first.arm} (A) and {run.arm} (B) were trained on different images: {'; '.join(reasons)}"


Config = Mapping[str, Mapping[str, Any]]
"""Resolved options of a run, as in config.json."""


def settings(config: Config) -> dict[str, str]:
    """Return every option that can change a result, as text."""
    found = {
        option: _text(value)
        for section in ("model", "train", "data")
        for option, value in config[section].items()
        if option not in _irrelevant()
    }
    if networks := config["model"].get("networks"):
        found["weights"] = ", ".join(each["weights"] for each in networks if each["weights"])
    return {"data": data_name(config["data"]["source"]), "model": _in_words(config["model"])} | found


def settings_that_differ(configs: Sequence[Config]) -> list[tuple[str, list[str]]]:
    """Return each option that matters and differs, with its value in each config."""
    values = [settings(config) for config in configs]
    options = dict.fromkeys(option for plain in values for option in plain)
    rows = [(option, [plain.get(option, "-") for plain in values]) for option in options]
    return [(option, row) for option, row in rows if len(set(row)) > 1]


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Name runs by their paths, without the first and the last folders that all share."""
    parts = [[*folder.absolute().parts] for folder in folders]
    while len({tuple(each[-1:]) for each in parts}) == 1 and min(map(len, parts)) > 1 and len({*map(tuple, parts)}) > 1:
        parts = [each[:-1] for each in parts]
    shared = len([*takewhile(lambda column: len({*column}) == 1, zip(*parts, strict=False))])
    return ["/".join(each[shared:]) or each[-1] for each in parts]


def arm_names(configs: Sequence[Config]) -> list[str]:
    """Name each by its model and weights, then by options that differ.

    These distinguish it from others of the same name. Equal names mean the same configuration twice.
    """
    names = [_model_and_start(config["model"]) for config in configs]
    values = [settings(config) for config in configs]
    derived = {option.name for option in run_options(OfWeights)}
    chosen = [{option: text for option, text in plain.items() if option not in derived} for plain in values]
    return _with_differences(_with_differences(names, chosen), values)


@cache
def _irrelevant() -> frozenset[str]:
    """List the options that are no setting of a model.

    They change no result, are compared themselves, or are in each name."""
    found = (option.name for mark in (Neutral, ChoosesImages) for option in run_options(mark))
    return frozenset({*found, "seed", "name", "networks"})


def _with_differences(names: Sequence[str], values: Sequence[Mapping[str, str]]) -> list[str]:
    """Add to equal names the options in which they differ."""
    longer = []
    for name, mine in zip(names, values, strict=True):
        alike = [theirs for other, theirs in zip(names, values, strict=True) if other == name]
        options = dict.fromkeys(option for theirs in alike for option in theirs)
        differing = [o for o in options if any(theirs.get(o, "-") != mine.get(o, "-") for theirs in alike)]
        longer.append(" ".join([name, *(f"{option}={mine.get(option, '-')}" for option in differing)]))
    return longer


def _model_and_start(model: Mapping[str, Any]) -> str:
    start = "from scratch" if model["weights"] == "none" else "pretrained"  # None: weights of an `hf:` model
    kind, _, number = model["trainable"].partition(":")
    known = {"all": "", "head": ", head only", "norms": ", norms and head", "last": f", last {number} blocks"}
    part = known.get(kind, f", LoRA of rank {number}")
    return f"{_in_words(model)} {start}{part}"


def _in_words(model: Mapping[str, Any]) -> str:
    return " + ".join(str(Network(**each)) for each in model.get("networks", ())) or str(model["name"])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_names(names: Sequence[str]) -> list[str]:
    """Leave out of each name the first words that all have."""
    words = [name.split() for name in names]
    shared = len([*takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))])
    return [" ".join(own[shared:]) or name for own, name in zip(words, names, strict=True)]


def slugs(names: Sequence[str]) -> list[str]:
    """Make different folder names of the short names.

    They have no hyphens, at which TensorBoard would break a row, but before a number."""
    short = [re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_")[:60] for name in short_names(names)]
    return [slug if short.count(slug) == 1 else f"{slug}-{place}" for place, slug in enumerate(short, 1)]
