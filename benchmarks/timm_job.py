"""Train as benchmarks/whole_job.py does, in a loop made of timm's own parts.

    python -m benchmarks.timm_job FOLDER --output-dir OUT [--amp bf16] [--validations 2]

timm's installed package does not bring its train script. This loop uses what that script uses: timm's data set, loader,
transforms, model, optimizer, schedule, meters, metrics, checkpoint saver and summary file, in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from timm.data import create_dataset, create_loader
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, accuracy, dispatch_clip_grad, random_seed, update_summary
from torch import nn

HALF = (0.5, 0.5, 0.5)


def loader(folder: Path, split: str, options: argparse.Namespace) -> Any:
    training = split == "train"
    return create_loader(
        create_dataset("", root=str(folder), split=split, is_training=training, batch_size=options.batch_size),
        input_size=(3, 224, 224),
        batch_size=options.batch_size,
        is_training=training,
        use_prefetcher=False,
        # What our `light` does at 224 pixels: resize by 8/7, a random crop, mirrored half the time.
        train_crop_mode="rrc",
        scale=(0.6, 1.0),
        ratio=(0.9, 1.1),
        color_jitter=None,
        interpolation="bilinear",
        mean=HALF,
        std=HALF,
        num_workers=options.workers,
        crop_pct=1.0,
        device=torch.device("cpu"),
    )


def validate(model: nn.Module, batches: Any, autocast: Any) -> OrderedDict[str, float]:
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.inference_mode():
        for images, labels in batches:
            with autocast():
                output = model(images)
                loss = nn.functional.cross_entropy(output, labels)
            losses.update(loss.item(), len(labels))
            top1.update(accuracy(output, labels, topk=(1,))[0].item(), len(labels))
    return OrderedDict(loss=losses.avg, top1=top1.avg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--amp", choices=("off", "bf16"), default="off")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--validations", type=int, default=2, help="passes over the validation images in all")
    options = parser.parse_args()
    random_seed(0)

    def autocast() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16) if options.amp == "bf16" else contextlib.nullcontext()

    train, val = (loader(options.folder, split, options) for split in ("train", "val"))
    model = create_model("vit_tiny_patch16_224", pretrained=False, num_classes=2)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=options.epochs, updates_per_epoch=len(train), step_on_epochs=False
    )
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    saver = CheckpointSaver(model, optimizer, checkpoint_dir=str(options.output_dir), recovery_dir="", max_history=2)
    step = 0
    for epoch in range(options.epochs):
        losses = AverageMeter()
        model.train()
        for images, labels in train:
            with autocast():
                loss = loss_fn(model(images), labels)
            loss.backward()
            dispatch_clip_grad(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            scheduler.step_update(num_updates=step, metric=losses.avg)
            losses.update(loss.item(), len(labels))
        scores = validate(model, val, autocast)
        scheduler.step(epoch + 1, scores["top1"])
        update_summary(epoch, {"loss": losses.avg}, scores, options.output_dir / "summary.csv", write_header=epoch == 0)
        saver.save_checkpoint(epoch, metric=scores["top1"])
    for _ in range(options.validations - options.epochs):
        validate(model, val, autocast)


if __name__ == "__main__":
    main()
