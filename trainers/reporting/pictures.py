"""Pictures that a run shows beside its curves: drawn a few times in a run, put into TensorBoard and `figures/` alike.

At its start: its first batch beside what the model sees of it, and heat maps of eight validation images. At its end,
with its best weights: these heat maps again, its worst mistakes, its confusion matrix, its calibration.
Nothing is drawn at random for them, and the model is left in the mode it was in: a run takes the same steps with and
without pictures.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from common.errors import NoAttention
from common.files import replacing
from common.text import pluralise
from datasets.bundle import BatchKey, ImageSet, evenly
from datasets.fitting import view_of
from datasets.sampling import batch_sampler
from trainers.engine.evaluation import Scores
from trainers.engine.handlers import UNTRAINED
from trainers.engine.metrics import confidence_bins, most_confused
from trainers.engine.one_image import evaluating
from trainers.engine.predictions import Predictions, dense_probabilities
from trainers.reporting import console, heat_maps
from trainers.reporting.figures.attention import distance_figure
from trainers.reporting.figures.coverage import coverage_picture
from trainers.reporting.figures.image_prediction import ImagePrediction, ranked_classes
from trainers.reporting.figures.results import confusion_figure, reliability_figure
from trainers.reporting.figures.sheets import batch_sheet, png, prediction_sheet
from trainers.reporting.tensorboard import RunLoggers
from trainers.setup import RunSetup
from trainers.storage.run_folder import SNAPSHOTS
from vit.attention_maps import maps_of
from vit.low_rank import merged_state
from vit.tensor_files import write_tree

KEPT = 3_000_000  # parameters of the largest model whose weights are kept for `explain --page`: 6 MB a snapshot
SHOWN = 8  # validation images whose attention is followed
MISTAKES = 16
READ_BATCH = "from the first batch: each picture, and beside it what the model sees of it"
READ_MISTAKES = "Coloured: what the model said, and how sure it was. A wrong label, or a class that looks like another?"
READ_CONFUSION = "Each row is a true class; what lies off the diagonal was taken for another."
READ_HEAT = "Below each image: the brighter a place, the more it is evidence for the class that the model says."
BATCH = 16  # images of the first training batch


def attach(trainer: Engine, setup: RunSetup, evaluated: nn.Module, loggers: RunLoggers) -> None:
    """Draw the first batch and the untrained model; keep the weights of a small Vision Transformer as it learns."""
    if setup.on_features:  # no pixels and no attention
        return

    @trainer.on(Events.ITERATION_STARTED(once=1))
    def draw_batch(engine: Engine) -> None:
        """Draw training pictures and what the model sees of them: a glance finds a wrong augmentation."""
        with attempted():
            images, loader = engine.state.batch[0][:BATCH].cpu(), setup.data.dataloaders["train"]
            sampler, dataset = copy(batch_sampler(loader)), cast("ImageSet", loader.dataset)
            sampler.set_position(0)  # that of the run has gone on
            rows = next(iter(sampler)).draws[: len(images)] % len(dataset)
            originals = [dataset.original(row) for row in rows.tolist()]
            picture = batch_sheet(originals, images, mean=setup.spec.mean, std=setup.spec.std, title=READ_BATCH)
            loggers.add_picture("data/augmented_batch", png(picture), 0)

    @trainer.on(UNTRAINED)
    def draw_untrained() -> None:
        with attempted():
            draw_attention(setup, evaluated, loggers, step=0, title=f"untrained\n{READ_HEAT}")

    small = sum(parameter.numel() for parameter in evaluated.parameters()) <= KEPT
    if small and attends(setup, evaluated):
        epochs = setup.total_steps // setup.steps_per_epoch
        quarters = {epochs * quarter // 4 for quarter in (1, 2, 3)}

        @trainer.on(Events.EPOCH_COMPLETED(event_filter=lambda engine, _: engine.state.epoch in quarters))
        def keep_quarter(engine: Engine) -> None:
            folder = loggers.figures.with_name(SNAPSHOTS)
            with attempted():
                keep_weights(evaluated, folder / f"step_{engine.state.iteration}.safetensors", engine.state.epoch)


def attends(setup: RunSetup, model: nn.Module) -> bool:
    """Return whether the attention of a model can be read, without which `explain --page` has nothing to show."""
    spec = setup.spec
    with evaluating(model), suppress(NoAttention):
        maps_of(model, torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size, device=setup.device))
        return True
    return False


def keep_weights(model: nn.Module, path: Path, epoch: int) -> None:
    """Write what a model has learnt so far, in half precision. The untrained one is rebuilt from the seed."""
    state = merged_state(model)
    weights = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as aside, open(aside, "wb") as file:
        write_tree(file, {"model": weights, "epoch": epoch})


def draw_attention(setup: RunSetup, model: nn.Module, loggers: RunLoggers, *, step: int, title: str) -> None:
    """Draw heat maps of the same validation images each time, and how far each head of a Vision Transformer looks.

    Nothing for a model without maps.
    """
    shown = validation_attention(setup, model)
    if shown is None:
        return
    images, distance, what = shown
    loggers.add_picture("attention/by_image", png(prediction_sheet(images, title=f"{what}, {title}")), step)
    if distance is not None:
        when = title.partition("\n")[0]
        figure = distance_figure(distance, title=f"{pluralise(len(images), 'validation image')}, {when}")
        loggers.add_picture("attention/distance", png(figure), step)


def validation_attention(setup: RunSetup, model: nn.Module) -> tuple[list[ImagePrediction], Tensor | None, str] | None:
    """Return the shown images with their heat maps, the mean attention distance (L, H) in pixels over them (None for
    other than Vision Transformers), and what the maps are. None for a model without maps."""
    dataset, judged, what = validation_images(setup), list[ImagePrediction](), ""
    distances: list[Tensor] = []
    for row in evenly(len(dataset), SHOWN):  # one by one: the weights of all layers and heads take much memory
        images, labels = dataset.batch(BatchKey(0, row[None]))[:2]
        images = images.to(setup.device)
        with evaluating(model):
            with suppress(NoAttention):
                distances.append(maps_of(model, images).distance.cpu())
            try:
                found = heat_maps.heat_maps(model, images)
            except heat_maps.NoMap:
                return None
        judged += predictions_on(setup, [int(row)], found.logits, labels, found.values)
        what = f"evidence for the predicted class ({found.title})"
    return judged, torch.cat(distances).mean(dim=0) if distances else None, what


def draw_best(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, epoch: int, step: int) -> None:
    """Draw what the best weights, which the model now holds, are like; `scores` are theirs on val."""
    when = console.weights_taken(setup.config, epoch)
    with attempted():
        worth = measure_maps(setup, loggers.figures.parent)
        draw_attention(setup, setup.network, loggers, step=step, title=f"{when}\n{worth or READ_HEAT}")
    with attempted():
        draw_scores(setup, scores, loggers, step=step, when=when)


def measure_maps(setup: RunSetup, run_dir: Path) -> str:
    """Say how faithful the heat maps of the best weights are: measured, and kept in the run. Empty for a model without
    maps, and where it would take long, which `explain` then does."""
    with evaluating(setup.network), suppress(heat_maps.NoMap, heat_maps.TakesLong):
        images = validation_images(setup)
        return str(heat_maps.measured(run_dir, setup.network, images, seconds=heat_maps.WAITED_FOR) or "")
    return ""


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


def worst(setup: RunSetup, scores: Scores) -> list[ImagePrediction]:
    """The wrongly classified images, of which the model was surest first; where all is right, the least certain."""
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
    shown = f"the {MISTAKES} surest of" if wrong > MISTAKES else "all"
    return f"{shown} {pluralise(wrong, 'mistake')} on {images:,} validation images"


def validation_images(setup: RunSetup) -> Any:
    """The images behind the val split, also where the loaders give cached features."""
    dataset: Any = setup.data.dataloaders["val"].dataset
    return getattr(dataset, "images", dataset)


def predictions_on(
    setup: RunSetup, rows: Sequence[int], logits: Tensor, labels: Tensor, maps: Iterable[Tensor | None] = repeat(None)
) -> list[ImagePrediction]:
    """The val images `rows` with the logits (N, classes) that a model gave them, and their labels (N,): their original
    pictures, with heat `maps` (G, G) over what the model saw of them."""
    images, names = validation_images(setup), setup.data.class_names
    ranked, judged = ranked_classes(logits.softmax(dim=1), names), []
    for row, best, label, heat in zip(rows, ranked, labels.tolist(), maps, strict=False):
        pixels = images.original(row)
        # Images of a Dataset of one's own reach the model as they are: whole.
        view = view_of(pixels.shape[2], pixels.shape[1], setup.spec) if hasattr(images, "pipeline") else None
        judged.append(ImagePrediction(images.path(row), best, names[label], pixels, heat, view=view))
    return judged


@contextmanager
def attempted() -> Iterator[None]:
    """A picture that cannot be drawn, for lack of memory or of an image, costs a line on the screen and not the run."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        console.say(f"a picture could not be drawn: {reason}", label="note")
