"""Fine-tune convolutional networks by defaults and other options, and compare with frozen heads.

    python -m benchmarks.conv_rates --sets FOLDER FOLDER --models efficientnet_lite0 resnet18=FILE --out runs.jsonl

Each set is a folder of class folders. A seed draws its own split, and on it trains all --ways: `head` is the linear
probe by its defaults, `default` all of the network by its own, others are options as `lr=5e-5,start_head=plain`. A run
is a line of --out: started again, the benchmark goes on. At the end: the right answers of test images, and the mean
difference from the frozen head with its standard error over seeds.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import describe, write_result
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig, from_dict
from trainers.run import train
from vit import ModelConfig

BEFORE = "lr=5e-5,start_head=plain"


def one_run(options: argparse.Namespace, folder: Path, model: str, way: str, epochs: float, seed: int) -> float:
    """Train once; return the share of test images that are right."""
    (name, _, file), head = model.partition("="), way == "head"
    weights: dict[str, Any] = {"weights": file} if file else {}
    given = {} if way in ("head", "default") else dict(pair.split("=") for pair in way.split(","))
    given = {key: value if key == "start_head" else float(value) for key, value in given.items()}
    shares = {"val_fraction": options.val, "test_fraction": options.test, "split_seed": seed}
    config = RunConfig(
        ModelConfig(name, image_size=options.size, trainable="head" if head else "all", **weights),
        DataConfig(str(folder), **shares, labels_per_class=options.labels, workers=0),
        from_dict(TrainConfig, given | {"seed": seed, "threads": 1, "epochs": None if head else epochs}),
        OutputConfig(output_dir=options.out.parent / "conv_rates", tb="scalars"),
    )
    found = train(config)
    return (found.test or found.val)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, nargs="+", required=True)
    parser.add_argument("--models", nargs="+", default=["efficientnet_lite0"])
    parser.add_argument("--ways", nargs="+", default=[BEFORE, "default"])
    parser.add_argument("--epochs", type=float, nargs="+", default=[2, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--labels", type=int, help="training images of a class")
    parser.add_argument("--val", type=float, default=0.1)
    parser.add_argument("--test", type=float, default=0.4)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines")
    options = parser.parse_args()
    lines = options.out.read_text("utf-8").splitlines() if options.out.exists() else []
    done = {tuple(key): accuracy for key, accuracy in map(json.loads, lines)}
    ways = [("head", 0.0), *product(options.ways, options.epochs)]
    for seed, folder, model, (way, epochs) in product(options.seeds, options.sets, options.models, ways):
        key = (folder.name, model.partition("=")[0], way, epochs, seed)
        if key not in done:
            done[key] = one_run(options, folder, model, way, epochs, seed)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, done[key]]) + "\n")
    rows = []
    for data, model, way, epochs in dict.fromkeys(key[:-1] for key in done):
        seeds = [key[-1] for key in done if key[:-1] == (data, model, way, epochs)]
        found = 100 * np.array([done[data, model, way, epochs, seed] for seed in seeds])
        gain = found - 100 * np.array([done[data, model, "head", 0.0, seed] for seed in seeds])
        error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else None
        row = {"set": data, "model": model, "way": way, "epochs": epochs, "n": len(seeds), "accuracy": found.mean()}
        rows.append(row | {"over the frozen head": gain.mean(), "standard error": error})
    write_result("conv_rates", {"rows": rows, "size": options.size, **describe("timm")})


if __name__ == "__main__":
    main()
