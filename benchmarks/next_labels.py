"""Labels that `next` saves against labelling at random, and against plain uncertainty.

    python -m benchmarks.next_labels --data NAME=SOURCE [...] [--pool 4000] [--test 2000] [--seeds 10] [--networks 2]
    python -m benchmarks.next_labels --copies FOLDER       pictures, of which three tenths then have a copy
    python -m benchmarks.next_labels --speed 10000         seconds for so many pictures, after features

Of each set `--pool` pictures are to choose from and `--test` others to judge by. Each seed leaves out another quarter
of the pool and starts everything anew. Labels come in steps of BUDGETS; after each step logistic regression on the
same features, the one that `next` itself asks, is judged on the test pictures. `random` draws; `margin` draws its first
20 and then takes the least certain ones. Raw features are kept in `--kept`.

- below: budgets at which `next` is surely below `random`: the 95 % interval over the seeds (t, paired) ends below 0.
- labels for random's final accuracy: where the mean curve first reaches what `random` has at the last budget, by
  straight lines between budgets; and which share of the labels that saves.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import stats

from benchmarks.environment import RESULTS, describe
from datasets.bundle import TRAIN, PathTable
from datasets.config import DataConfig
from datasets.loaders import evaluation_loader, open_samples
from labelling.choose import choose, few_labels, free_rows, lead, probabilities_of
from labelling.features import extract_features, pretrained, side_by_side
from labelling.pool import read_pool
from trainers.engine.feature_sets import features_of

BUDGETS = (20, 40, 60, 80, 120, 160, 200, 240, 280, 320)
CPU = torch.device("cpu")


def raw_features(name: str, source: str, options: argparse.Namespace) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Compute each network's features of the pool and the test pictures, their labels, and how many are the pool."""
    path = options.kept / f"{name}.npz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = open_samples(DataConfig(source, root=options.data_root, workers=0))
        generator = np.random.default_rng(0)
        order = generator.permutation(len(samples))
        if (samples.splits == 2).any():
            order = np.concatenate(
                [order[samples.splits[order] != 2][: options.pool], order[samples.splits[order] == 2]]
            )
        order = order[: options.pool + options.test]
        chosen = samples.replace(
            paths=PathTable(samples.paths[row] for row in order), labels=samples.labels[order],
            splits=np.full(len(order), TRAIN, np.int8), digests=None, sizes=None, groups=None,
            pixels=None if samples.pixels is None else samples.pixels[order],
        )  # fmt: skip
        made: dict[str, Any] = {"labels": chosen.labels, "pool": options.pool}
        for network in pretrained()[: options.networks]:
            loader = evaluation_loader(chosen, "train", network.spec, DataConfig(source, workers=0, batch_size=64))
            values = features_of(network.model, loader, CPU, amp_dtype=None).flatten(1)
            made[network.name] = values.numpy().astype(np.float16)
        np.savez(path, **made)
    with np.load(path, allow_pickle=False) as file:
        parts = [file[key].astype(np.float32) for key in file.files if key not in ("labels", "pool")]
        return parts, file["labels"].astype(np.int64), int(file["pool"])


Strategy = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int], np.ndarray]
"""Features, free rows, labelled rows, their labels, how many, seed -> rows."""


def by_chance(features, free, labelled, labels, count, seed):
    return np.random.default_rng((seed, len(labelled))).choice(free, count, replace=False)


def by_margin(features, free, labelled, labels, count, seed):
    if len(np.unique(labels)) < 2:
        return by_chance(features, free, labelled, labels, count, seed)
    probabilities = probabilities_of(features, labelled, labels, int(labels.max()) + 1)
    return free[np.argsort(lead(probabilities[free]), kind="stable")[:count]]


def by_next(features, free, labelled, labels, count, seed):
    few = few_labels(labels)
    probabilities = None if few else probabilities_of(features, labelled, labels, int(labels.max()) + 1)
    chosen = choose(features, free, labelled, count, probabilities=probabilities, seed=seed)
    return np.array([each.row for each in chosen])


STRATEGIES: dict[str, Strategy] = {"random": by_chance, "margin": by_margin, "next": by_next}


def curve(features: np.ndarray, labels: np.ndarray, pool: int, strategy: Strategy, seed: int) -> list[float]:
    """Test accuracy after each budget."""
    rows = np.sort(np.random.default_rng((seed, 0)).permutation(pool)[: 3 * pool // 4])
    labelled, found = np.array([], np.int64), []
    for budget in BUDGETS:
        free = np.setdiff1d(rows, labelled)
        new = strategy(features, free, labelled, labels[labelled], budget - len(labelled), seed)
        assert len(set(new.tolist())) == budget - len(labelled)
        labelled = np.concatenate([labelled, new])
        said = probabilities_of(features, labelled, labels[labelled], int(labels.max()) + 1)[pool:].argmax(axis=1)
        found.append(float((said == labels[pool:]).mean()))
    return found


def labels_for(accuracy: float, means: np.ndarray) -> float | None:
    """Labels at which a mean curve first reaches an accuracy; None: never."""
    above = np.flatnonzero(means >= accuracy)
    if not len(above):
        return None
    at = int(above[0])
    if at == 0:
        return float(BUDGETS[0])
    share = (accuracy - means[at - 1]) / (means[at] - means[at - 1])
    return float(BUDGETS[at - 1] + share * (BUDGETS[at] - BUDGETS[at - 1]))


def compared(curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    values = {name: np.array(rows) for name, rows in curves.items()}
    result: dict[str, Any] = {"n": len(values["random"])}
    goal = float(values["random"].mean(axis=0)[-1])
    for name, rows in values.items():
        needed = labels_for(goal, rows.mean(axis=0))
        result[name] = {
            "mean": [round(float(each), 4) for each in rows.mean(axis=0)],
            "spread": [round(float(each), 4) for each in rows.std(axis=0, ddof=1)],
            "labels_for_final_of_random": needed and round(needed, 1),
        }
    for other in ("random", "margin"):
        difference = values["next"] - values[other]
        half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(axis=0, ddof=1) / len(difference) ** 0.5
        mean = difference.mean(axis=0)
        result[f"next_against_{other}"] = {
            "points": [round(100 * float(each), 2) for each in mean],
            "half_of_95": [round(100 * float(each), 2) for each in half],
            "surely_below_at": [BUDGETS[place] for place in np.flatnonzero(mean + half < 0)],
        }
    return result


def run_set(name: str, source: str, options: argparse.Namespace) -> None:
    parts, labels, pool = raw_features(name, source, options)
    features = side_by_side(parts)
    curves: dict[str, list[list[float]]] = {strategy: [] for strategy in STRATEGIES}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for strategy, function in STRATEGIES.items():
            curves[strategy].append(curve(features, labels, pool, function, seed))
        if len(curves["next"]) > 1:
            result = compared(curves) | {"pool": 3 * pool // 4, "test": len(labels) - pool, "networks": len(parts)}
            write({"sets": {name: result}})
    print(name, json.dumps(result, indent=1), flush=True)


def with_copies(folder: Path, options: argparse.Namespace) -> None:
    """Ask for 40 pictures, five rounds, of photographs of which three in ten are copies of others: exact, re-encoded,
    smaller, brighter or cropped ones."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as home:
        pool_folder = Path(home) / "pool"
        pool_folder.mkdir()
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        for number, file in enumerate(files):
            (pool_folder / f"{number:05d}{file.suffix}").write_bytes(file.read_bytes())
        for number in generator.choice(len(files), round(3 / 7 * len(files)), replace=False).tolist():
            copied(files[number], pool_folder / f"{number:05d}_copy", kind=number % 5)
        pool = read_pool(str(pool_folder), Path(home), {}, written=Path(home))
        extracted = extract_features(pool, pretrained()[:1], Path(home) / "features", device="cpu")
        taken: list[int] = []
        for _ in range(5):
            usable = extracted.readable.copy()
            usable[taken] = False
            free = free_rows(extracted.groups, usable, taken)
            taken += [each.row for each in choose(extracted.features, free, np.array(taken, int), 40)]
        originals = [re.sub(r"_copy$", "", Path(pool.samples.paths[row]).stem) for row in taken]
        wasted = len(originals) - len(set(originals))
        found = {"pictures": pool.own, "copies": pool.own - len(files), "picks": len(taken), "wasted": wasted}
    print(found)
    write({"copies": found})


def copied(file: Path, target: Path, *, kind: int) -> None:
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    if kind == 0:
        target.with_suffix(file.suffix).write_bytes(file.read_bytes())
    elif kind == 1:
        image.save(target.with_suffix(".jpg"), quality=60)
    elif kind == 2:
        image.resize((max(48, width // 2), max(48, height // 2))).save(target.with_suffix(".png"))
    elif kind == 3:
        image.point(lambda value: min(255, round(1.15 * value))).save(target.with_suffix(".jpg"), quality=90)
    else:
        edge_x, edge_y = round(0.03 * width), round(0.03 * height)
        image.crop((edge_x, edge_y, width - edge_x, height - edge_y)).save(target.with_suffix(".jpg"), quality=90)


def speed(count: int) -> None:
    """Seconds of this process for one choice of 40 pictures among `count`, with features of 256 numbers."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(count, 256)).astype(np.float32) + 2 * generator.normal(size=(20, 256))[
        generator.integers(20, size=count)
    ].astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    labelled = np.arange(320)
    found = {}
    for name, own in (("no label", labelled[:0]), ("40 labels", labelled[:40]), ("320 labels", labelled)):
        start, wall = time.process_time(), time.perf_counter()
        by_next(values, np.setdiff1d(np.arange(count), own), own, own % 10, 40, 0)
        found[name] = {"processor": round(time.process_time() - start, 1), "wall": round(time.perf_counter() - wall, 1)}
    print(found)
    write({"speed": {str(count): found}})


def write(more: dict[str, Any]) -> None:
    path = RESULTS / "next_labels.json"
    everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    everything |= describe("scikit-learn") | {"budgets": BUDGETS}
    for key, value in more.items():
        everything[key] = {**everything.get(key, {}), **value}
    path.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=[])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--pool", type=int, default=4000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--networks", type=int, default=2, help="1: the embedded one alone")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("runs/next_features"))
    parser.add_argument("--copies", type=Path)
    parser.add_argument("--speed", type=int)
    options = parser.parse_args()
    for word in options.data:
        name, _, source = word.partition("=")
        run_set(name, source, options)
    if options.copies:
        with_copies(options.copies, options)
    if options.speed:
        speed(options.speed)


if __name__ == "__main__":
    main()
