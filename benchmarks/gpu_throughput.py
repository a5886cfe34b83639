"""Measure training on a GPU: `python -m benchmarks.gpu_throughput eager compiled loaders`.

Each figure is a line of JSON. A step is that of the application's own engine, with bf16, AdamW and clipping, on one
batch that is on the GPU already; the networks are ours and timm's ViT-B/16 at 224 px, eager and compiled, in one
process. Loaders read JPEG pictures of 500 x 375 pixels that are made first, and their batches are counted where they
arrive: on the GPU, as normalised floats.
"""

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Events
from PIL import Image
from torch import nn

from datasets import DataConfig, build_dataloaders
from datasets.loaders import on_device
from trainers.engine.engines import StepOptions, create_trainer
from trainers.engine.optim import build_optimizer
from vit import Blueprint, ImageSpec, ModelConfig
from vit.param_groups import param_groups

GPU = torch.device("cuda")
WARM_UP, STEPS = 4, 12
BATCH, SIDE, PICTURES = 256, 224, 3_000


def say(**figures):
    print(json.dumps(figures), flush=True)
    return figures


def step_speed(name, model, *, batch=BATCH, compiled=False):
    """Measure images a second and peak memory in GB of steps of the engine."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = model.to(GPU)
    optimizer = build_optimizer(param_groups(model, weight_decay=0.05), name="adamw", lr=1e-4)
    forward = torch.compile(model, dynamic=False) if compiled else model
    options = StepOptions(torch.bfloat16, look_every=50)
    trainer = create_trainer(model, optimizer, nn.CrossEntropyLoss(), GPU, options=options, forward=forward)
    images, labels = torch.randn(batch, 3, SIDE, SIDE, device=GPU), torch.randint(1000, (batch,), device=GPU)
    marks = [time.perf_counter()]

    def mark():
        torch.cuda.synchronize()
        marks.append(time.perf_counter())

    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=WARM_UP), mark)
    trainer.run([(images, labels)] * (WARM_UP + STEPS), max_epochs=1)
    mark()
    first, seconds = marks[1] - marks[0], (marks[2] - marks[1]) / STEPS
    memory = torch.cuda.max_memory_allocated() / 1e9
    return say(
        what=name + ", compiled" * compiled, images_per_s=round(batch / seconds), step_ms=round(1e3 * seconds, 2),
        batch=batch, size=SIDE, peak_gb=round(memory, 2), warm_up_s=round(first, 1),
    )  # fmt: skip


def ours(name):
    names = tuple(map(str, range(1000)))
    return Blueprint(ModelConfig(name=name, weights="none")).build(num_classes=1000, class_names=names)


def timms(name):
    import timm

    return timm.create_model(name, num_classes=1000)


def eager():
    """Measure steps as Python takes them."""
    return [
        step_speed("our ViT-B/16", ours("vit_base_16")),
        step_speed("timm's ViT-B/16", timms("vit_base_patch16_224")),
        step_speed("our ViT-Ti/16", ours("vit_tiny_16")),
        step_speed("our ViT-Ti/16, 32 images", ours("vit_tiny_16"), batch=32),
    ]


def compiled():
    """Measure steps of compiled models."""
    return [
        step_speed("our ViT-B/16", ours("vit_base_16"), compiled=True),
        step_speed("timm's ViT-B/16", timms("vit_base_patch16_224"), compiled=True),
    ]


def photographs(folder):
    """Write JPEG pictures, of about 65 kB each, in two class folders."""

    def write(number):
        random = np.random.default_rng(number)
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375), Image.BICUBIC)
        noise = random.normal(0, 9, (375, 500, 3))
        pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=85)
        return path.stat().st_size

    with ThreadPoolExecutor(16) as threads:
        sizes = list(threads.map(write, range(PICTURES)))
    return sum(sizes) / PICTURES


def loader_speed(folder, *, workers, augment):
    """Measure pictures a second of the training loader, its processes started."""
    config = DataConfig(
        source=str(folder), val_fraction=0.05, test_fraction=0, cache="off", workers=workers, augment=augment,
        batch_size=BATCH,
    )  # fmt: skip
    bundle = on_device(build_dataloaders(config, ImageSpec()), GPU)
    loader = bundle.dataloaders["train"]
    for _ in range(2):  # the second epoch finds the processes running
        start = time.perf_counter()
        for images, _ in loader:
            images = images.to(GPU, non_blocking=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    images_of_epoch = bundle.dataset_sizes["train"]
    return say(
        what=f"loader, {augment}", workers=workers, pictures_per_s=round(images_of_epoch / seconds),
        dtype=str(images.dtype), size=images.size(-1), epoch_s=round(seconds, 2),
    )  # fmt: skip


def loaders():
    """Measure loaders of 8 and of 15 processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pictures"
        say(what="pictures", kilobytes=round(photographs(folder) / 1e3), count=PICTURES)
        return [
            loader_speed(folder, workers=workers, augment=augment)
            for augment in ("light", "standard")
            for workers in (8, 15)
        ]


if __name__ == "__main__":
    say(what="machine", gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    torch.set_float32_matmul_precision("high")
    for part in sys.argv[1:]:
        {"eager": eager, "compiled": compiled, "loaders": loaders}[part]()
