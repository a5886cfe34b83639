"""Named sets of options, each a card: what it is for, where it comes from, what it costs. No torch here.

A recipe fills in what a config file and the command line leave open: defaults < recipe < file < command line.
"""

from dataclasses import dataclass, field
from typing import Any

from trainers.config import RunConfig, from_dict
from trainers.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """One card. `options` are those of a config file; `results` what it gave here, with the command that gave it."""

    purpose: str
    source: str
    cost: str
    command: str
    options: dict[str, dict[str, Any]]
    results: tuple[str, ...] = field(default=())
    """Mean, spread, number of seeds and command, one line each; empty where nothing was measured yet."""


def _on_digits(recipe: str, accuracy: str) -> str:
    return (
        f"digits from Fashion-MNIST weights: {accuracy} of 360 test images, n = 3 (seeds 0, 1, 2): python main.py train"
        f" --data digits --model vit_nano_8 --weights fashion_mnist --epochs 20 --recipe {recipe}"
    )


RECIPES: dict[str, Recipe] = {
    "scratch-small": Recipe(
        purpose="a small ViT from scratch on images of 28 to 64 pixels, in minutes on a processor",
        source="Hassani et al. 2021 (CCT, arXiv:2104.05704): a stem of convolutions before few blocks, mean instead of"
        " class token; Touvron et al. 2021 (DeiT), table 9, without its strong augmentation: short runs gain nothing"
        " from it. Rate, depth and stem chosen on validation images of CIFAR-10 in runs of 90 s",
        cost="360,000 image passes of vit_nano_8 with its stem for 45,000 images: 7 minutes on two cores",
        command="python main.py train --data cifar10 --recipe scratch-small",
        options={
            "model": {"name": "vit_nano_8", "weights": "none", "patch_embedding": "stem", "pool": "mean"},
            "data": {"batch_size": 64, "augment": "light"},
            "train": {
                "lr": 2e-3, "full_rate_steps": 2000, "weight_decay": 0.05, "label_smoothing": 0.1, "schedule": "cosine",
                "epochs": 8,
            },
        },
        results=(
            "CIFAR-10 as JPEG files: 74.9 % (sd 0.3) of 10,000 test images, n = 3 (--seed 0, 1, 2), at most 420 s of"
            " training steps in bf16 on two cores of an AMD EPYC: python main.py train --data FOLDER --val-fraction 0.1"
            " --recipe scratch-small --max-minutes 7",
        ),
    ),
    "finetune-sgd": Recipe(
        purpose="fine-tune a pretrained ViT as its paper did",
        source="Dosovitskiy et al. 2020, appendix B.1.1: SGD with momentum 0.9, no weight decay, gradients clipped at"
        " 1, cosine decay; its rates for ImageNet and CIFAR are 0.001 to 0.06",
        cost="every step is a full forward and backward pass; no state but one momentum per weight",
        command="python main.py train --data hymenoptera --model vit_b_16 --recipe finetune-sgd",
        options={
            "model": {"trainable": "all"},
            "train": {
                "optimizer": "sgd", "lr": 3e-3, "weight_decay": 0.0, "clip_norm": 1.0, "schedule": "cosine",
                "label_smoothing": 0.0,
            },
        },
        results=(_on_digits("finetune-sgd", "75.4 % (sd 2.7)"),),
    ),
    "finetune-adamw-llrd": Recipe(
        purpose="fine-tune a pretrained ViT on few images, lower layers slower",
        source="Bao et al. 2021 (BEiT, arXiv:2106.08254), table 9: AdamW, layer-wise decay 0.65 to 0.75 of the rate,"
        " weight decay 0.05, label smoothing 0.1, stochastic depth 0.1 (left out: torchvision's ViT has none)",
        cost="every step is a full forward and backward pass; two moments per weight",
        command="python main.py train --data hymenoptera --model vit_b_16 --recipe finetune-adamw-llrd",
        options={
            "model": {"trainable": "all"},
            "train": {
                "optimizer": "adamw", "lr": 5e-4, "weight_decay": 0.05, "layer_decay": 0.75, "label_smoothing": 0.1,
                "schedule": "cosine",
            },
        },
        results=(_on_digits("finetune-adamw-llrd", "94.9 % (sd 0.2)"),),
    ),
    "finetune-small": Recipe(
        purpose="fine-tune the embedded small ViT on photographs, in minutes on a processor and without a network",
        source="finetune-adamw-llrd at twice its rate for the small width; on hymenoptera's validation images 5e-4"
        " without layer decay, 1e-3 and 2e-3 with it differed by less than one look each can show (docs/pretrained.md)",
        cost="40 passes over up to 1,500 images, 60,000 image passes over more; about 150 images/s on one core",
        command="python main.py train --data FOLDER --recipe finetune-small",
        options={
            "model": {"name": "vit_mini_16", "weights": "tiny_imagenet", "trainable": "all"},
            "data": {"batch_size": 32, "augment": "light"},
            "train": {
                "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05, "layer_decay": 0.75, "label_smoothing": 0.1,
                "schedule": "cosine",
            },
        },
        results=(
            "hymenoptera, some of whose pictures the pretraining saw: 82.6 % (sd 0.8) of 153 test images, n = 3"
            " (--seed 0, 1, 2), from scratch 64.7 %: python main.py train --data FOLDER --recipe finetune-small"
            " --epochs 20",
        ),
    ),
    "linear-probe": Recipe(
        purpose="train only the head of a pretrained model, on features computed once",
        source="linear evaluation as in Chen et al. 2020 (SimCLR, arXiv:2002.05709), appendix B.6, on fixed images so"
        " that features can be cached; AdamW's customary rate, no weight decay: the problem is convex",
        cost="one forward pass per image, then seconds",
        command="python main.py train --data hymenoptera --model vit_b_16 --recipe linear-probe",
        options={
            "model": {"trainable": "head"},
            "data": {"augment": "none"},
            "train": {
                "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "label_smoothing": 0.0, "epochs": 20,
                "schedule": "cosine", "mixup": 0.0, "cutmix": 0.0,
            },
        },
        results=(_on_digits("linear-probe", "78.7 % (sd 0.4)"),),
    ),
}  # fmt: skip


def recipe_config(name: str) -> RunConfig:
    """The defaults with a recipe's options over them."""
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    config: RunConfig = from_dict(RunConfig, RECIPES[name].options)
    return config


def card(name: str) -> str:
    """A recipe to read, as `--recipe NAME` prints it before it trains."""
    recipe = RECIPES[name]
    lines = [f"{name}: {recipe.purpose}", f"source: {recipe.source}", f"cost: {recipe.cost}", *recipe.results]
    return "\n".join(lines)
