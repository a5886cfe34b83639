"""Additions of `--tb full` when a run ends: PR curves, the projector, position embeddings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex
from PIL import Image, ImageOps
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from torch import Tensor
from torch.utils.tensorboard.summary import compute_curve

from common.files import replacing, write_text
from common.tables import csv_text
from common.text import printable
from datasets.bundle import BatchKey
from datasets.sampling import evenly
from trainers.engine.engines import autocast
from trainers.engine.evaluation import Scores
from trainers.engine.many_classes import dense_probabilities
from trainers.engine.metrics import per_class
from trainers.reporting import pictures
from trainers.reporting.figures.sheets import png, position_similarity_figure, tile_picture
from trainers.reporting.tensorboard import RunLoggers, tag_of
from trainers.setup import RunSetup
from vit.parts import inputs_of, parts, position_embeddings

PROJECTED = 1_000  # validation images in the projector
PR_CLASSES = 20  # those with the lowest F1 of more classes than that
THRESHOLDS = 127  # TensorBoard's own number
THUMBNAIL = 64  # pixels per side: 32 x 32 of them are a texture that every browser takes


def draw_weights(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    positions = position_embeddings(setup.network)
    if positions is not None:
        loggers.add_picture("model/position_similarity", png(position_similarity_figure(positions.cpu())), step)


def draw_pr_curves(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Precision over recall of each class against all others, in TensorBoard and as figures/val_pr_curves.csv."""
    names = setup.data.class_names
    outputs = scores.outputs
    if not outputs.whole:
        raise ValueError("precision over recall needs all logits, which a validation of this size does not keep")
    probabilities = dense_probabilities(outputs, len(names)).numpy()
    lines: list[tuple[str, ...]] = []
    for index in hardest(scores, names):
        tp, fp, tn, fn, precision, recall = compute_curve(
            outputs.labels.numpy() == index, probabilities[:, index], THRESHOLDS
        )
        tag = f"pr/{tag_of(names, index)}"
        loggers.val.writer.add_pr_curve_raw(tag, tp, fp, tn, fn, precision, recall, step, THRESHOLDS)
        rows = zip(np.linspace(0, 1, THRESHOLDS).tolist(), precision, recall, strict=True)
        lines += [(names[index], f"{t:.4f}", f"{p:.6g}", f"{r:.6g}") for t, p, r in rows]
    loggers.figures.mkdir(exist_ok=True)
    write_text(loggers.figures / "val_pr_curves.csv", csv_text(("class", "threshold", "precision", "recall"), lines))


def hardest(scores: Scores, names: Sequence[str]) -> list[int]:
    """Classes that have images, at most PR_CLASSES: those with the lowest F1, in class order."""
    rows = per_class(scores.confusion, names)
    indices = [index for index, row in enumerate(rows) if row.images]
    return sorted(sorted(indices, key=lambda index: rows[index].f1 or 0.0)[:PR_CLASSES])


def write_projector(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """The features of up to PROJECTED validation images for the PROJECTOR tab: tensors.tsv, metadata.tsv, sprite.png.

    Own files, not torch's add_embedding: that one breaks at a tab in a file name, and a resumed run would list its
    embeddings twice.
    """
    images, names = pictures.validation_images(setup), setup.data.class_names
    outputs = scores.outputs
    rows = evenly(len(outputs.labels), PROJECTED).tolist()
    folder = loggers.folder / "projector"
    folder.mkdir(exist_ok=True)
    write_tsv(folder / "tensors.tsv", [[f"{x:.6g}" for x in row] for row in features_of_rows(setup, rows).tolist()])
    lines = [["shown", "label", "predicted", "loss", "path"]]  # the first column of words is what a point is called
    for row in rows:
        label, guess = names[int(outputs.labels[row])], names[int(outputs.predicted[row])]
        shown = f"{label}, right" if label == guess else f"{label}, taken for {guess}"
        lines.append([shown, label, guess, f"{outputs.losses[row]:.4f}", images.path(row)])
    write_tsv(folder / "metadata.tsv", lines)
    write_sprite(images.stored(rows), outputs.labels[rows].tolist(), folder / "sprite.png")
    config = ProjectorConfig()
    entry = config.embeddings.add(
        tensor_name="features of the best weights, val",
        tensor_path="projector/tensors.tsv",
        metadata_path="projector/metadata.tsv",
    )
    entry.sprite.image_path = "projector/sprite.png"
    entry.sprite.single_image_dim.extend([THUMBNAIL, THUMBNAIL])
    write_text(loggers.folder / "projector_config.pbtxt", str(config))


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    write_text(path, "".join("\t".join(map(printable, row)) + "\n" for row in rows))


def write_sprite(stored: Sequence[np.ndarray], labels: Sequence[int], path: Path) -> None:
    """All images (uint8 (C, S, S)) as one square of thumbnails, row by row, each in a frame of its class's colour."""
    columns = math.ceil(math.sqrt(len(stored)))
    canvas = Image.new("RGB", (columns * THUMBNAIL, columns * THUMBNAIL), "white")
    frame = THUMBNAIL // 8
    inner = (THUMBNAIL - 2 * frame,) * 2
    for number, (pixels, label) in enumerate(zip(stored, labels, strict=True)):
        colour = colormaps["tab20"]((2 * label + label // 10) % 20)  # the strong half of its colours first
        thumbnail = Image.fromarray(tile_picture(pixels, inner[0])).resize(inner, Image.Resampling.NEAREST)
        place = number % columns * THUMBNAIL, number // columns * THUMBNAIL
        canvas.paste(ImageOps.expand(thumbnail, frame, fill=to_hex(colour)), place)
    with replacing(path) as aside:
        canvas.save(aside, "PNG")


def features_of_rows(setup: RunSetup, rows: Sequence[int]) -> Tensor:
    """(N, D) on the CPU: what reaches the head for these val images."""
    dataset: Any = setup.data.dataloaders["val"].dataset
    if setup.on_features:
        return dataset.features[torch.tensor(rows)].float()
    features: list[Tensor] = []
    head = parts(setup.model).head[0]
    with pictures.undisturbed(setup.model), autocast(setup.device, setup.amp_dtype), inputs_of(head) as seen:
        size = setup.config.data.batch_size or 64
        for start in range(0, len(rows), size):
            images, *_ = dataset.__getitems__(BatchKey(0, np.array(rows[start : start + size])))
            setup.model(images.to(setup.device))
            features.append(seen.pop().float().cpu())
    return torch.cat(features)


attach = pictures.attach


def draw_best(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, epoch: int, step: int) -> None:
    """Draw what other runs draw when they end, and the rest."""
    pictures.draw_best(setup, scores, loggers, epoch=epoch, step=step)
    for draw in (draw_weights, draw_pr_curves, write_projector):
        with pictures.attempted():
            draw(setup, scores, loggers, step)
