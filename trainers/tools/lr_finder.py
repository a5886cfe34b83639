"""`--find-lr`: the learning-rate range test (Smith 2017, arXiv:1506.01186), with its curve as a figure."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ignite.engine import Engine, Events

from common.errors import ConfigError, TrainingError
from datasets.loaders import stop_workers
from trainers.budget.pace import measure
from trainers.config import RunConfig
from trainers.engine.handlers import attach_learning_rate, endless_batches
from trainers.reporting import console
from trainers.setup import prepare, trainer_of
from trainers.storage.data_folder import claimed_folder

LOWEST, HIGHEST = 1e-7, 1.0
FEWEST, STEPS, SECONDS = 30, 120, 60.0
SMOOTHING = 0.9
DIVERGED = 3.0  # times the best smoothed loss


def find_lr(config: RunConfig, *, number: int = 1) -> Path:
    """Raise the rate from step to step on a fresh model until the loss diverges; the figure that shows it. Of several
    runs of one command each has a `number`, and from the second on it is in the figure's name. Raises ConfigError: the
    run takes no steps."""
    if config.train.start_head == "fit":
        raise ConfigError("--find-lr: the head is fitted at once, and no step follows for which a rate could be found")
    rates, losses = range_test(config)
    suggestion = suggest(rates, losses)
    name = "lr_finder.png" if number == 1 else f"lr_finder_{number}.png"
    path = claimed_folder(config.output, config.data.source) / name
    draw(rates, losses, suggestion, path)
    console.say(f"steepest fall of the loss at --lr {suggestion:.2g}, of {len(rates)} rates tried")
    console.say(f"curve: {path}")
    return path


def range_test(config: RunConfig) -> tuple[list[float], list[float]]:
    """The rates that were tried, and the smoothed loss at each."""
    setup = prepare(config)
    step = measure(setup, seconds=0.5).step
    steps = int(min(STEPS, max(FEWEST, SECONDS / step)))
    console.say(f"{steps} rates, a step each: about {console.duration(steps * step)} at most")
    trainer = trainer_of(setup)
    losses: list[float] = []
    rates = np.geomspace(LOWEST, HIGHEST, steps).tolist()
    attach_learning_rate(trainer, setup.optimizer, rates.__getitem__)

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine: Engine) -> None:
        losses.append(engine.state.output["loss"])
        smoothed = smooth(losses)
        if smoothed[-1] > DIVERGED * min(smoothed):
            engine.terminate()

    try:
        trainer.run(endless_batches(setup.data.dataloaders["train"], 0), max_epochs=1, epoch_length=steps)
    except TrainingError:  # not finite: as diverged as can be
        pass
    finally:
        stop_workers(setup.data.dataloaders.values())
    return rates[: len(losses)], smooth(losses)


def smooth(losses: Sequence[float]) -> list[float]:
    """An exponential moving average without its bias towards zero."""
    average, smoothed = 0.0, []
    for count, loss in enumerate(losses, start=1):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        smoothed.append(average / (1 - SMOOTHING**count))
    return smoothed


def suggest(rates: Sequence[float], losses: Sequence[float]) -> float:
    """The rate of the steepest fall per decade, before the lowest loss."""
    slopes = np.gradient(losses, np.log10(rates))[1 : np.argmin(losses)] if len(losses) > 1 else np.empty(0)
    if slopes.min(initial=0.0) >= 0:
        raise ConfigError("the loss fell at no learning rate that was tried: look at the data, or at --weights")
    return rates[1 + int(slopes.argmin())]


def draw(rates: Sequence[float], losses: Sequence[float], suggestion: float, path: Path) -> None:
    from matplotlib.figure import Figure

    from trainers.reporting.figures.results import save

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses)
    axes.axvline(suggestion, linestyle="--", color="tab:orange", label=f"steepest fall: {suggestion:.2g}")
    lowest, first = min(losses), losses[0]
    axes.set_ylim(lowest - 0.1 * (first - lowest) - 1e-3, first + 0.5 * (first - lowest) + 1e-3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss, smoothed")
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, path)
