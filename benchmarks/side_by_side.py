"""Frozen networks side by side against the best one alone: test accuracy, log loss and calibration error.

    python -m benchmarks.side_by_side --sets /work/sets [--only emoji letters] [--draws 10]

Each set in --sets is a folder with train/ and test/, as `benchmarks.five_minutes` cuts them; of at most 1,400 training
and 1,000 test images the features are computed once and left beside them. Then, whatever the clock says: the best
network and head alone, chosen by cross-validation, and the pool that a plan takes, of all labels and of 1, 2, 5 and 20
a class; of these the best of all heads, chosen with the test set in hand, too: one for each draw, which counts the luck
of the best of many, and one for all draws.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from benchmarks.environment import RESULTS, describe
from datasets.transforms import Pipeline
from inference.images import ImageFile, read_pixels
from trainers.engine.temperature import losses
from trainers.heads.choice import QUICK, Images, choose, fitted
from trainers.heads.fit import best_head
from trainers.heads.linear import Linear
from vit import build_model, image_spec
from vit.config import ModelConfig
from vit.mixture import one_after_the_other

NETWORKS = "mix:vit_stem_16@64+efficientnet_lite0@128:stages+efficientnet_lite0@224:stages"
PRICES = (1.0, 3.0, 8.0)
"""Relative cost of each network; of networks that are equally good the cheapest is taken."""
LABELS = (1, 2, 5, 20)
MOST = {"train": 1_400, "test": 1_000}


def features_of_set(folder: Path) -> dict[str, np.ndarray]:
    path = folder / "side_by_side.npz"
    if not path.exists():
        found: dict[str, Any] = {}
        model, pipeline = build_model(NETWORKS, num_classes=2).eval(), Pipeline(image_spec(ModelConfig(NETWORKS)))
        for split, most in MOST.items():
            classes = sorted(place.name for place in (folder / split).iterdir())
            files = [
                (label, file)
                for label, name in enumerate(classes)
                for file in sorted((folder / split / name).iterdir())
            ]
            chosen = [files[row] for row in np.random.default_rng(0).permutation(len(files))[:most]]
            parts = []
            for start in range(0, len(chosen), 32):
                pixels: Any = [read_pixels(ImageFile(str(file)), pipeline) for _, file in chosen[start : start + 32]]
                images = pipeline.normalise(torch.from_numpy(np.stack(pixels)))
                with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                    parts.append(torch.cat([view(images).float() for view in model.views], dim=1).numpy())
            found |= {split: np.concatenate(parts), f"{split}_labels": np.array([label for label, _ in chosen])}
        levels = [width for view in model.views for width in view.levels]
        np.savez(path, widths=model.widths, levels=levels, **found)
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def scores(head: Linear, features: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    logits = head(features.astype(np.float64))
    sure, right = softmax(logits, axis=1).max(axis=1), logits.argmax(axis=1) == labels
    bins = np.minimum((15 * sure).astype(int), 14)
    gaps = np.bincount(bins, sure - right, minlength=15)
    return {
        "accuracy": float(right.mean()),
        "loss": float(losses(logits, labels).mean()),
        "ece": float(np.abs(gaps).sum() / len(labels)),
    }


def images_of(found: dict[str, np.ndarray], rows: np.ndarray) -> Images:
    columns, levels = one_after_the_other(found["widths"]), one_after_the_other(found["levels"])
    classes = int(found["train_labels"].max()) + 1
    return Images(found["train"][rows], found["train_labels"][rows], np.arange(len(rows)), classes, columns, levels)


def measure(found: dict[str, np.ndarray], images: Images) -> dict[str, dict[str, float]]:
    test = (found["test"], found["test_labels"])
    choice, every = choose(images, PRICES), tuple(range(len(images.columns)))
    taken = every if choice is None else tuple(sorted(choice.taken.networks))
    result = {"plan": scores(best_head(images, taken, [str(place) for place in taken])[0], *test)}
    result["all, pooled"] = scores(best_head(images, every, [str(place) for place in every])[0], *test)
    if choice is not None:
        single = choice.single
        result["single"] = scores(fitted(images, single.networks, single.head).times(single.sharpness), *test)
    return result


def every_head(found: dict[str, np.ndarray], images: Images) -> dict[str, float]:
    """Test accuracy of each quick head on each network and on all of them."""
    networks = range(len(images.columns))
    return {
        f"{head} on {places}": scores(fitted(images, places, head), found["test"], found["test_labels"])["accuracy"]
        for places in [*([place] for place in networks), [*networks]]
        for head in QUICK
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["hymenoptera", "dogs", "cifar10", "fashion_mnist"])
    parser.add_argument("--draws", type=int, default=10)
    options, rows = parser.parse_args(), []
    for name in options.only:
        found = features_of_set(options.sets / name)
        labels = found["train_labels"]
        for count in (*LABELS, None):
            if count is not None and np.bincount(labels).min() < count:
                continue
            draws, tried = [], []
            for draw in range(1 if count is None else options.draws):
                order = np.random.default_rng((count or 0, draw)).permutation(len(labels))
                each = [order[labels[order] == label][:count] for label in np.unique(labels)]
                images = images_of(found, np.concatenate(each))
                draws.append(measure(found, images))
                tried += [] if count is None else [every_head(found, images)]
            for arm in draws[0]:
                values = {key: [draw[arm][key] for draw in draws] for key in draws[0][arm]}
                row = {"set": name, "labels": count, "arm": arm, "n": len(draws)}
                row |= {key: mean(value) for key, value in values.items()}
                row["sd"] = stdev(values["accuracy"]) if len(draws) > 1 else None
                rows.append(row)
            if tried:
                of_all = {head: mean(draw[head] for draw in tried) for head in tried[0]}
                best = {"accuracy": mean(max(draw.values()) for draw in tried), "of_all_draws": max(of_all.values())}
                best |= {"head_of_all_draws": max(of_all, key=lambda head: of_all[head])}
                arm = "best with the test in hand"
                rows.append({"set": name, "labels": count, "arm": arm, "n": len(draws), **best})
            print(*map(json.dumps, rows[-4:]), sep="\n", flush=True)
            RESULTS.mkdir(exist_ok=True)
            text = json.dumps({"rows": rows, **describe()}, indent=1)
            (RESULTS / "side_by_side.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
