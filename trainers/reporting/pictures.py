"""Draw the pictures of a run, for TensorBoard and `figures/`.

At its start: the first batch next to what the model sees of it, and heat maps of eight validation images. At its end,
with the best weights: the same heat maps, the worst mistakes, the confusion matrix and the calibration; with `--tb
full` also PR curves, the projector and the position embeddings. Nothing here draws random numbers, and the model is
left in the mode it was in: a run takes the same steps with and without pictures.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from common.errors import NoAttention
from common.files import replacing
from common.text import pluralise, printable
from datasets.bundle import BatchKey, ImageSet, evenly
from datasets.fitting import view_of
from datasets.sampling import batch_sampler
from trainers.engine.engines import Scores, autocast
from trainers.engine.handlers import UNTRAINED
from trainers.engine.metrics import confidence_bins, most_confused, per_class
from trainers.engine.one_image import evaluating
from trainers.engine.predictions import Predictions, dense_probabilities
from trainers.reporting import console, screen
from trainers.reporting.explanations.faithfulness import WAITED_FOR, measure_run
from trainers.reporting.explanations.methods import heat_maps
from trainers.reporting.explanations.subject import NoMap
from trainers.reporting.figures.images import ImagePrediction, ranked_classes
from trainers.reporting.figures.results import confusion_figure, coverage_picture, reliability_figure
from trainers.reporting.figures.sheets import (
    batch_sheet,
    distance_figure,
    png,
    position_similarity_figure,
    prediction_sheet,
    tile_picture,
)
from trainers.reporting.tensorboard import RunLoggers, tag_of
from trainers.setup import RunSetup
from trainers.storage.run_folder import SNAPSHOTS
from vit.anatomy import anatomy_of, position_embeddings, recording
from vit.attention_maps import maps_of
from vit.low_rank import merged_state
from vit.tensor_files import write_tree

KEPT = 3_000_000  # most parameters of a model whose weights are kept for `explain --page`: 6 MB per snapshot
SHOWN = 8  # validation images with heat maps
MISTAKES = 16
PROJECTED = 1_000  # validation images in the projector
PR_CLASSES = 20  # if there are more, those with the lowest F1
THUMBNAIL = 64  # pixels per side: 32 x 32 of them are a texture that every browser accepts
READ_BATCH = "from the first batch: each picture, next to what the model sees of it"
READ_MISTAKES = "Coloured: what the model said, and how sure it was. A wrong label, or a class that looks like another?"
READ_CONFUSION = "Each row is a true class; what lies off the diagonal was taken for another."
READ_HEAT = "Below each image: the brighter a place, the more it is evidence for the class that the model says."
BATCH = 16  # images of the first training batch


def attach(trainer: Engine, setup: RunSetup, evaluated: nn.Module, loggers: RunLoggers) -> None:
    """Draw the first batch and the untrained model; keep weights of a small Vision Transformer."""
    if setup.on_features:  # no pixels and no attention
        return

    @trainer.on(Events.ITERATION_STARTED(once=1))
    def draw_batch(engine: Engine) -> None:
        """Draw training images next to what the model sees, which shows a wrong augmentation."""
        with attempted():
            images, loader = engine.state.batch[0][:BATCH].cpu(), setup.data.dataloaders["train"]
            sampler, dataset = copy(batch_sampler(loader)), cast("ImageSet", loader.dataset)
            sampler.set_position(0)  # the run's own sampler has moved on
            rows = next(iter(sampler)).draws[: len(images)] % len(dataset)
            originals = [dataset.original(row) for row in rows.tolist()]
            picture = batch_sheet(originals, images, mean=setup.spec.mean, std=setup.spec.std, title=READ_BATCH)
            loggers.add_picture("data/augmented_batch", png(picture), 0)

    @trainer.on(UNTRAINED)
    def draw_untrained() -> None:
        with attempted():
            draw_attention(setup, evaluated, loggers, step=0, title=f"untrained\n{READ_HEAT}")

    if sum(parameter.numel() for parameter in evaluated.parameters()) <= KEPT:
        epochs = setup.total_steps // setup.steps_per_epoch
        quarters = {epochs * quarter // 4 for quarter in (1, 2, 3)}

        @trainer.on(Events.EPOCH_COMPLETED(event_filter=lambda engine, _: engine.state.epoch in quarters))
        def keep_quarter(engine: Engine) -> None:
            folder = loggers.figures.with_name(SNAPSHOTS)
            with attempted():
                keep_weights(evaluated, folder / f"step_{engine.state.iteration}.safetensors", engine.state.epoch)


def keep_weights(model: nn.Module, path: Path, epoch: int) -> None:
    """Write the current weights of a model in half precision.

    The untrained ones are rebuilt from the seed."""
    state = merged_state(model)
    weights = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        write_tree(file, {"model": weights, "epoch": epoch})


def draw_attention(setup: RunSetup, model: nn.Module, loggers: RunLoggers, *, step: int, title: str) -> None:
    """Draw heat maps of the same validation images each time, and a ViT's attention distances.

    Draws nothing for a model without heat maps.
    """
    with suppress(NoMap):
        images, distance, what = validation_attention(setup, model)
        loggers.add_picture("attention/by_image", png(prediction_sheet(images, title=f"{what}, {title}")), step)
        if distance is not None:
            when = title.partition("\n")[0]
            figure = distance_figure(distance, title=f"{pluralise(len(images), 'validation image')}, {when}")
            loggers.add_picture("attention/distance", png(figure), step)


def validation_attention(setup: RunSetup, model: nn.Module) -> tuple[list[ImagePrediction], Tensor | None, str]:
    """Return shown images with heat maps, the mean attention distance (L, H), and a title.

    The distance is in pixels, and None for models other than Vision Transformers. Raises NoMap: the model has no heat
    maps.
    """
    dataset, judged, what = validation_images(setup), list[ImagePrediction](), ""
    distances: list[Tensor] = []
    for row in evenly(len(dataset), SHOWN):  # one by one: attention of all layers and heads takes much memory
        images, labels = dataset.batch(BatchKey(0, row[None]))[:2]
        images = images.to(setup.device)
        with evaluating(model):
            with suppress(NoAttention):
                distances.append(maps_of(model, images).distance.cpu())
            found = heat_maps(model, images)
        judged += predictions_on(setup, [int(row)], found.logits, labels, found.values)
        what = f"evidence for the predicted class ({found.title})"
    return judged, torch.cat(distances).mean(dim=0) if distances else None, what


def draw_best(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, epoch: int, step: int) -> None:
    """Draw the best weights, which the model holds now; `scores` are their validation scores."""
    when, faithful = screen.weights_taken(setup.config, epoch), None
    with attempted():
        with evaluating(setup.network), suppress(NoMap):
            images = validation_images(setup)
            faithful = measure_run(loggers.figures.parent, setup.network, images, seconds=WAITED_FOR)
        draw_attention(setup, setup.network, loggers, step=step, title=f"{when}\n{faithful or READ_HEAT}")
    with attempted():
        draw_scores(setup, scores, loggers, step=step, when=when)
    for part in (draw_positions, draw_pr_curves, write_projector) if setup.config.output.tb == "full" else ():
        with attempted():
            part(setup, scores, loggers, step)


def draw_scores(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, step: int, when: str) -> None:
    images = len(scores.outputs.labels)
    title = f"val: {images:,} images, {when}"
    shown = f"{mistakes_title(scores)}; {when}\n{READ_MISTAKES}"
    loggers.add_picture("mistakes/by_image", png(prediction_sheet(worst(setup, scores), title=shown)), step)
    counts, names, shown = most_confused(scores.outputs, setup.data.class_names)
    confusion = confusion_figure(counts, names, title=f"confusion matrix, {title}{shown}\n{READ_CONFUSION}")
    loggers.add_picture("mistakes/confusion_matrix", png(confusion), step)
    bins = confidence_bins(scores.outputs.confidence, scores.outputs.correct)
    calibration = reliability_figure(bins, ece=scores.metrics["ece"], title=title)
    loggers.add_picture("calibration/reliability", png(calibration), step)
    confidence, correct = scores.outputs.confidence.numpy(), scores.outputs.correct.numpy()
    loggers.add_picture("calibration/answers", coverage_picture(confidence, correct, title=title), step)


def draw_positions(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Draw the similarity of the position embeddings of the patches."""
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
    """Return the PR_CLASSES with images and the lowest F1, in class order."""
    rows = per_class(scores.outputs, names)
    indices = [index for index, row in enumerate(rows) if row.images]
    return sorted(sorted(indices, key=lambda index: rows[index].f1 or 0.0)[:PR_CLASSES])


def write_projector(setup: RunSetup, scores: Scores, loggers: RunLoggers, step: int) -> None:
    """Write the features of up to PROJECTED validation images for the PROJECTOR tab."""
    images, names = validation_images(setup), setup.data.class_names
    outputs = scores.outputs
    rows = evenly(len(outputs.labels), PROJECTED).tolist()
    lines = []
    for row in rows:
        label, guess = names[int(outputs.labels[row])], names[int(outputs.predicted[row])]
        shown = f"{label}, right" if label == guess else f"{label}, taken for {guess}"
        words = [shown, label, guess, f"{outputs.losses[row]:.4f}", images.path(row)]
        lines.append([printable(word) for word in words])  # a tab in a file name would start a column
    thumbnails = np.stack([tile_picture(pixels, THUMBNAIL) for pixels in images.stored(rows)])
    shutil.rmtree(loggers.folder / f"{step:05d}", ignore_errors=True)  # left by a run that was stopped here
    loggers.val.writer.add_embedding(
        features_of_rows(setup, rows),
        metadata=lines,
        metadata_header=["shown", "label", "predicted", "loss", "path"],  # the first column is the name of a point
        label_img=torch.from_numpy(thumbnails).permute(0, 3, 1, 2) / 255,
        global_step=step,
        tag="val",
    )


def features_of_rows(setup: RunSetup, rows: Sequence[int]) -> Tensor:
    """Compute the inputs of the head for these validation images: (N, D) on the CPU."""
    dataset: Any = setup.data.dataloaders["val"].dataset
    if setup.on_features:
        return dataset.features[torch.tensor(rows)].float()
    features: list[Tensor] = []
    head = anatomy_of(setup.model).head[0]
    with evaluating(setup.model), autocast(setup.device, setup.amp_dtype), recording([(head, "in")]) as seen:
        for part in torch.tensor(rows).split(setup.config.data.batch_size or 64):
            setup.model(dataset.batch(BatchKey(0, part.numpy()))[0].to(setup.device))
            features.append(seen.pop().float().cpu())
    return torch.cat(features)


def worst(setup: RunSetup, scores: Scores) -> list[ImagePrediction]:
    """Return the most confident mistakes; without mistakes the least confident predictions."""
    outputs, wrong = scores.outputs, ~scores.outputs.correct
    sureness = outputs.logits.double().softmax(dim=1).amax(dim=1) if outputs.whole else outputs.confidence
    order = sureness.where(wrong, -torch.inf) if wrong.any() else -sureness
    count = min(MISTAKES, int(wrong.sum()) or len(order))
    rows = order.sort(descending=True, stable=True).indices[:count]
    chosen = Predictions(*(part[rows] for part in outputs))
    logits = dense_probabilities(chosen, len(setup.data.class_names)).log()
    return predictions_on(setup, rows.tolist(), logits, chosen.labels)


def mistakes_title(scores: Scores) -> str:
    wrong, images = int((~scores.outputs.correct).sum()), len(scores.outputs.labels)
    if not wrong:
        return f"no mistake on {images:,} validation images; those it was least sure of"
    shown = f"the {MISTAKES} most confident of" if wrong > MISTAKES else "all"
    return f"{shown} {pluralise(wrong, 'mistake')} on {images:,} validation images"


def validation_images(setup: RunSetup) -> Any:
    """Return the images of the val split, even if the loaders return cached features."""
    dataset: Any = setup.data.dataloaders["val"].dataset
    return getattr(dataset, "images", dataset)


def predictions_on(
    setup: RunSetup, rows: Sequence[int], logits: Tensor, labels: Tensor, maps: Iterable[Tensor | None] = repeat(None)
) -> list[ImagePrediction]:
    """Join val images with their logits, labels and heat maps.

    Logits (N, classes), labels (N,), `maps` (G, G); `rows` are those of the images. The pictures are the originals;
    each map covers the part that the model saw.
    """
    images, names = validation_images(setup), setup.data.class_names
    ranked, judged = ranked_classes(logits.softmax(dim=1), names), []
    for row, best, label, heat in zip(rows, ranked, labels.tolist(), maps, strict=False):
        pixels = images.original(row)
        # A program's own Dataset gives images as the model sees them: whole.
        view = view_of(pixels.shape[2], pixels.shape[1], setup.spec) if hasattr(images, "pipeline") else None
        judged.append(ImagePrediction(images.path(row), best, names[label], pixels, heat, view=view))
    return judged


@contextmanager
def attempted() -> Iterator[None]:
    """Print a note instead of ending the run if a picture cannot be drawn."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        console.say(f"a picture could not be drawn: {reason}", label="note")
