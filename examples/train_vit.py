"""Train a Vision Transformer on handwritten digits in half a minute: `python -m examples.train_vit`.

The whole path from data to accuracy with torch and `vit.model` alone, in the order in which it happens. Nothing is
hidden in a library of training; docs/training.md explains each line marked [n]. `trainers/run.py` does the same with
Ignite's engines, and adds what a real run needs: checkpoints, resuming, TensorBoard, early stopping.

Shapes: B images in a batch, C channels, S image side in pixels.
"""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from vit.config import ViTConfig
from vit.model import VisionTransformer


def load_images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read 1,797 digits of 8 x 8 pixels as training and validation images and labels."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16  # (1797, 1, 8, 8), grey levels in [0, 1]
    images = (images - 0.5) / 0.5  # normalised to [-1, 1]: the model should see numbers around zero
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(images))  # another seed holds out other images
    train, val = order[360:], order[:360]
    return images[train], labels[train], images[val], labels[val]


def jitter(images: Tensor) -> Tensor:
    """Turn images (B, C, S, S) by up to 10 degrees and shift them [7]."""
    turn, right, down = (torch.rand(3, len(images)) * 2 - 1) * torch.tensor([math.radians(10), 0.2, 0.2])[:, None]
    rows = [torch.stack([turn.cos(), -turn.sin(), right], 1), torch.stack([turn.sin(), turn.cos(), down], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)  # where each pixel comes from
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def parameter_groups(model: VisionTransformer, weight_decay: float) -> list[dict]:
    """Sort the parameters: matrices decay; biases, norms, class token and positions do not [3]."""
    decay, no_decay = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1 and "positions" not in name and "class_token" not in name
        (decay if is_matrix else no_decay).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def learning_rate(step: int, total_steps: int, *, peak: float, warmup_steps: int) -> float:
    """Climb linearly for `warmup_steps`, then fall along a cosine to zero [4]."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def train_one_epoch(model, optimizer, images: Tensor, labels: Tensor, *, first_step: int, total_steps: int) -> float:
    """Pass over all training images once, in a new order; return the accuracy meanwhile.

    It is that of the augmented images."""
    model.train()
    correct = 0
    for number, batch in enumerate(torch.randperm(len(images)).split(64)):
        rate = learning_rate(first_step + number, total_steps, peak=3e-3, warmup_steps=total_steps // 20)
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(jitter(images[batch]))  # (B, 10)
        loss = F.cross_entropy(logits, labels[batch], label_smoothing=0.1)  # [5]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # a single odd batch cannot throw the weights far
        optimizer.step()
        correct += int((logits.argmax(dim=1) == labels[batch]).sum())
    return correct / len(images)


@torch.no_grad()
def accuracy(model: VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """Return the share of images named right, without dropout and augmentation [6]."""
    model.eval()
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def main(epochs: int = 40, seed: int = 0) -> float:
    """Train, print a line per epoch, and return the accuracy on the validation images."""
    torch.manual_seed(seed)
    train_images, train_labels, val_images, val_labels = load_images()
    config = ViTConfig(image_size=8, patch_size=2, in_channels=1, num_classes=10, embed_dim=64, depth=4, num_heads=4)
    model = VisionTransformer(config)
    first_loss = F.cross_entropy(model(train_images), train_labels).item()
    print(f"loss before training: {first_loss:.3f}, and ln(10) = {math.log(10):.3f}")  # [1]
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.05))  # [2]
    steps_per_epoch = math.ceil(len(train_images) / 64)
    for epoch in range(epochs):
        first_step, total_steps = epoch * steps_per_epoch, epochs * steps_per_epoch
        on_train = train_one_epoch(
            model, optimizer, train_images, train_labels, first_step=first_step, total_steps=total_steps
        )
        on_val = accuracy(model, val_images, val_labels)
        print(f"epoch {epoch + 1:2d}  training images right {on_train:.1%}  validation images right {on_val:.1%}")
    return on_val


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
