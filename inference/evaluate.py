"""Score a finished run again, from its directory and its data; or any classifier on any labelled images."""

import dataclasses
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from common.errors import CheckpointError, DataError
from common.text import shorten_list
from datasets.bundle import SPLITS, DataBundle, Samples
from datasets.config import DataConfig
from datasets.copies import with_copies
from datasets.identity import identified
from datasets.loaders import dataloaders_of, evaluation_loader, split_samples
from datasets.opened import labelled_samples
from datasets.split_csv import fingerprint
from inference.certainty.answers import read_answers
from inference.certainty.features import recorded
from inference.classifier import Classifier
from inference.evaluation_report import Evaluation, with_answers, write_evaluation
from trainers.config import RunConfig
from trainers.engine.evaluation import score_split, write_predictions
from trainers.engine.optim import build_average
from trainers.resume import newest_checkpoint
from trainers.run_start import changes_of_machine
from trainers.seen.overlap import read_seen, said_at_start
from trainers.seen.search import left_out, seen_images, unknown
from trainers.seen.starts import Start
from trainers.setup import AMP_DTYPES, prepare
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.finished_run import load, read_history, read_run_config, untrusted_run
from trainers.storage.places import require_images
from trainers.storage.run_folder import META, read_json
from vit import ImageSpec
from vit.config import WHAT_THEY_ARE


def evaluate_run(run_dir: Path, *, split: str, data_root: Path | None = None) -> Evaluation:
    """Evaluate as training did: same evaluator, batch size, precision and thread count give the same bits. Raises
    DataError: the data set changed since the run, or has no such split."""
    config = read_run_config(run_dir)
    if data_root is not None:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, root=data_root))
    model, spec, class_names = load(run_dir)
    meta = read_json(run_dir / "meta.json", **META)
    with untrusted_run() if data_root is None else nullcontext():
        data = images_of(run_dir, config, spec, class_names)
    if split not in data.dataloaders:
        raise DataError(f"{config.data.source} has no {split} split; it has {', '.join(data.dataloaders)}")
    device, loader = torch.device(config.train.device), data.dataloaders[split]
    with recorded(model) as kept:
        scores = score_split(model.to(device), loader, device, AMP_DTYPES[config.train.amp])
    weights, fits = best_of(run_dir).name, split == "val"  # an earlier file is not read where it is replaced
    evaluation = write_evaluation(run_dir / "eval", split, scores, loader.dataset, class_names, fit=fits)
    evaluation = with_answers(
        evaluation, split, scores, kept, loader.dataset, class_names,
        answers=None if fits else read_answers(run_dir / "eval", weights), fit_for=weights if fits else None,
    )  # fmt: skip
    epoch = read_checkpoint(best_of(run_dir))["epoch"]
    notes = [*said_at_start(run_dir)]
    if config.model.name in WHAT_THEY_ARE:
        notes.append(f"{config.model.name}: {WHAT_THEY_ARE[config.model.name]}")
    if changes := changes_of_machine(meta, device):
        notes.append(f"changed since the run started: {changes}; the last bits may differ")
    return dataclasses.replace(evaluation, epoch=epoch, logged=logged_metrics(run_dir, split, epoch), notes=notes)


def images_of(run_dir: Path, config: RunConfig, spec: ImageSpec, class_names: tuple[str, ...]) -> DataBundle:
    """The images that a run trained on, as its options name them. Raises DataError: they changed since."""
    require_images(run_dir, config)
    samples = left_out(split_samples(config.data), read_seen(run_dir), config.data)
    data = dataloaders_of(samples, config.data, spec, seed=config.train.seed)
    trained_on = read_json(run_dir / "meta.json", **META)["data_fingerprint"]
    if data.class_names != class_names:
        raise DataError(
            f"the classes changed since the run: it has {shorten_list(list(class_names), 20)}, "
            f"the data {shorten_list(list(data.class_names), 20)}"
        )
    here = fingerprint(data)
    if here != trained_on:
        raise DataError(
            f"the images of {config.data.source} changed since the run: fingerprint {here}, not {trained_on}"
        )
    return data


def score_last_epoch(run_dir: Path) -> None:
    """Let the weights that a run without a test split ended with predict its validation images.

    The best epoch was chosen on these images, so its own score on them is too good; the last epoch's is not. Raises
    CheckpointError: the run has no whole checkpoint of its last epoch. DataError: its images are not there.
    """
    folder = run_dir / "eval"
    if any(folder.glob("val_last_predictions.*")) or any(folder.glob("test_predictions.*")):
        return
    checkpoint = newest_checkpoint(run_dir)
    if checkpoint is None:
        raise CheckpointError(f"{run_dir}/checkpoints has no step_*: without a test split its last epoch is needed")
    with untrusted_run():
        config = read_run_config(run_dir)
        require_images(run_dir, config)
        setup = prepare(config, checkpoint=checkpoint, run_dir=run_dir)
    if "ema" in checkpoint:
        average = build_average(setup.model, decay=0.0)
        average.load_state_dict(checkpoint["ema"])
        setup.model.load_state_dict(average.module.state_dict())
    else:
        setup.model.load_state_dict(checkpoint["model"])
    loader = setup.data.dataloaders["val"]
    scores = score_split(setup.model, loader, setup.device, setup.amp_dtype)
    write_predictions(folder, "val_last", scores, loader.dataset, setup.data.class_names)


UNSEEN, SEEN = "val", "train"
"""The splits that stand for images that a classifier has not seen, and for those that it has."""


class SeenAndUnseen(NamedTuple):
    """A classifier on images that it has not seen, which tests it, and on those that it has, which does not."""

    unseen: Evaluation | None
    """None: it has seen all of them."""
    seen: Evaluation | None
    """None: it has seen none of them, as far as is known."""
    uses: Counter[str]
    """Number of the seen images that it was trained on, and of those that chose its epoch."""


def evaluate_on(
    classifier: Classifier, data: DataConfig, *, split: str | None, folder: Path | None = None
) -> SeenAndUnseen:
    """Score any classifier on any labelled images, in float32, without comparing with what a run logged: those that it
    has not seen, and apart from them those that it was trained on or that chose its epoch. Raises FileNotFoundError,
    DataError: no such data, or classes that the classifier does not have."""
    samples = with_copies(labelled_samples(data, class_names=classifier.class_names, split=split), data.root)
    samples, uses, notes = with_seen_apart(samples, classifier)
    stem = Path(data.source).stem or "data"
    own = stem in (*SPLITS, "val_last")  # what a run calls its own images
    name = "data_" * own + stem + (f"_{split}" if split else "")
    target = folder or classifier.folder / ("eval" if classifier.run_dir else "")

    def scored(part: str, name: str) -> Evaluation | None:
        if not len(samples.indices(part)):
            return None
        loader = evaluation_loader(samples, part, classifier.spec, dataclasses.replace(data, workers=data.workers or 0))
        with recorded(classifier.model) as kept:
            scores = score_split(classifier.model, loader, classifier.device, None)
        about = (name, scores, loader.dataset, classifier.class_names)
        found = write_evaluation(target, *about, fit=False)
        found = with_answers(found, name, scores, kept, *about[2:], answers=classifier.answers)
        return dataclasses.replace(found, notes=notes)

    return SeenAndUnseen(scored(UNSEEN, name), scored(SEEN, f"{name}_seen"), uses)


def with_seen_apart(samples: Samples, classifier: Classifier) -> tuple[Samples, Counter[str], list[str]]:
    """The samples of UNSEEN with those in SEEN that the classifier has seen; how many it used for what; and what must
    be said of it."""
    if classifier.seen is None:
        return samples, Counter(), []
    samples = identified(samples)
    start = Start(classifier.source, classifier.seen)
    as_test = samples.with_splits({SPLITS.index("test"): samples.indices(UNSEEN)})
    rows, images = seen_images(as_test, [start])
    uses = Counter(image.use for image in images)
    return samples.with_splits({SPLITS.index(SEEN): rows}), uses, [*unknown(samples, [start], images)]


def logged_metrics(run_dir: Path, split: str, epoch: int) -> dict[str, float]:
    """Read what the run logged for its best epoch: metrics.csv for val, summary.json for test."""
    if split == "test":
        test = read_json(run_dir / "summary.json")["test"] or {}
        return {name: value for name, value in test.items() if name != "n"}
    row = next(row for row in read_history(run_dir) if row["epoch"] == epoch)
    return {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}
