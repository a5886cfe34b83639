"""What each choice of the embedded ViT's pretraining brings: short pretrainings, judged by fine-tuning on four sets.

    python -m benchmarks.pretraining_choices --data FOLDER --teacher FILE.onnx --sets SETS --output DIR
        [--only NAME ...] [--runs RUN ...] [--epochs 0.5]

FOLDER and the teacher are those of `benchmarks.embedded_weights --make tiny_imagenet`, whose command each try repeats
for `--epochs` epochs (0.5), but for the words in TRIES; a try at another size gets so many that it costs the same time.
SETS are the folders that `benchmarks.five_minutes` cuts. With each try's weights, with the shipped ones and with none,
`finetune-small` runs 20 passes over 20 labels a class (dogs: all it has), three seeds; what counts is the accuracy on
validation images, those of the best epoch: no test image chooses anything. What is finished in --output is not run
again, so that parts of the list may run side by side, each with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.embedded_weights import COMMANDS
from benchmarks.environment import describe, write_result

NO_TEACHER = "labels alone, no teacher"
TRIES = {
    "as shipped": "",
    NO_TEACHER: "",
    "0.8 of the loss from the teacher": "--teacher-weight 0.8",
    "AdamW": "--optimizer adamw --lr 1.5e-3 --weight-decay 0.05",
    "no augmentation": "--augment none",
    "standard augmentation, without MixUp": "--augment standard --mixup 0 --cutmix 0",
    "48 px": "--image-size 48",
    "96 px": "--image-size 96",
}
PASSES_AT_THE_SAME_COST = {"48 px": 1.75, "96 px": 0.45}
STARTS = {"the shipped weights": ["--weights", "tiny_imagenet"], "from scratch": ["--weights", "none"]}
SETS = {
    "hymenoptera": "--val-fraction 0.5 --labels-per-class 20",
    "dogs": "--val-fraction 0.3",
    "cifar10": "--val-fraction 0.06 --labels-per-class 20",
    "fashion_mnist": "--val-fraction 0.06 --labels-per-class 20",
}


def run(words: list[str], folder: Path, name: str) -> None:
    """Start `train`, unless it has been here to its end."""
    done = folder / f"{name}.done"
    if not done.exists():
        command = [sys.executable, "main.py", "train", *words, "--output-dir", str(folder), "--run-name", name]
        subprocess.run(command, check=True)
        done.touch()


def summaries(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{name}*/summary.json"))]


def pretrain(name: str, options: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """One try: its run, and what it reached."""
    words = [*COMMANDS["tiny_imagenet"].split(), *TRIES[name].split(), "--data", str(options.data), "--seed", "0"]
    words += ["--epochs", str(options.epochs * PASSES_AT_THE_SAME_COST.get(name, 1)), "--auto-resume"]
    if name != NO_TEACHER:
        words += ["--teacher", str(options.teacher)]
    folder = options.output / file_name(name)
    run(words, folder, "pretrained")
    (summary,) = summaries(folder, "pretrained")
    reached = {"val_accuracy": round(100 * summary["best"]["accuracy"], 1), "seconds": round(summary["seconds"])}
    return next(folder.glob("*/pretrained")), reached


def judge(name: str, start: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Validation accuracy after fine-tuning on each set: mean and standard deviation of the seeds, in percent."""
    folder, rows = options.output / file_name(name), {}
    for data, part in SETS.items():
        words = ["--data", str(options.sets / data), *part.split(), "--recipe", "finetune-small", *start]
        run([*words, "--epochs", "20", "--seeds", "3"], folder, data)
        scores = [100 * summary["best"]["accuracy"] for summary in summaries(folder, data)]
        rows[data] = {"mean": round(mean(scores), 1), "sd": round(stdev(scores), 1), "n": len(scores)}
        print(f"{name} on {data}: {rows[data]}", flush=True)
    return rows


def file_name(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for place in ("data", "teacher", "sets", "output"):
        parser.add_argument(f"--{place}", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=[*TRIES, *STARTS], default=[*TRIES, *STARTS])
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="judge the weights of these runs too")
    parser.add_argument("--epochs", type=float, default=0.5)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in options.only:
        if name in STARTS:
            rows[name] = judge(name, STARTS[name], options)
            continue
        tried, (weights, reached) = TRIES[name].split(), pretrain(name, options)
        shape = [pair for pair in zip(tried[::2], tried[1::2], strict=True) if pair[0] in ("--model", "--image-size")]
        start = ["--weights", str(weights), *(word for pair in shape for word in pair)]
        rows[name] = reached | judge(name, start, options)
    for weights in options.runs:
        rows[str(weights)] = judge(f"run {weights.name}", ["--weights", str(weights)], options)
    write_result("pretraining_choices", {"epochs": options.epochs, "rows": rows, **describe()})


if __name__ == "__main__":
    main()
