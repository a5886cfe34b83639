"""Make the embedded weights, and find the best pretraining of Fashion-MNIST.

    python -m benchmarks.embedded_weights --make fashion_mnist --data-root DIR
    python -m benchmarks.embedded_weights --make tiny_imagenet --data FOLDER --teacher FILE.onnx
    python -m benchmarks.embedded_weights RUN [RUN ...] [--labels 10] [--seeds 3]

`--make` trains as the card in vit/weights/README.md says (fashion_mnist: or goes on where it was stopped;
tiny_imagenet: by examples/distill.py, which keeps the teacher's features in --output), then writes the file of weights
into --output and prints its SHA-256.

The last form judges on validation images of digits with 10 labels per class. Each RUN is a finished `train --data
fashion_mnist --model vit_nano_8 ...`. Its best weights, and none at all, are fine-tuned on digits under the protocol of
`compare`: equally many images, every rate of the grid. Every try is kept in benchmarks/results/embedded_weights.json;
the test images of digits are not looked at.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from comparison.planning import SMALL_GRID
from datasets.config import DataConfig
from examples import distill
from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.reporting import console
from trainers.run import train
from trainers.storage.checkpoint_file import load
from trainers.storage.run_folder import RunFolder
from vit.config import EMBEDDED_WEIGHTS, ModelConfig
from vit.export import describe as describe_export
from vit.export import export_safetensors

IMAGES_SEEN = 6_000


def judge(weights: str, *, labels: int, seeds: int, folder: Path) -> dict[str, Any]:
    """Return validation accuracy in percent by learning rate: mean and deviation over seeds."""
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


FASHION_MNIST = (
    "--data fashion_mnist --model vit_nano_8 --batch-size 128 --augment light --epochs 16 --lr 2e-3 --seed 0"
)
"""Options of `train`."""
TINY_IMAGENET = DataConfig(
    exclude=Path("benchmarks/bees_of_hymenoptera.csv"), val_fraction=0.04, test_fraction=0.0,
    batch_size=128, augment="light", cache="on",
)  # fmt: skip
TEACHER_SIZE = 160


def make_fashion_mnist(path: Path, data_root: str) -> None:
    """Train, or go on training, and write the file."""
    words = ["--data-root", data_root, "--output-dir", str(path.parent), "--auto-resume"]
    subprocess.run([sys.executable, "main.py", "train", *FASHION_MNIST.split(), *words], check=True)
    run = max(path.parent.glob("*/*/summary.json"), key=lambda file: file.stat().st_mtime).parent
    model, spec, class_names = load(run)
    config = to_dict(RunFolder(run).config)
    metadata = describe_export(spec, class_names, {name: config[name] for name in ("model", "train")})
    export_safetensors(model, path, metadata=metadata)


def make_tiny_imagenet(path: Path, data: str, teacher: Path, *, epochs: int) -> None:
    """Train by the example of distillation, and write the file."""
    options = ModelConfig(name=EMBEDDED_WEIGHTS["tiny_imagenet"])
    images = dataclasses.replace(TINY_IMAGENET, source=data)
    kept = path.parent / "teacher_features.npy"
    model, class_names, _ = distill.distill(
        images, options, distill.open_teacher(teacher, TEACHER_SIZE), kept=kept, epochs=epochs
    )
    distill.write(model.to(torch.float16), options, class_names, path)


def pretraining(run: Path) -> dict[str, Any]:
    config, summary = RunFolder(run).config, RunFolder(run).summary
    return {
        "augment": config.data.augment, "epochs": config.train.epochs, "lr": config.train.lr,
        "batch_size": config.data.batch_size, "mixup": config.train.mixup, "seconds": summary["seconds"],
        "fashion_mnist_test_accuracy": summary["test"]["accuracy"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--make", choices=EMBEDDED_WEIGHTS)
    parser.add_argument("--output", type=Path, default=Path("runs/embedded"))
    parser.add_argument("--data-root", default=str(DataConfig.root), help="folder of Fashion-MNIST")
    parser.add_argument("--data", help="folder of Tiny ImageNet's pictures, a folder for each class")
    parser.add_argument("--teacher", type=Path, help="EfficientNet-Lite0 as .onnx with an output `features`")
    parser.add_argument("--epochs", type=int, default=19, help="of Tiny ImageNet")
    parser.add_argument("--labels", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.make:
        path = options.output / f"{EMBEDDED_WEIGHTS[options.make]}-{options.make}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        if options.make == "fashion_mnist":
            make_fashion_mnist(path, options.data_root)
        elif options.data and options.teacher:
            make_tiny_imagenet(path, options.data, options.teacher, epochs=options.epochs)
        else:
            parser.error("--make tiny_imagenet needs --data and --teacher")
        print(f"{path}: {path.stat().st_size:,} bytes, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
        return
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


if __name__ == "__main__":
    main()
