"""Test whether the ranking of frozen backbones says which of them will be best once all of it is fine-tuned.

    python -m benchmarks.ranking --data-root data --work /work/ranking [--images-seen 8000] [--seeds 2] [--sets ...]

Backbones: small ViTs of two sizes that learn, here and for a short or a longer time, from Fashion-MNIST, MNIST and
CIFAR-10 (JPEG), and the two that come with the application. Sets: digits with 10 labels a class, hymenoptera, the ten
most frequent breeds of dog_breed_tiny, and MNIST with 1 % of its training images. On each, one ranking, and one run for
every backbone and seed that fine-tunes all of it; the runs have the same rate, see equally many images and are scored
on the test images. The mean over seeds is what the ranking should have foretold.

Times are processor seconds of one thread, for a machine that others use, of everything that either takes: reading and
decoding images and building models, too. Every result is written as it comes: started again, the benchmark goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import spearmanr

from benchmarks.environment import RESULTS, describe
from benchmarks.five_minutes import cut
from commands.compare import parse_arm
from commands.rank import arm_of
from comparison.ranking import ALL, RIDGE, rank_backbones
from datasets.config import DataConfig
from datasets.files import write_text
from trainers.config import OutputConfig, RunConfig, TrainConfig, from_dict
from trainers.options.recipes import RECIPES
from trainers.run import train
from trainers.setup import prepare
from vit.config import EMBEDDED_WEIGHTS

BACKBONES = {  # name: source, model, images seen
    "cifar10-nano-long": ("cifar10_jpeg.zip", "vit_nano_8", 100_000),
    "cifar10-nano-brief": ("cifar10_jpeg.zip", "vit_nano_8", 10_000),
    "mnist-nano-long": ("mnist", "vit_nano_8", 60_000),
    "mnist-nano-brief": ("mnist", "vit_nano_8", 5_000),
    "fashion-nano-long": ("fashion_mnist", "vit_nano_8", 60_000),
    "fashion-nano-brief": ("fashion_mnist", "vit_nano_8", 10_000),
    "cifar10-micro-brief": ("cifar10_jpeg.zip", "vit_micro_2", 20_000),
}
"""Each by the recipe scratch-small."""
LR = 0.001
"""Learning rate of every fine-tuning: the defaults of the two sizes differ, and the question is about the weights."""
SETS: dict[str, dict[str, Any]] = {
    "digits": {"source": "digits", "labels_per_class": 10},
    "mnist": {"source": "mnist", "fraction": 0.01, "val_fraction": 0.01},
    "hymenoptera": {"source": "hymenoptera"},
    "dogs": {"source": "dogs"},
}


def backbone(name: str, options: argparse.Namespace) -> str:
    """The folder of the run that trained it; trained where there is none."""
    source, model, seen = BACKBONES[name]
    folders = list((options.work / "runs").glob(f"*/{name}"))
    if folders:
        return str(folders[0])
    path = options.data_root / source if source.endswith(".zip") else source
    recipe: RunConfig = from_dict(RunConfig, RECIPES["scratch-small"].options)
    data = replace(recipe.data, source=str(path), root=options.data_root, workers=0)
    output = OutputConfig(output_dir=options.work / "runs", run_name=name, tb="scalars")
    train_config = replace(recipe.train, epochs=seen / 50_000, threads=1, device="cpu")
    return str(train(RunConfig(replace(recipe.model, name=model), data, train_config, output)).run_dir)


def images(name: str, options: argparse.Namespace) -> DataConfig:
    """The options of one set; the photographs are cut out of their archive once."""
    values = dict(SETS[name])
    if name in ("hymenoptera", "dogs"):
        folder = options.work / "sets" / name
        if not folder.is_dir():
            cut(name, options.data_root, folder)
        values["source"] = str(folder)
    return DataConfig(root=options.data_root, workers=0, **values)


def ranked(base: RunConfig, arms: dict[str, str]) -> dict[str, Any]:
    started = time.process_time()
    rows = rank_backbones({arm: parse_arm(arm, base) for arm in arms.values()}, ())
    seconds = time.process_time() - started
    names = {arm: name for name, arm in arms.items()}
    frozen = {names[row.arm]: {f"{c} {n}": row.accuracy(c, n)[1] for c, n in row.right} for row in rows}
    return {"seconds": seconds, "images": rows[0].right[RIDGE, ALL].size, "frozen": frozen}


def fine_tuned(arm: str, base: RunConfig, seen: int, seeds: int) -> dict[str, Any]:
    config = parse_arm(arm, base)
    accuracies, started = [], time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        sizes = prepare(replace(config, train=replace(config.train, epochs=1))).data.dataset_sizes
        epochs = max(1, round(seen / sizes["train"]))
        for seed in range(seeds):
            result = train(replace(config, train=replace(config.train, epochs=epochs, seed=seed)))
            assert result.test is not None
            accuracies.append(result.test["accuracy"])
    seconds = (time.process_time() - started) / seeds
    return {"test": mean(accuracies), "of_seeds": accuracies, "seconds": seconds, "scored": sizes["test"]}


def conclude(found: dict[str, Any]) -> dict[str, Any]:
    """Spearman's rho of every column of the ranking against the test accuracies, and the share of the time."""
    tuned, frozen = found["tuned"], found["ranking"]["frozen"]
    test = [tuned[name]["test"] for name in tuned]
    columns = next(iter(frozen.values()))
    rho = {column: float(spearmanr([frozen[name][column] for name in tuned], test)[0]) for column in columns}
    seconds = sum(row["seconds"] for row in tuned.values())
    share = found["ranking"]["seconds"] / seconds
    pairs = [(a, b) for a, b in combinations(tuned, 2) if apart(tuned[a]["test"], tuned[b]["test"], found["scored"])]
    score = {name: frozen[name][f"{RIDGE} {ALL}"] for name in tuned}
    agree = sum((score[a] - score[b]) * (tuned[a]["test"] - tuned[b]["test"]) > 0 for a, b in pairs)
    return {
        "rho": rho[f"{RIDGE} {ALL}"],
        "backbones": len(tuned),
        "pairs_told_apart": len(pairs),
        "of_these_ranked_right": agree,
        "share_of_time": share,
        "rho_of_columns": rho,
    }


def apart(a: float, b: float, images: int) -> bool:
    """Return whether two accuracies on so many test images differ by more than two standard errors."""
    return abs(a - b) > 1.96 * ((a * (1 - a) + b * (1 - b)) / images) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, required=True, help="where runs and cut sets are kept")
    parser.add_argument("--images-seen", type=int, default=8_000, help="by each fine-tuning")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    options = parser.parse_args()
    path = RESULTS / "ranking.json"
    results = json.loads(path.read_text()) if path.is_file() else {**describe("scikit-learn", "scipy"), "sets": {}}
    results |= {"images_seen": options.images_seen, "seeds": options.seeds}
    arms = {f"{name}-embedded": arm_of(name) for name in EMBEDDED_WEIGHTS}
    arms |= {name: arm_of(backbone(name, options)) for name in BACKBONES}
    for name in options.sets:
        output = OutputConfig(output_dir=options.work / f"tuned-{name}", tb="scalars")
        config = RunConfig(data=images(name, options), train=TrainConfig(lr=LR, threads=1, device="cpu"), output=output)
        found = results["sets"].setdefault(name, {"tuned": {}})
        for backbone_name, arm in arms.items():
            if backbone_name not in found["tuned"]:
                found["tuned"][backbone_name] = fine_tuned(arm, config, options.images_seen, options.seeds)
                print(name, backbone_name, found["tuned"][backbone_name], flush=True)
                write_text(path, json.dumps(results, indent=2) + "\n")
        if "ranking" not in found:
            found["ranking"] = ranked(config, arms)
        found["scored"] = next(iter(found["tuned"].values()))["scored"]
        found |= conclude(found)
        write_text(path, json.dumps(results, indent=2) + "\n")
        print(name, {key: found[key] for key in ("rho", "share_of_time", "rho_of_columns")}, flush=True)


if __name__ == "__main__":
    main()
