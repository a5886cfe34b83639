"""The embedded weights: how they are made, and which pretraining of Fashion-MNIST makes the best.

    python -m benchmarks.embedded_weights --make fashion_mnist --data-root DIR
    python -m benchmarks.embedded_weights --make tiny_imagenet --data FOLDER --teacher FILE.onnx
    python -m benchmarks.embedded_weights RUN [RUN ...] [--labels 10] [--seeds 3]

`--make` trains (or, where it was stopped, trains on) as the card in vit/weights/README.md says, then writes the file of
weights into --output and prints its SHA-256.

The last form judges on validation images of digits with 10 labels per class. Each RUN is a finished `train --data
fashion_mnist --model vit_nano_8 ...`. Its best weights, and none at all, are fine-tuned on digits under the protocol of
`compare`: the same images seen, every rate of the grid. Every try is kept in benchmarks/results/embedded_weights.json;
the test images of digits are not looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from comparison.request.plan import SMALL_GRID
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.reporting import console
from trainers.run import train
from trainers.storage.finished_run import load, read_run_config
from trainers.storage.run_folder import read_json
from vit.config import EMBEDDED_WEIGHTS, ModelConfig
from vit.export import describe as describe_export
from vit.export import export_safetensors

IMAGES_SEEN = 6_000


def judge(weights: str, *, labels: int, seeds: int, folder: Path) -> dict[str, Any]:
    """Validation accuracy by learning rate: mean and standard deviation over seeds, in percent."""
    rows = {}
    for lr in SMALL_GRID:
        accuracies = []
        for seed in range(seeds):
            config = RunConfig(
                model=ModelConfig(name="vit_nano_8", weights=weights),
                data=DataConfig(source="digits", labels_per_class=labels, workers=0),
                train=TrainConfig(lr=lr, seed=seed, epochs=IMAGES_SEEN // (10 * labels)),
                output=OutputConfig(output_dir=folder),
            )
            with console.quiet():
                accuracies.append(100 * train(config).val["accuracy"])
        rows[f"{lr:g}"] = {"val_accuracy": round(mean(accuracies), 2), "sd": round(stdev(accuracies), 2)}
    best = max(rows, key=lambda lr: rows[lr]["val_accuracy"])
    print(f"{weights}: {rows[best]['val_accuracy']} % at lr {best}; all: {rows}", flush=True)
    return {"best_lr": float(best), **rows[best], "by_lr": rows}


COMMANDS = {
    "fashion_mnist": "--data fashion_mnist --model vit_nano_8 --batch-size 128 --augment light --epochs 16 --lr 2e-3",
    "tiny_imagenet": "--exclude benchmarks/bees_of_hymenoptera.csv --model vit_stem_16 --batch-size 128 --augment light"
    " --epochs 19 --optimizer muon --lr 0.02 --weight-decay 0.1 --schedule cooldown --warmup-epochs 0.1"
    " --label-smoothing 0 --val-fraction 0.04 --test-fraction 0 --teacher-size 160 --save-every 150 --cache on",
}
"""Options of `train` for each file of weights, beside the places of data and teacher."""
PRECISION = {"fashion_mnist": torch.float32, "tiny_imagenet": torch.float16}


def make(weights: str, places: list[str], output: Path) -> None:
    """Train, and write the file."""
    words = [*COMMANDS[weights].split(), "--seed", "0", *places, "--output-dir", str(output), "--auto-resume"]
    subprocess.run([sys.executable, "main.py", "train", *words], check=True)
    write(max(output.glob("*/*/summary.json"), key=lambda path: path.stat().st_mtime).parent, weights, output)


def write(run: Path, weights: str, output: Path) -> None:
    """The best weights of a run as the file that the application ships."""
    model, spec, class_names = load(run)
    path = output / f"{EMBEDDED_WEIGHTS[weights]}-{weights}.safetensors"
    config = to_dict(read_run_config(run))
    train = config["train"] | {"teacher": Path(config["train"]["teacher"] or "none").name}  # no places of this machine
    metadata = describe_export(spec, class_names, {"model": config["model"], "train": train})
    export_safetensors(model.to(PRECISION[weights]), path, metadata=metadata)
    print(f"{path}: {path.stat().st_size:,} bytes, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


def pretraining(run: Path) -> dict[str, Any]:
    config, summary = read_run_config(run), read_json(run / "summary.json")
    return {
        "augment": config.data.augment, "epochs": config.train.epochs, "lr": config.train.lr,
        "batch_size": config.data.batch_size, "mixup": config.train.mixup, "seconds": summary["seconds"],
        "fashion_mnist_test_accuracy": summary["test"]["accuracy"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--make", choices=COMMANDS)
    parser.add_argument("--write", choices=COMMANDS, help="write the file from a RUN that is there")
    parser.add_argument("--output", type=Path, default=Path("runs/embedded"))
    for place in ("data", "data-root", "teacher"):
        parser.add_argument(f"--{place}")
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.make:
        given = {"--data": options.data, "--data-root": options.data_root, "--teacher": options.teacher}
        return make(options.make, [word for pair in given.items() if pair[1] for word in pair], options.output)
    if options.write:
        return write(options.runs[0], options.write, options.output)
    with tempfile.TemporaryDirectory() as name:
        tries: list[dict[str, Any]] = [
            {"weights": "none"} | judge("none", labels=options.labels, seeds=options.seeds, folder=Path(name))
        ]
        for run in options.runs:
            scores = judge(str(run), labels=options.labels, seeds=options.seeds, folder=Path(name))
            tries.append({"weights": run.name, "pretraining": pretraining(run), **scores})
    result = {
        "data": f"digits, {options.labels} labels per class, val accuracy of the best epoch",
        "images_seen": IMAGES_SEEN, "seeds": options.seeds, "threads": torch.get_num_threads(), "tries": tries,
    }  # fmt: skip
    write_result("embedded_weights", {**result, **describe()})
    return None


if __name__ == "__main__":
    main()
