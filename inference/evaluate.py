"""Score a finished run again, from its directory and its data; or any classifier on any labelled images."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from common.errors import DataError
from datasets.bundle import SPLITS, TEST
from datasets.config import DataConfig
from datasets.copies import with_copies
from datasets.loaders import evaluation_loader
from datasets.open import labelled_samples
from inference.certainty.answers import read_answers
from inference.certainty.features import recorded
from inference.classifier import Classifier
from inference.evaluation_report import Evaluation, write_evaluation
from trainers.engine.engines import score_split
from trainers.options.defaults import resolve_device
from trainers.run_record import changes_of_machine, open_images
from trainers.seen import start_of, without_seen
from trainers.storage.checkpoint_file import open_best
from trainers.storage.run_folder import RunFolder, untrusted_run
from trainers.system.process_state import amp_dtype_on, set_precision
from vit.config import WHAT_THEY_ARE
from vit.tensor_files import require_finite


def evaluate_run(run: RunFolder, *, split: str, data_root: Path | None = None, device: str | None = None) -> Evaluation:
    """Evaluate as training did: same evaluator, batch size, precision, thread count and device give the same bits.

    `device`: None for one of the kind that the run trained on, or the best one where that is not there. Raises
    DataError: the data set changed since the run, or has no such split."""
    config = run.config
    place = torch.device(resolve_device(device or config.train.device, fall_back=device is None))
    set_precision(place, config.train.amp)
    if data_root is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, root=data_root))
    opened = open_best(run)
    model, spec, class_names = opened.model, opened.spec, opened.class_names
    meta = run.meta
    with untrusted_run() if data_root is None else nullcontext():
        data = open_images(run, config, spec, place)
    if split not in data.dataloaders:
        raise DataError(f"{config.data.source} has no {split} split; it has {', '.join(data.dataloaders)}")
    loader = data.dataloaders[split]
    with recorded(model) as kept:
        scores = score_split(model.to(place), loader, place, amp_dtype_on(place, config.train.amp))
    require_finite(run.path, {"the output": scores.outputs.losses})
    notes = [*filter(None, [run.unfinished]), *run.seen]
    with folder_for(run.path / "eval") as folder:
        about = (folder, split, scores, kept, loader.dataset, class_names)
        if split == "val":  # an earlier file of answers is not read where it is replaced
            evaluation = write_evaluation(*about, fit_for=opened.seal)
        else:
            evaluation = write_evaluation(*about, answers=read_answers(folder, opened.seal))
    if folder != run.path / "eval":
        evaluation = dataclasses.replace(evaluation, files=[])
        notes.append(f"nothing is kept of this: {run.path / 'eval'} cannot be written to; a copy of the run can")
    if config.model.name in WHAT_THEY_ARE:
        notes.append(f"{config.model.name}: {WHAT_THEY_ARE[config.model.name]}")
    if changes := changes_of_machine(meta, place):
        notes.append(f"changed since the run started: {changes}; the last bits may differ")
    logged = logged_metrics(run, split, opened.epoch)
    return dataclasses.replace(evaluation, epoch=opened.epoch, logged=logged, notes=notes)


@contextmanager
def folder_for(folder: Path) -> Iterator[Path]:
    """Yield a folder of a run, or a copy that goes with the block where it cannot be written to."""
    if os.access(folder if folder.is_dir() else folder.parent, os.W_OK):
        yield folder
        return
    with TemporaryDirectory() as temporary:
        for path in folder.glob("*.json"):  # what an evaluation reads of earlier ones
            shutil.copyfile(path, Path(temporary, path.name))
        yield Path(temporary)


def evaluate_on(
    classifier: Classifier, data: DataConfig, *, split: str | None, folder: Path | None = None
) -> Evaluation:
    """Score any classifier on any labelled images, but for those that its run used in training.

    Nothing is compared with what a run logged. Raises FileNotFoundError, DataError: no such data, classes that the
    classifier does not have, or less than half of the images are left."""
    samples = with_copies(labelled_samples(data, class_names=classifier.class_names, split=split), data.root)
    start = start_of(str(classifier.run or classifier.source))
    samples = samples.with_splits({TEST: samples.indices("val")})
    samples, notes = without_seen(samples, [start], remedy="name images that it was not trained on")
    stem = Path(data.source).stem or "data"
    own = stem in SPLITS  # what a run calls its own images
    name = "data_" * own + stem + (f"_{split}" if split else "")
    target = folder or classifier.folder / ("eval" if classifier.run else "")
    data = dataclasses.replace(data, workers=data.workers or 0)
    loader = evaluation_loader(samples, "test", classifier.spec, data, device=classifier.device)
    with recorded(classifier.model) as kept:
        scores = score_split(classifier.model, loader, classifier.device, classifier.amp_dtype)
    require_finite(classifier.source, {"the output": scores.outputs.losses})
    about = (target, name, scores, kept, loader.dataset, classifier.class_names)
    found = write_evaluation(*about, answers=classifier.answers)
    return dataclasses.replace(found, notes=list(notes))


def logged_metrics(run: RunFolder, split: str, epoch: int) -> dict[str, float]:
    """Read what the run logged for its best epoch: metrics.csv for val, summary.json for test."""
    if split == "test":
        test = run.summary.get("test") or {}
        return {name: value for name, value in test.items() if name != "n"}
    return run.validated(epoch)
