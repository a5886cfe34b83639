"""Cover of sets of classes against their promise, and images that are found to be unlike those trained on.

    python -m benchmarks.certainty cover RUN RUN RUN RUN
    python -m benchmarks.certainty unknown RUN FOLDER...
    python -m benchmarks.certainty left-out FOLDER [OPTION OF TRAIN]...
    python -m benchmarks.certainty cost RUN...

cover: the images that each finished run scored (val and test predictions) are cut anew, 200 times, into 30, 60, 120 and
360 for calibration and the rest, and the share of right classes in the sets is counted on the rest; beside the mean
size of a set that of plain conformal prediction at the same rank, which MAPIE computes (tests/test_uncertainty.py).
unknown: of an evaluated run, AUROC of its own test images against those of each folder, by the score, the energy and
the maximum softmax; and the share of its own test images that is called unknown.
left-out: of a folder with train/ and test/, each class in turn is left out of a training; AUROC of its test images
against those of the classes that were trained. Without options a linear probe of `vit_stem_16` on 100 images a class.
cost: what the answers add to the processor time of an evaluation.
"""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import main as application
from benchmarks.environment import describe
from datasets.loaders import evaluation_loader
from inference.classifier import open_classifier
from inference.evaluate import evaluate_run, images_of
from inference.images import find_images, read_pixels
from trainers import answers as answers_hook
from trainers.storage.finished_run import read_run_config
from trainers.storage.predictions_file import read_predictions
from uncertainty.answers import RATE
from uncertainty.conformal import LEVELS, fewest, fit_cut, misses, sets_of
from uncertainty.features import WithUnlikeness

SPLITS, SIZES = 200, (30, 60, 120, 360)


def cover(shares: np.ndarray, labels: np.ndarray) -> list[dict[str, float]]:
    """A row for each number of calibration images and each level that it can promise."""
    generator, rows = np.random.default_rng(0), []
    for count in SIZES:
        for level in LEVELS:
            if count < fewest(level) or len(labels) < count + 100:
                continue
            found = []
            for _ in range(SPLITS):
                order = generator.permutation(len(labels))
                own, rest = order[:count], order[count:]
                cut = fit_cut(shares[own, labels[own]], np.arange(count), level)
                sets = sets_of(shares[rest], cut)
                # Plain conformal prediction at this rank: its sets may be empty.
                rank = count - misses(level, count)
                plain = shares[rest] >= np.sort(shares[own, labels[own]])[count - rank]
                found.append((sets[np.arange(len(rest)), labels[rest]].mean(), sets.sum(1).mean(), plain.sum(1).mean()))
            covers, sizes, others = np.array(found).T
            rows.append(
                {
                    "images": count, "level": level, "reached": float((covers >= level).mean()),
                    "cover": float(covers.mean()), "size": float(sizes.mean()), "plain_size": float(others.mean()),
                }
            )  # fmt: skip
    return rows


def kept(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of all images that a run scored."""
    names = json.loads((run / "meta.json").read_text())["class_names"]
    parts = [read_predictions(path, names) for path in sorted((run / "eval").glob("*[lt]_predictions.csv"))]
    return np.concatenate([part[3] for part in parts]), np.concatenate([part[1] for part in parts])


@torch.inference_mode()
def scores(run: Path, batches) -> tuple[np.ndarray, np.ndarray]:
    """Compute unlikeness and logits of batches of normalised images."""
    classifier = open_classifier(str(run), device="cpu")
    model = WithUnlikeness(classifier.model, classifier.answers.unlikeness)
    logits, unlike = zip(*(model(images) for images in batches), strict=True)
    return torch.cat(unlike).numpy(), torch.cat(logits).double().numpy()


def unknown(run: Path, folders: list[str]) -> dict[str, Any]:
    from datasets.transforms import Pipeline

    classifier, config = open_classifier(str(run), device="cpu"), read_run_config(run)
    data = images_of(run, config, classifier.spec, tuple(classifier.class_names))
    samples = data.dataloaders["val"].dataset.samples
    own = scores(run, (images for images, _ in evaluation_loader(samples, "test", classifier.spec, config.data)))
    pipeline, found = Pipeline(classifier.spec), {}
    for folder in folders:
        pixels = [read_pixels(file, pipeline) for file in find_images([folder])]
        stacked = pipeline.normalise(torch.from_numpy(np.stack([p for p in pixels if isinstance(p, np.ndarray)])))
        far = scores(run, stacked.split(64))
        truth = np.repeat([0, 1], [len(own[0]), len(far[0])])

        def area(first: np.ndarray, second: np.ndarray, truth: np.ndarray = truth) -> float:
            return float(roc_auc_score(truth, np.concatenate([first, second])))

        found[Path(folder).parent.name] = {
            "score": area(own[0], far[0]),
            "energy": area(*(-np.logaddexp.reduce(logits, axis=1) for _, logits in (own, far))),
            "max_softmax": area(
                *(np.logaddexp.reduce(logits, axis=1) - logits.max(axis=1) for _, logits in (own, far))
            ),
        }
    threshold = classifier.answers.thresholds[RATE]
    return {"false_alarms": float((own[0] > threshold).mean()), "images": len(own[0]), "against": found}


PROBE = (
    "--model", "vit_stem_16", "--weights", "tiny_imagenet", "--trainable", "head", "--augment", "none",
    "--labels-per-class", "100",
)  # fmt: skip


def left_out(folder: Path, options: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Measure every class left out in turn, by the score and the two yardsticks."""
    found = {}
    for place in sorted((folder / "test").iterdir()):
        with tempfile.TemporaryDirectory() as temporary:
            root, far = Path(temporary) / "set", Path(temporary) / place.name / "far"
            shutil.copytree(folder / "train", root / "train", ignore=shutil.ignore_patterns(place.name))
            shutil.copytree(folder / "test", root / "test", ignore=shutil.ignore_patterns(place.name))
            shutil.copytree(place, far)
            run = Path(temporary) / "runs" / "set" / "one"
            words = ["--output-dir", str(run.parent.parent), "--run-name", "one", "--tb", "scalars", "--device", "cpu"]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                done = application.main(["train", str(root), *(options or PROBE), *words])
                done = done or application.main(["evaluate", str(run)])
            if done:
                sys.exit(said.getvalue())
            (found[place.name],) = unknown(run, [str(far)])["against"].values()
        print(place.name, found[place.name], file=sys.stderr, flush=True)
    return found


def cost(run: Path, rounds: int = 7) -> dict[str, Any]:
    """Seconds of processor time of an evaluation of the validation images without and with the answers, in turns, after
    one of each."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    known = answers_hook.available
    try:
        for _ in range(rounds + 1):
            for on in seconds:
                answers_hook.available = on
                start = time.process_time()
                evaluate_run(run, split="val")
                seconds[on].append(time.process_time() - start)
    finally:
        answers_hook.available = known
    without, having = (np.array(seconds[on][1:]) for on in (False, True))
    ratios = sorted(having / without)
    return {
        "without": float(np.median(without)), "with": float(np.median(having)), "ratios": ratios,
        "ratio": float(np.median(having) / np.median(without)),
    }  # fmt: skip


def main(what: str, first: str, *others: str) -> None:
    if what == "cost":
        found = {Path(run).name: cost(Path(run)) for run in (first, *others)}
    elif what == "left-out":
        found = {Path(first).name: left_out(Path(first), others)}
    elif what == "cover":
        found = {Path(run).name: cover(*kept(Path(run))) for run in (first, *others)}
    else:
        found = {Path(first).name: unknown(Path(first), list(others))}
    print(json.dumps({"environment": describe("torch", "numpy", "scikit-learn"), "found": found}, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
