"""Score a finished run again, or any classifier on any labelled images."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import DataLoader

from common.errors import DataError
from common.files import cut_name
from datasets.bundle import SPLITS, TEST, Samples
from datasets.config import DataConfig, data_name
from datasets.copies import with_copies
from datasets.loaders import evaluation_loader
from datasets.open import labelled_samples
from inference.certainty.answers import read_answers
from inference.certainty.answers_report import fit_to, hold_against
from inference.classifier import Classifier
from inference.evaluation_report import Evaluation, write_evaluation
from inference.scored_pass import score
from trainers.options.defaults import resolve_device
from trainers.run_record import changes_of_machine, open_images
from trainers.seen import start_of, without_seen
from trainers.storage.checkpoint_file import open_best
from trainers.storage.run_folder import RunFolder, untrusted_run
from trainers.system.process_state import amp_dtype_on, set_precision
from vit.config import WHAT_THEY_ARE

PROCESSES_FROM = 2_000
"""Images from which processes that decode save more time than their start takes."""


def evaluate_run(run: RunFolder, *, split: str, data_root: Path | None = None, device: str | None = None) -> Evaluation:
    """Evaluate as training did, to the same bits.

    That takes the same evaluator, batch size, precision, thread count and device. `device`: None for one of the
    kind that the run trained on, or the best one where that is not there. On val the answers are fitted. Raises
    DataError: the data set changed since the run, or has no such split.
    """
    config = run.config
    place = torch.device(resolve_device(device or config.train.device, fall_back=device is None))
    set_precision(place, config.train.amp)
    if data_root is not None:
        config = config.changed(data={"root": data_root})
    opened, meta = open_best(run), run.meta
    with untrusted_run(may_fetch_images=data_root is not None):
        samples = open_images(run, config)
    there = [name for name in SPLITS if len(samples.indices(name))]
    if split not in there:
        raise DataError(f"{config.data.source} has no {split} split; it has {', '.join(there)}")
    classifier = Classifier(
        str(run),
        opened.model.to(place),
        opened.spec,
        opened.class_names,
        run=run,
        device=place,
        amp_dtype=amp_dtype_on(place, config.train.amp),
        answers=None if split == "val" else read_answers(run.path / "eval", opened.seal),
    )
    notes = [*filter(None, [run.unfinished]), *run.seen]
    with folder_for(run.path / "eval") as folder:
        weights = opened.seal if split == "val" else None
        loader = loader_of_pass(classifier, samples, split, config.data)
        evaluation = evaluate(classifier, loader, split, folder, fit_for=weights)
    if folder != run.path / "eval":
        evaluation = dataclasses.replace(evaluation, files=[])
        notes.append(f"nothing is kept of this: {run.path / 'eval'} cannot be written to; a copy of the run can")
    if config.model.name in WHAT_THEY_ARE:
        notes.append(f"{config.model.name}: {WHAT_THEY_ARE[config.model.name]}")
    if changes := changes_of_machine(meta, place):
        notes.append(f"changed since the run started: {changes}; the last bits may differ")
    logged = logged_metrics(run, split, opened.epoch)
    return dataclasses.replace(evaluation, epoch=opened.epoch, logged=logged, notes=notes)


def evaluate_on(
    classifier: Classifier, data: DataConfig, *, split: str | None, folder: Path | None = None
) -> Evaluation:
    """Score any classifier on labelled images, but for those of its training.

    Nothing is compared with what a run logged. Raises FileNotFoundError, DataError: no such data, classes that the
    classifier does not have, or less than half of the images are left."""
    listed = labelled_samples(data, class_names=classifier.class_names, split=split)
    samples = with_copies(listed, data.root)
    start = start_of(str(classifier.run or classifier.source))
    samples = samples.with_splits({TEST: samples.indices("val")})
    samples, seen = without_seen(samples, [start], remedy="name images that it was not trained on")
    stem = cut_name(data_name(data.source))
    own = stem in SPLITS  # what a run calls its own images
    name = "data_" * own + stem + (f"_{split}" if split else "")
    loader = loader_of_pass(classifier, samples, "test", data)
    evaluation = evaluate(classifier, loader, name, folder or classifier.folder / ("eval" if classifier.run else ""))
    return dataclasses.replace(evaluation, notes=[*listed.notes, *seen])


def loader_of_pass(classifier: Classifier, samples: Samples, split: str, data: DataConfig) -> DataLoader:
    """Build the loader of one pass.

    Threads of this process decode, or for a GPU, if there are many images, processes. `data` may say how many."""
    few = len(samples.indices(split)) < PROCESSES_FROM
    if data.workers is None and (few or classifier.device.type != "cuda"):
        data = dataclasses.replace(data, workers=0)
    return evaluation_loader(samples, split, classifier.spec, data, device=classifier.device)


def evaluate(
    classifier: Classifier, loader: DataLoader, name: str, folder: Path, *, fit_for: str | None = None
) -> Evaluation:
    """Score a classifier on the images of a loader, and write what was found.

    `fit_for`: name of its weights, for which answers are fitted to these images; without one its own answers are held
    against them.
    """
    scored = score(classifier, loader, name)
    judged = hold_against(scored, classifier.answers) if fit_for is None else fit_to(scored, fit_for)
    return write_evaluation(folder, judged)


@contextmanager
def folder_for(folder: Path) -> Iterator[Path]:
    """Yield a folder of a run, or a temporary one where it is read-only."""
    if os.access(folder if folder.is_dir() else folder.parent, os.W_OK):
        yield folder
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)


def logged_metrics(run: RunFolder, split: str, epoch: int) -> dict[str, float]:
    """Read what the run logged of a split for its best epoch; nothing of train."""
    if split == "test":
        test = run.summary.get("test") or {}
        return {name: value for name, value in test.items() if name != "n"}
    return run.validated(epoch) if split == "val" else {}
