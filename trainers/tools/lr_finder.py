"""Run the learning-rate range test (Smith 2017, arXiv:1506.01186) with Ignite's finder: `--find-lr`."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ignite.handlers import FastaiLRFinder
from matplotlib.figure import Figure

from common.errors import OptionError, TrainingError
from datasets.loaders import stop_workers
from trainers.config import RunConfig
from trainers.engine.handlers import endless_batches
from trainers.reporting import console
from trainers.reporting.figures.results import save, tidy
from trainers.setup import prepare, trainer_of
from trainers.storage.data_folder import claimed_folder

LOWEST, HIGHEST = 1e-7, 1.0
STEPS = 100


def find_lr(config: RunConfig) -> Path:
    """Raise the rate step by step until the loss diverges; return the path of the figure.

    Raises OptionError: the run takes no steps, or the loss falls at no rate.
    """
    if config.train.start_head == "fit":
        raise OptionError("--find-lr: the head is fitted at once, and no step follows for which a rate could be found")
    console.say(f"trying {STEPS} learning rates, one step each")
    finder = range_test(config)
    history = finder.get_results()
    rates = [rate[0] if isinstance(rate, list) else rate for rate in history["lr"]]  # a list: one per group
    try:
        suggestion = finder.lr_suggestion()
    except RuntimeError:
        raise OptionError("the loss fell at no learning rate tried: look at the data, or at --weights") from None
    suggestion = suggestion[0] if isinstance(suggestion, list) else suggestion
    path = claimed_folder(config.output, config.data.source) / "lr_finder.png"
    draw_curve(rates, history["loss"], suggestion, path)
    console.say(f"steepest fall of the loss at --lr {suggestion:.2g}, of {len(rates)} rates tried")
    console.say(f"curve: {path}")
    return path


def range_test(config: RunConfig) -> FastaiLRFinder:
    """Return a finder with the tried rates and the smoothed loss at each."""
    setup, finder = prepare(config), FastaiLRFinder()
    trainer, batches = trainer_of(setup), endless_batches(setup.data.dataloaders["train"], 0)
    start = {"model": setup.model, "optimizer": setup.optimizer}
    options = {"num_iter": STEPS, "start_lr": LOWEST, "end_lr": HIGHEST, "smooth_f": 0.1, "diverge_th": 3.0}
    attached = finder.attach(trainer, start, lambda output: output["loss"], **options)
    try:
        # A loss that is not finite counts as diverged; Ignite warns if none diverges.
        with warnings.catch_warnings(action="ignore"), attached, suppress(TrainingError):
            trainer.run(batches, max_epochs=1, epoch_length=STEPS)
    finally:
        stop_workers(setup.data.dataloaders.values())
    return finder


def draw_curve(rates: Sequence[float], losses: Sequence[float], suggestion: float, path: Path) -> None:
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses)
    axes.axvline(suggestion, linestyle="--", color="tab:orange", label=f"steepest fall: {suggestion:.2g}")
    lowest, first = min(losses), losses[0]
    axes.set_ylim(lowest - 0.1 * (first - lowest) - 1e-3, first + 0.5 * (first - lowest) + 1e-3)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss, smoothed")
    axes.legend()
    tidy(axes)
    save(figure, path)
