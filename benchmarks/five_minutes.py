"""Compare `train --data X --minutes M` with a ResNet-18 in a plain loop.

    python -m benchmarks.five_minutes --sets FOLDER [--minutes 5] [--seeds 3] [--threads 1] [--side-by-side]

Four sets are cut, once, out of archives in --data-root: hymenoptera (all of it), the ten most frequent breeds of
dog_breed_tiny, 5,000 training and 2,000 test images of CIFAR-10 (JPEG) and of Fashion-MNIST. Each is a folder with
train/ and test/, as a person would have it: the application holds validation images back, and the other arms train on
the same. Another folder of that form in --sets is measured with `--only ITS_NAME`; `benchmarks.made_sets` draws some.

Arms: `minutes` is the command with no other option, which mixes networks; `plain` the same where timm is not installed;
`scratch-small` the recipe of that name at 64 pixels, its epochs fitted to the time by the same measurement of pace;
`resnet18` is torchvision's, from random weights, in the loop below.
Each process has so many minutes in all, from its start to its end. Every result is written as it comes: started again,
the benchmark continues.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment import RESULTS, describe
from trainers.config import from_dict
from vit.config import ModelConfig

STARTED = time.monotonic()
SETS = ("hymenoptera", "dogs", "cifar10", "fashion_mnist")
ARMS = ("minutes", "plain", "resnet18", "scratch-small")
WITHOUT_TIMM = "import runpy, sys; sys.modules['timm'] = None; runpy.run_path('main.py', run_name='__main__')"


def cut(name: str, data_root: Path, folder: Path) -> None:
    """Write one set as folder/train/CLASS/* and folder/test/CLASS/*."""
    pictures = {"hymenoptera": hymenoptera, "dogs": dogs, "cifar10": cifar10, "fashion_mnist": fashion_mnist}[name]
    for place, content in pictures(data_root):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)


def hymenoptera(data_root: Path) -> Any:
    with zipfile.ZipFile(data_root / "hymenoptera_data.zip") as archive:
        for name in archive.namelist():
            if name.lower().endswith(".jpg"):
                yield name.split("/", 1)[1].replace("val/", "test/"), archive.read(name)


def dogs(data_root: Path, classes: int = 10) -> Any:
    """Make the first quarter of each breed's images, by name, the test."""
    with zipfile.ZipFile(data_root / "dog_breed_tiny.zip") as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("dog_breed_tiny/labels.csv").decode())))
        breeds = [breed for breed, _ in Counter(row["breed"] for row in rows).most_common(classes)]
        for breed in breeds:
            names = sorted(row["id"] for row in rows if row["breed"] == breed)
            for number, name in enumerate(names):
                split = "test" if number % 4 == 0 else "train"
                yield f"{split}/{breed}/{name}.jpg", archive.read(f"dog_breed_tiny/train/{name}.jpg")


def cifar10(data_root: Path) -> Any:
    with zipfile.ZipFile(data_root / "cifar10_jpeg.zip") as archive:
        for split, per_class in (("train", 500), ("test", 200)):
            taken: Counter[str] = Counter()
            for name in sorted(archive.namelist()):
                _, place, label, file = name.split("/")
                if place == split and taken[label] < per_class:
                    taken[label] += 1
                    yield f"{split}/{label}/{file}", archive.read(name)


def fashion_mnist(data_root: Path) -> Any:
    from datasets.sources import read

    samples = read("fashion_mnist", data_root).samples
    assert samples.pixels is not None
    for split, code, number in (("train", 0, 5000), ("test", 2, 2000)):
        indices = np.flatnonzero(samples.splits == code)
        for index in np.random.default_rng(0).permutation(indices)[:number]:
            picture = io.BytesIO()
            Image.fromarray(samples.pixels[index].squeeze()).save(picture, "PNG")
            yield (
                f"{split}/{samples.class_names[samples.labels[index]].replace('/', '_')}/{index}.png",
                picture.getvalue(),
            )


def train_resnet18(folder: Path, *, minutes: float, seed: int) -> dict[str, Any]:
    """Train a ResNet-18 from random weights at 64 pixels: AdamW, one cycle, bf16.

    The cycle runs over the time, not over the steps, so that it ends when the time does.
    """
    import torch
    from torch import nn
    from torchvision.models import resnet18

    from datasets.config import DataConfig
    from datasets.loaders import build_dataloaders
    from trainers.engine.optim import computes_in_bf16
    from vit import ImageSpec

    torch.manual_seed(seed)
    data = build_dataloaders(DataConfig(source=str(folder), batch_size=64), ImageSpec(image_size=64), seed=seed)
    model = resnet18(num_classes=len(data.class_names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    total = 10_000
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=total)
    seconds = 60 * minutes - 4 - 0.002 * data.dataset_sizes["test"]  # the test and the end take the rest
    epoch = steps = 0
    while time.monotonic() - STARTED < seconds:
        data.dataloaders["train"].batch_sampler.set_position(epoch)
        model.train()
        for images, labels in data.dataloaders["train"]:
            with torch.autocast("cpu", torch.bfloat16, enabled=computes_in_bf16("cpu")):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            progress = (time.monotonic() - STARTED) / seconds
            if progress >= 1:
                break
            cycle.last_epoch = int(progress * (total - 2))
            cycle.step()
        epoch += 1
    model.eval()
    correct = 0
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=computes_in_bf16("cpu")):
        for images, labels in data.dataloaders["test"]:
            correct += int((model(images).argmax(1) == labels).sum())
    epochs = steps * 64 / data.dataset_sizes["train"]
    return {"test_accuracy": correct / data.dataset_sizes["test"], "epochs": round(epochs, 1)}


def command(arm: str, folder: Path, out: Path, *, minutes: float, seed: int) -> list[str]:
    if arm == "resnet18":
        return [sys.executable, "-m", "benchmarks.five_minutes", "--resnet18", str(folder), "--minutes", str(minutes),
                "--seeds", str(seed), "--sets", str(out)]  # fmt: skip
    words = ["train", "--data", str(folder), "--minutes", str(minutes), "--seed", str(seed)]
    words += ["--output-dir", str(out), "--run-name", arm]  # its own: features that another run left would save time
    if arm == "scratch-small":
        words += ["--config", "scratch-small", "--image-size", "64"]
    return [sys.executable, *(["-c", WITHOUT_TIMM] if arm == "plain" else ["main.py"]), *words]


def outcome(arm: str, out: Path) -> dict[str, Any]:
    """Read what a process that has ended left behind."""
    if arm == "resnet18":
        values: dict[str, Any] = json.loads(out.read_text())
        return values
    log = Path(f"{out}.log").read_text()
    run = Path(re.findall(r"predict (\S+) path/to/images", log)[-1])
    summary, config = (json.loads((run / f"{name}.json").read_text()) for name in ("summary", "config"))
    model = config["model"]
    return {
        "test_accuracy": summary["test"]["accuracy"],
        "test_loss": summary["test"]["loss"],
        "test_ece": summary["test"].get("ece"),
        "epochs": config["train"]["epochs"],
        **parts_of(run),
        "model": f"{from_dict(ModelConfig, model).in_words} {model['weights']} {model['trainable']}"
        f" {model['image_size']} px {config['data']['augment']}",
    }


def parts_of(run: Path) -> dict[str, Any]:
    """Score an ensemble's frozen networks together, and the best one alone by validation loss."""
    path = run / "heads.json"
    if not path.exists():
        return {}
    parts = {name: part for name, part in json.loads(path.read_text()).items() if "test" in part}
    single = min(parts, key=lambda name: parts[name]["val"]["loss"])
    return {
        "frozen_accuracy": next(iter(parts.values()))["test"]["accuracy"],
        "single": single,
        "single_accuracy": parts[single]["test"]["accuracy"],
        "parts": parts,
    }


def run_arms(arms: list[str], folder: Path, work: Path, *, minutes: float, seed: int, threads: int | None) -> list[Any]:
    """Start one process per arm at once; return the seconds and findings of each."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    processes = []
    for arm in arms:
        out = work / f"{folder.name}_{minutes:g}_{arm}_{seed}"
        log = (work / f"{out.name}.log").open("w")
        words = command(arm, folder, out, minutes=minutes, seed=seed)
        started = time.monotonic()
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
        processes.append((arm, out, started, process))
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < len(arms):
        for arm, out, started, process in processes:
            if arm not in rows and process.poll() is not None:
                seconds = round(time.monotonic() - started, 1)
                if process.returncode:
                    raise SystemExit(f"{arm} on {folder.name} ended with {process.returncode}: see {out}.log")
                row = {"set": folder.name, "arm": arm, "minutes": minutes, "seed": seed, "threads": threads}
                rows[arm] = row | {"seconds": seconds, "load": os.getloadavg()[0]} | outcome(arm, out)
        time.sleep(0.2)
    return [rows[arm] for arm in arms]


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for minutes in sorted({row["minutes"] for row in rows}):
        for name in dict.fromkeys(row["set"] for row in rows):
            for arm in ARMS:
                mine = [r for r in rows if (r["set"], r["arm"], r["minutes"]) == (name, arm, minutes)]
                scores = [100 * r["test_accuracy"] for r in mine]
                if mine:
                    spread = f" (sd {stdev(scores):.1f})" if len(mine) > 1 else ""
                    wall = mean(r["seconds"] for r in mine) / 60
                    others = [
                        f", {what} {100 * mean(r[key] for r in mine):.1f} %"
                        for what, key in (("frozen", "frozen_accuracy"), ("best single", "single_accuracy"))
                        if all(key in r for r in mine)
                    ]
                    lines.append(
                        f"{minutes:>4g} min  {name:<14} {arm:<14} {mean(scores):5.1f} %{spread}"
                        f"{''.join(others)}, n = {len(mine)},"
                        f" {wall:.2f} min, {mine[0].get('model', '64 px')}, {mine[0]['epochs']} epochs"
                    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True, help="folder of the cut sets and of all runs")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--only", nargs="+", default=list(SETS), help="of these sets, or of others that lie in --sets")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, help="OMP_NUM_THREADS of every process; default: as the machine has them"
    )
    parser.add_argument("--side-by-side", action="store_true", help="all arms of a seed at once; give --threads 1")
    parser.add_argument("--resnet18", type=Path, help=argparse.SUPPRESS)  # one run of that arm: --seeds is its seed
    options = parser.parse_args()
    if options.resnet18:
        found = train_resnet18(options.resnet18, minutes=options.minutes[0], seed=options.seeds)
        options.sets.write_text(json.dumps(found))
        return
    work = options.sets / "runs"
    work.mkdir(parents=True, exist_ok=True)
    path = work / "results.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for minutes in options.minutes:
        for seed in range(options.seeds):
            for name in options.only:
                if name in SETS and not (options.sets / name).exists():
                    cut(name, options.data_root, options.sets / name)
                done = {r["arm"] for r in rows if (r["set"], r["minutes"], r["seed"]) == (name, minutes, seed)}
                left = [arm for arm in options.arms if arm not in done]
                for arms in [left] if options.side_by_side and left else [[arm] for arm in left]:
                    rows += run_arms(
                        arms, options.sets / name, work, minutes=minutes, seed=seed, threads=options.threads
                    )
                    path.write_text(json.dumps(rows, indent=1))
                    print(table(rows[-len(arms) :]), flush=True)
    print(table(rows))
    result = {"rows": rows, "cores": os.cpu_count(), **describe()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "five_minutes.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
