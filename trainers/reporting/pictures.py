"""What a run shows beside its curves: drawn a few times in a run, put into TensorBoard and `figures/` alike.

While it trains: pictures of its first batch beside what the model sees of them, and the attention of the same eight
validation images. When it ends, with its best weights: its worst mistakes, its confusion matrix, its calibration.
Nothing is drawn at random for them, and the model is left in the mode it was in: a run takes the same steps with and
without pictures.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn

from datasets.bundle import BatchKey, ImageSet
from datasets.files import replacing
from datasets.sampling import batch_sampler, evenly
from datasets.text import pluralise
from figures.attention import distance_figure
from figures.judged import Judged, rank
from figures.results import confusion_figure, reliability_figure
from figures.sheets import batch_sheet, judged_sheet, png
from trainers import answers
from trainers.engine.evaluation import Scores
from trainers.engine.many_classes import dense_probabilities, most_confused
from trainers.engine.metrics import confidence_bins
from trainers.engine.predictions import Predictions
from trainers.reporting import console
from trainers.reporting.tensorboard import RunLoggers
from trainers.setup import RunSetup
from vit.attention_maps import maps_of
from vit.errors import NoAttention
from vit.low_rank import merged_state
from vit.tensor_files import write_tree

KEPT = 3_000_000  # parameters of the largest model whose weights are kept for `explain --page`: 6 MB at each moment
SHOWN = 8  # validation images whose attention is followed
MISTAKES = 16
READ_BATCH = "from the first batch: each picture, and beside it what the model sees of it"
READ_MISTAKES = "Coloured: what the model said, and how sure it was. A wrong label, or a class that looks like another?"
READ_CONFUSION = "Each row is a true class; what lies off the diagonal was taken for another."
READ_ROLLOUT = "Below each image: the brighter a patch, the more of it reaches the head."
BATCH = 16  # images of the first training batch


def attach(trainer: Engine, setup: RunSetup, evaluated: nn.Module, loggers: RunLoggers) -> None:
    """Draw while the run trains. Cached features have no pixels and no attention."""
    if setup.on_features:
        return

    @trainer.on(Events.ITERATION_STARTED(once=1))
    def draw_batch(engine: Engine) -> None:
        """Training pictures beside what the model sees, normalisation undone: a glance finds a wrong augmentation."""
        with attempted():
            images, loader = engine.state.batch[0][:BATCH], setup.data.dataloaders["train"]
            sampler, dataset = copy(batch_sampler(loader)), cast("ImageSet", loader.dataset)
            sampler.set_position(0)  # that of the run has gone on
            rows = next(iter(sampler)).draws[: len(images)] % len(dataset)
            originals = [dataset.original(row) for row in rows.tolist()]
            picture = batch_sheet(originals, images, mean=setup.spec.mean, std=setup.spec.std, title=READ_BATCH)
            loggers.add_picture("data/augmented_batch", png(picture), 0)

    attach_attention(trainer, setup, evaluated, loggers)


def attach_attention(trainer: Engine, setup: RunSetup, evaluated: nn.Module, loggers: RunLoggers) -> None:
    """Before the first step, and after each quarter of the epochs; the best weights at the end make it five times."""
    epochs = setup.total_steps // setup.steps_per_epoch
    steps = {setup.steps_per_epoch * (epochs * quarter // 4) for quarter in range(4)}
    drawn: set[int] = set()

    # STARTED too: the untrained model, and after a resume what the first life drew at this very step.
    @trainer.on(Events.STARTED | Events.EPOCH_COMPLETED)
    def draw(engine: Engine) -> None:
        step = engine.state.iteration
        if step in steps - drawn:
            drawn.add(step)
            when = f"after {engine.state.epoch} of {setup.config.train.epochs} epochs" if step else "untrained"
            with attempted():
                if draw_attention(setup, evaluated, loggers, step=step, when=when) and step:
                    keep_weights(evaluated, loggers.figures.with_name("moments") / f"step_{step}.safetensors", engine)


def keep_weights(model: nn.Module, path: Path, trainer: Engine) -> None:
    """What a small model has learnt so far, in half precision. The untrained one is rebuilt from the seed."""
    if sum(parameter.numel() for parameter in model.parameters()) > KEPT:
        return
    state = merged_state(model)
    weights = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as aside, open(aside, "wb") as file:
        write_tree(file, {"model": weights, "epoch": trainer.state.epoch})


def draw_attention(setup: RunSetup, model: nn.Module, loggers: RunLoggers, *, step: int, when: str) -> bool:
    """Rollout and mean attention distance of the same validation images each time; nothing, and False, for other than
    ViTs."""
    attention = validation_attention(setup, model)
    if attention is None:
        return False
    images, distance = attention
    loggers.add_picture(
        "attention/by_image", png(judged_sheet(images, title=f"attention rollout, {when}\n{READ_ROLLOUT}")), step
    )
    title = f"{pluralise(len(images), 'validation image')}, {when}"
    loggers.add_picture("attention/distance", png(distance_figure(distance, title=title)), step)
    return True


def validation_attention(setup: RunSetup, model: nn.Module) -> tuple[list[Judged], Tensor] | None:
    """The shown images with their rollout, and the mean attention distance (L, H) in pixels over them.

    None for a model without attention over one class token and a square grid of patches.
    """
    dataset: Any = setup.data.dataloaders["val"].dataset
    judged: list[Judged] = []
    distances: list[Tensor] = []
    for row in evenly(len(dataset), SHOWN):  # one by one: the weights of all layers and heads take much memory
        images, labels = dataset.__getitems__(BatchKey(0, row[None]))[:2]
        try:
            with undisturbed(model):
                maps = maps_of(model, images.to(setup.device))
        except NoAttention:
            return None
        judged += predictions_on(setup, [int(row)], maps.logits.float(), labels, maps.rollout.cpu())
        distances.append(maps.distance.cpu())
    return judged, torch.cat(distances).mean(dim=0)


def draw_best(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, epoch: int, step: int) -> None:
    """Draw what the best weights, which the model now holds, are like; `scores` are theirs on val."""
    when = f"best weights (epoch {epoch})"
    if not setup.on_features:
        with attempted():
            draw_attention(setup, setup.model, loggers, step=step, when=when)
    with attempted():
        draw_scores(setup, scores, loggers, step=step, when=when)


def draw_scores(setup: RunSetup, scores: Scores, loggers: RunLoggers, *, step: int, when: str) -> None:
    images = len(scores.outputs.labels)
    title = f"val: {images:,} images, {when}"
    shown = f"{mistakes_title(scores)}; {when}\n{READ_MISTAKES}"
    loggers.add_picture("mistakes/by_image", png(judged_sheet(worst(setup, scores), title=shown)), step)
    counts, names, shown = most_confused(scores.confusion, setup.data.class_names)
    confusion = confusion_figure(counts, names, title=f"confusion matrix, {title}{shown}\n{READ_CONFUSION}")
    loggers.add_picture("mistakes/confusion_matrix", png(confusion), step)
    bins = confidence_bins(scores.outputs.confidence, scores.outputs.correct)
    calibration = reliability_figure(bins, ece=scores.metrics["ece"], title=title)
    loggers.add_picture("calibration/reliability", png(calibration), step)
    if answers.available:
        confidence, correct = scores.outputs.confidence.numpy(), scores.outputs.correct.numpy()
        coverage = answers.coverage_figure(confidence, correct, title=title)
        loggers.add_picture("calibration/answers", png(coverage), step)


def worst(setup: RunSetup, scores: Scores) -> list[Judged]:
    """The wrongly classified images, of which the model was surest first; where all is right, the least certain."""
    outputs, wrong = scores.outputs, ~scores.outputs.correct
    sureness = outputs.logits.double().softmax(dim=1).amax(dim=1) if outputs.whole else outputs.confidence
    order = sureness.where(wrong, -torch.inf) if wrong.any() else -sureness
    count = min(MISTAKES, int(wrong.sum()) or len(order))
    rows = order.sort(descending=True, stable=True).indices[:count]
    chosen = Predictions(*(part[rows] for part in outputs))
    return predictions_on(
        setup, rows.tolist(), dense_probabilities(chosen, len(setup.data.class_names)).log(), chosen.labels
    )


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
    setup: RunSetup, rows: Sequence[int], logits: Tensor, labels: Tensor, rollouts: Iterable[Tensor] | None = None
) -> list[Judged]:
    """The val images `rows` with the logits (N, classes) that a model gave them, and their labels (N,): their original
    pictures, or with `rollouts` what the model saw, which these lie over."""
    images, names = validation_images(setup), setup.data.class_names
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


@contextmanager
def attempted() -> Iterator[None]:
    """A picture that cannot be drawn, for lack of memory or of an image, costs a line on the screen and not the run."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        console.say(f"a picture could not be drawn: {reason}", label="note")
