"""Additions of `--tb full` when a run ends: PR curves, the projector, position embeddings."""

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.text import printable
from datasets.bundle import BatchKey, evenly
from trainers.engine.engines import autocast
from trainers.engine.evaluation import Scores
from trainers.engine.metrics import per_class
from trainers.engine.one_image import evaluating
from trainers.engine.predictions import dense_probabilities
from trainers.reporting import pictures
from trainers.reporting.figures.sheets import png, position_similarity_figure, tile_picture
from trainers.reporting.tensorboard import RunLoggers, tag_of
from trainers.setup import RunSetup
from vit.parts import inputs_of, parts, position_embeddings

PROJECTED = 1_000  # validation images in the projector
PR_CLASSES = 20  # those with the lowest F1 of more classes than that
THUMBNAIL = 64  # pixels per side: 32 x 32 of them are a texture that every browser takes


def draw_weights(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    positions = position_embeddings(setup.network)
    if positions is not None:
        loggers.add_picture("model/position_similarity", png(position_similarity_figure(positions.cpu())), step)


def draw_pr_curves(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Draw precision over recall of each class against all others."""
    names, outputs = setup.data.class_names, scores.outputs
    if not outputs.whole:
        raise ValueError("precision over recall needs all logits, which a validation of this size does not keep")
    probabilities = dense_probabilities(outputs, len(names))
    for index in hardest(scores, names):
        loggers.val.writer.add_pr_curve(
            f"pr/{tag_of(names, index)}", outputs.labels == index, probabilities[:, index], step
        )


def hardest(scores: Scores, names: Sequence[str]) -> list[int]:
    """Classes that have images, at most PR_CLASSES: those with the lowest F1, in class order."""
    rows = per_class(scores.outputs, names)
    indices = [index for index, row in enumerate(rows) if row.images]
    return sorted(sorted(indices, key=lambda index: rows[index].f1 or 0.0)[:PR_CLASSES])


def write_projector(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Write the features of up to PROJECTED validation images for the PROJECTOR tab."""
    images, names = pictures.validation_images(setup), setup.data.class_names
    outputs = scores.outputs
    rows = evenly(len(outputs.labels), PROJECTED).tolist()
    lines = []
    for row in rows:
        label, guess = names[int(outputs.labels[row])], names[int(outputs.predicted[row])]
        shown = f"{label}, right" if label == guess else f"{label}, taken for {guess}"
        words = [shown, label, guess, f"{outputs.losses[row]:.4f}", images.path(row)]
        lines.append([printable(word) for word in words])  # a tab in a file name would begin a column
    thumbnails = np.stack([tile_picture(pixels, THUMBNAIL) for pixels in images.stored(rows)])
    shutil.rmtree(loggers.folder / f"{step:05d}", ignore_errors=True)  # of a run that was stopped at this place
    loggers.val.writer.add_embedding(
        features_of_rows(setup, rows),
        metadata=lines,
        metadata_header=["shown", "label", "predicted", "loss", "path"],  # a point is called by its first column
        label_img=torch.from_numpy(thumbnails).permute(0, 3, 1, 2) / 255,
        global_step=step,
        tag="val",
    )


def features_of_rows(setup: RunSetup, rows: Sequence[int]) -> Tensor:
    """(N, D) on the CPU: what reaches the head for these val images."""
    dataset: Any = setup.data.dataloaders["val"].dataset
    if setup.on_features:
        return dataset.features[torch.tensor(rows)].float()
    features: list[Tensor] = []
    head = parts(setup.model).head[0]
    with evaluating(setup.model), autocast(setup.device, setup.amp_dtype), inputs_of(head) as seen:
        size = setup.config.data.batch_size or 64
        for start in range(0, len(rows), size):
            images, *_ = dataset.batch(BatchKey(0, np.array(rows[start : start + size])))
            setup.model(images.to(setup.device))
            features.append(seen.pop().float().cpu())
    return torch.cat(features)


def draw(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Draw what `--tb full` adds to the pictures of the best weights."""
    for part in (draw_weights, draw_pr_curves, write_projector):
        with pictures.attempted():
            part(setup, scores, loggers, step)
