"""Training without Ignite: `--loop plain`, a loop to read before `trainers/run.py`.

At the same seed it takes the very steps that the Ignite loop takes, so its history agrees to rounding. It knows the
default options only, and logs nothing but its history: no TensorBoard, no checkpoints, no resume.
"""

from itertools import islice
from typing import Any

import torch
from torch import nn

from trainers.config import RunConfig, TrainConfig
from trainers.engine.randomness import seed_step
from trainers.errors import ConfigError
from trainers.setup import RunSetup, schedule

# The options of TrainConfig that this loop obeys; all others must be at their default.
OBEYED = {
    "epochs", "optimizer", "lr", "weight_decay", "schedule", "warmup_epochs", "label_smoothing", "clip_norm", "seed",
    "device", "loop", "threads",
}  # fmt: skip


def refuse_other_options(asked: RunConfig, resolved: RunConfig) -> None:
    by_default = {name: getattr(resolved.train, name) for name in ("mixup", "cutmix", "amp", "start_head")}
    options, default = vars(asked.train) | by_default, vars(TrainConfig())
    other = [n for n in options if n not in OBEYED and options[n] not in (default[n], 0, "off", "plain")]
    if asked.data.balance == "loss":
        other.append("balance")
    if other:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in other)
        raise ConfigError(
            f"--loop plain does not support {flags} (given or by default): turn that off, or leave out --loop"
        )


def train_plainly(setup: RunSetup) -> list[dict[str, float]]:
    """Train, and return one row per epoch: epoch, train_loss, train_accuracy, val_loss, val_accuracy."""
    config, model, optimizer = setup.config.train, setup.model, setup.optimizer
    train_loader, val_loader = setup.data.dataloaders["train"], setup.data.dataloaders["val"]
    loss_fn = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing or 0.0)
    rate = schedule(setup)
    step, history = 0, []
    for epoch in range(setup.last_epoch):
        model.train()
        train_loader.batch_sampler.set_position(epoch)  # type: ignore[union-attr]  # which shuffle, which augmentation
        total_loss, correct, seen = 0.0, 0, 0
        for images, labels in islice(train_loader, setup.total_steps - step):
            images, labels = images.to(setup.device), labels.to(setup.device)
            for group in optimizer.param_groups:
                group["lr"] = rate(step) * group["lr_scale"]
            step += 1
            seed_step(config.seed, step, 0, setup.device)  # dropout depends on the step alone
            logits = model(images)
            loss = loss_fn(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
            optimizer.step()
            total_loss += loss.item() * len(labels)
            correct += int((logits.argmax(dim=1) == labels).sum())
            seen += len(labels)
        val_loss, val_accuracy = validate(model, val_loader, setup.device)
        history.append(
            {
                "epoch": epoch + 1,
                "train_loss": total_loss / seen,
                "train_accuracy": correct / seen,
                "val_loss": val_loss,
                "val_accuracy": val_accuracy,
            }
        )
        print("  ".join(f"{name} {value:.4g}" for name, value in history[-1].items()))
    return history


@torch.inference_mode()
def validate(model: nn.Module, loader: Any, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy over all samples."""
    model.eval()
    total_loss, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        total_loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == labels).sum())
        seen += len(labels)
    return total_loss / seen, correct / seen
