"""Measure how well unknown images are found: a left-out class, and other sets.

    python -m benchmarks.unknown_classes MODEL SIZE --keep FOLDER SET... [--every K]

Each SET is a folder with train/ and test/, of which up to 140 and 60 images a class are taken; 100 of the 140 fit a
linear head (multinomial logistic regression) on the frozen features, 40 fit the score, as an evaluation does. Near:
each class in turn (with --every each K-th) is left out, and its test images are scored against the others. Far: every
set against the test images of every other. Features are kept in the FOLDER: a second call takes seconds for each
class.
"""

import argparse
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.environment import describe
from datasets.transforms import Pipeline
from inference.certainty.layer_features import recorded, whole_parts
from inference.certainty.unknown import fit_threshold, fit_unlikeness
from inference.images import find_images, read_pixels
from vit import build_model, image_spec
from vit.config import ModelConfig, default_weights

TRAIN, VAL, TEST = 0, 1, 2
RATE = 0.05
Kept = dict[str, np.ndarray]


def kept_features(model: str, size: int, folder: Path, keep: Path) -> Kept:
    """Return features, labels and splits of a set; computed once."""
    path = keep / f"{model}_{size}_{folder.name}.npz"
    if not path.exists():
        config = ModelConfig(model, weights=default_weights(model), image_size=size)
        network, pipeline = build_model(config, num_classes=2).eval(), Pipeline(image_spec(config))
        rng, files, rows = np.random.default_rng(0), [], []
        classes = sorted(place.name for place in (folder / "test").iterdir())
        for label, name in enumerate(classes):
            for split, most in (("train", 140), ("test", 60)):
                found = sorted((folder / split / name).iterdir())
                found = [found[place] for place in rng.permutation(len(found))[:most]]
                val = round(len(found) * 40 / 140) if split == "train" else 0
                rows += [(label, TEST if split == "test" else VAL if n < val else TRAIN) for n in range(len(found))]
                files += found
        with torch.inference_mode(), recorded(network, len(files)) as recordings:
            for start in range(0, len(files), 32):
                images = find_images([str(file) for file in files[start : start + 32]])
                network(pipeline.normalise(torch.from_numpy(np.stack([read_pixels(i, pipeline) for i in images]))))
        parts = {f"part{n}": part.numpy() for n, part in enumerate(whole_parts(recordings) or ())}
        labels, splits = np.array(rows).T
        keep.mkdir(parents=True, exist_ok=True)
        np.savez(path, labels=labels, splits=splits, classes=np.array(classes), **parts)
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def parts_of(kept: Kept, rows: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(kept[name][rows]) for name in sorted(kept) if name.startswith("part"))


class Known:
    """Fit a linear head on some classes, and scores to their validation images."""

    def __init__(self, kept: Kept, known: np.ndarray) -> None:
        """Fit to the images `known`, bool (N,), whose classes are."""
        rows = {split: np.flatnonzero(known & (kept["splits"] == split)) for split in (TRAIN, VAL, TEST)}
        x, labels = parts_of(kept, rows[TRAIN])[-1].double().numpy(), kept["labels"]
        self.mean, self.deviation = x.mean(axis=0), np.sqrt(x.var(axis=0) + x.var())
        scaled = (x - self.mean) / self.deviation
        self.length = np.sqrt((scaled**2).sum(axis=1).mean())
        self.head = LogisticRegression(C=30.0, max_iter=60, tol=1e-3).fit(scaled / self.length, labels[rows[TRAIN]])
        features = parts_of(kept, rows[VAL])
        units = np.arange(len(rows[VAL]))
        self.score, own = fit_unlikeness(self.logits(features), features, units)
        self.threshold = fit_threshold(own, units, RATE)
        self.test = self.scores(parts_of(kept, rows[TEST]))
        right = self.logits(parts_of(kept, rows[TEST])).argmax(dim=1).numpy()
        self.accuracy = float((self.head.classes_[right] == labels[rows[TEST]]).mean())

    def false_alarms(self) -> float:
        """Return the share of test images called unknown; NaN with few validation images."""
        return float("nan") if self.threshold is None else float((self.test["built in"] > self.threshold).mean())

    def logits(self, features: tuple[torch.Tensor, ...]) -> torch.Tensor:
        scaled = (features[-1].double().numpy() - self.mean) / self.deviation / self.length
        found = scaled @ self.head.coef_.T + self.head.intercept_
        return torch.from_numpy(found if found.shape[1] > 1 else np.concatenate([-found, found], axis=1) / 2)

    def plain(self, features: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
        """Return each part of the score by itself, and the yardsticks."""
        logits = self.logits(features)
        return {
            "maximum softmax": -logits.softmax(dim=1).amax(dim=1).numpy(),
            "energy": -logits.logsumexp(dim=1).numpy(),
            "distance": self.score.gaussian(features).numpy(),
        }

    @torch.inference_mode()
    def scores(self, features: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
        found = self.plain(features)
        found["built in"] = self.score(self.logits(features), features).numpy()
        return found

    def areas(self, features: tuple[torch.Tensor, ...]) -> dict[str, float]:
        """Return the AUROC of unknown images against the test images."""
        return {
            name: float(
                roc_auc_score([0] * len(self.test[name]) + [1] * len(far), np.concatenate([self.test[name], far]))
            )
            for name, far in self.scores(features).items()
        }


def left_out(kept: Kept, every: int) -> dict[str, Any]:
    near, alarms, accuracies = {}, [], []
    for label in range(0, len(kept["classes"]), every):
        known = Known(kept, kept["labels"] != label)
        near[str(kept["classes"][label])] = known.areas(
            parts_of(kept, np.flatnonzero((kept["labels"] == label) & (kept["splits"] == TEST)))
        )
        alarms.append(known.false_alarms())
        accuracies.append(known.accuracy)
    table = {name: [areas[name] for areas in near.values()] for name in next(iter(near.values()))}
    best = np.max([values for name, values in table.items()], axis=0)
    return {
        "median": {name: float(np.median(values)) for name, values in table.items()},
        "better_than_maximum_softmax": float(np.mean(np.array(table["built in"]) > table["maximum softmax"])),
        "best_of_all_for_each_class": float(np.median(best)),
        "false_alarms": float(np.mean(alarms)), "accuracy": float(np.mean(accuracies)), "classes": near,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("size", type=int)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    kept = {folder.name: kept_features(args.model, args.size, folder, args.keep) for folder in args.sets}
    near = {name: left_out(each, args.every) for name, each in kept.items()}
    whole, far = {name: Known(each, each["labels"] >= 0) for name, each in kept.items()}, {}
    for own, other in permutations(kept, 2):
        rows = np.flatnonzero(kept[other]["splits"] == TEST)[::4]
        far[f"{own} against {other}"] = whole[own].areas(parts_of(kept[other], rows))
    names = next(iter(far.values()))
    medians = {name: [float(np.median(v := [each[name] for each in far.values()])), min(v)] for name in names}
    every_class = [areas for each in near.values() for areas in each["classes"].values()]
    found = {
        "model": args.model, "size": args.size,
        "near_median": {name: float(np.median([areas[name] for areas in every_class])) for name in names},
        "far_median_and_least": medians,
        "false_alarms": {name: known.false_alarms() for name, known in whole.items()},
        "near": near, "far": far,
    }  # fmt: skip
    print(json.dumps({"environment": describe("numpy", "scikit-learn", "timm"), "found": found}, indent=1))


if __name__ == "__main__":
    main()
