"""The validation images that pictures show: which ones, what a model made of them, and a model left as it was."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from figures.judged import Judged, rank
from trainers.job import Job


def images_of(job: Job) -> Any:
    """The images behind the val split, also where the loaders give cached features."""
    dataset: Any = job.data.dataloaders["val"].dataset
    return getattr(dataset, "images", dataset)


def judge(
    job: Job, rows: Sequence[int], logits: Tensor, labels: Tensor, rollouts: Iterable[Tensor] | None = None
) -> list[Judged]:
    """The val images `rows` with the logits (N, classes) that a model gave them, and their labels (N,): their original
    pictures, or with `rollouts` what the model saw, which these lie over."""
    images, names = images_of(job), job.data.class_names
    ranked = rank(logits.softmax(dim=1), names)
    own_names = [names[label] for label in labels.tolist()]
    pictures = images.stored(rows) if rollouts is not None else (images.original(row) for row in rows)
    maps = repeat(None) if rollouts is None else rollouts
    return [*map(Judged, map(images.path, rows), ranked, own_names, pictures, maps)]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
