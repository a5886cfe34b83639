"""Measure what Ignite, its handlers and the default logging cost over a bare loop, on the default digits run.

    python -m benchmarks.engine_overhead [--rounds 3] [--batch-size 10] [--epochs 40] [--head-only] [--rival engine]

Both sides take the same steps on the same batches: same model, optimizer, learning-rate schedule, clipping, seeds, the
same validation after every epoch, and the same checkpoints (all of the state each epoch, the weights when they are
better), written by the same writer. The Ignite side is the application's own assembly with everything it logs by
default: TensorBoard's curves (what its pictures cost is measured by benchmarks/tensorboard_cost.py), metrics.csv,
summary.json, console lines, the history in every checkpoint. Both run in one process and take turns epoch by epoch, so
that a machine that slows down slows both. The figure is the median over the epochs of the ratio between the two sides
(a neighbour on the machine who takes half a second from one of them changes a mean, not a median); its interval is a
bootstrap over the epochs. `--head-only` freezes the backbone, which makes steps of about 3 ms. `--rival engine` puts
Ignite's engine without any logging in the place of the plain loop: what remains is the cost of logging alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Events
from scipy.stats import bootstrap
from torch import nn

from benchmarks.environment import describe, write_result
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.engine.engines import StepOptions, create_trainer
from trainers.engine.handlers import attach_learning_rate, endless_batches
from trainers.engine.optim import set_learning_rate
from trainers.engine.randomness import seed_step
from trainers.reporting.tensorboard import RunLoggers
from trainers.run_engines import Run
from trainers.run_status import RunStatus
from trainers.setup import RunSetup, prepare, schedule, training_loss
from trainers.storage.checkpoint_file import CheckpointWriter
from vit.config import ModelConfig


def bare_epochs(setup: RunSetup, folder: Path) -> Iterator[None]:
    """A plain loop, an epoch at a time."""
    model, optimizer, device = setup.model, setup.optimizer, setup.device
    loss_fn = nn.CrossEntropyLoss(label_smoothing=setup.config.train.label_smoothing or 0.0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rate, train = schedule(setup), setup.data.dataloaders["train"]
    end_epoch = validation_and_checkpoints(setup, folder)
    for epoch in range(epochs_of(setup)):
        model.train()
        train.batch_sampler.set_position(epoch)  # type: ignore[union-attr]
        total, correct, seen = 0.0, 0, 0
        for i, (images, labels) in enumerate(train):
            step = epoch * len(train) + i
            set_learning_rate(optimizer, rate(step))
            seed_step(setup.config.train.seed, step + 1, 0, device)
            logits = model(images)
            loss = loss_fn(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, setup.config.train.clip_norm, foreach=True)
            optimizer.step()
            total += loss.item() * len(labels)
            correct += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
        end_epoch((epoch + 1) * len(train))
        yield


def silent_epochs(setup: RunSetup, folder: Path) -> Iterator[None]:
    """Ignite's engine with the application's step and learning rate, and nothing that logs, an epoch at a time."""
    train, seed = setup.data.dataloaders["train"], setup.config.train.seed
    options = StepOptions(clip_norm=setup.config.train.clip_norm, seed=seed)
    trainer = create_trainer(setup.model, setup.optimizer, training_loss(setup), setup.device, options=options)
    attach_learning_rate(trainer, setup.optimizer, schedule(setup))
    batches, end_epoch = endless_batches(train, 0), validation_and_checkpoints(setup, folder)
    for epoch in range(epochs_of(setup)):
        trainer.run(batches, max_epochs=epoch + 1, epoch_length=len(train))
        end_epoch(trainer.state.iteration)
        yield


def epochs_of(setup: RunSetup) -> int:
    assert setup.config.train.epochs is not None
    return setup.config.train.epochs


def validation_and_checkpoints(setup: RunSetup, folder: Path) -> Callable[[int], None]:
    """Validate the untrained model; then, after each epoch, validate and save what the application saves."""
    steps, bests = (CheckpointWriter(folder / f"rival_{time.monotonic_ns()}", keep=keep) for keep in (2, 1))
    model, optimizer, val = setup.model, setup.optimizer, setup.data.dataloaders["val"]
    best = -1.0
    validate(model, val)

    def end_epoch(step: int) -> None:
        nonlocal best
        _, accuracy = validate(model, val)
        if accuracy > best:
            best = accuracy
            bests({"model": model.state_dict()}, "best.pt")
        steps({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"step_{step}.pt")

    return end_epoch


RIVALS = {"loop": bare_epochs, "engine": silent_epochs}


def validate(model: nn.Module, loader: torch.utils.data.DataLoader) -> tuple[float, float]:
    model.eval()
    loss, correct, seen = 0.0, 0, 0
    with torch.inference_mode():
        for images, labels in loader:
            logits = model(images)
            loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            correct += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
    return loss / seen, correct / seen


def run_in_turns(config: RunConfig, folder: Path, rival: str) -> np.ndarray:
    """Seconds of each epoch, (epochs, 2): the rival's and the application's."""
    run_dir = folder / f"run_{time.monotonic_ns()}"
    run_dir.mkdir()
    setup, other_job = prepare(config), prepare(config)  # the same start for both
    other = RIVALS[rival](other_job, folder)
    seconds: list[tuple[float, float]] = []
    with contextlib.redirect_stdout(io.StringIO()), RunLoggers(run_dir / "tb") as loggers:
        started = time.perf_counter()
        run = Run(setup, run_dir, loggers=loggers, record=RunStatus(setup, run_dir))

        @run.trainer.on(Events.EPOCH_COMPLETED)  # attached last: all that an epoch costs lies before it
        def give_turn() -> None:
            nonlocal started
            ended = time.perf_counter()
            next(other)
            other_ended = time.perf_counter()
            seconds.append((other_ended - ended, ended - started))
            started = time.perf_counter()

        run.trainer.run(
            endless_batches(setup.data.dataloaders["train"], 0),
            max_epochs=setup.config.train.epochs,
            epoch_length=setup.steps_per_epoch,
        )
    for ours, theirs in zip(setup.model.parameters(), other_job.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), "the two sides did not take the same steps"
    return np.array(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="default: the default run's")
    parser.add_argument("--head-only", action="store_true", help="train the head alone, on features computed each time")
    parser.add_argument("--rival", choices=RIVALS, default="loop", help="engine: Ignite's engine without any logging")
    parser.add_argument("--batch-size", type=int, help="smaller batches make shorter steps; default: the default run's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = RunConfig(
            model=ModelConfig(trainable="head" if options.head_only else "all"),
            data=DataConfig(batch_size=options.batch_size, augment="light"),
            train=TrainConfig(epochs=options.epochs, device="cpu", cache_features="off"),
            output=OutputConfig(output_dir=Path(name), tb="scalars"),
        )
        run_in_turns(replace(config, train=replace(config.train, epochs=2)), Path(name), options.rival)  # warm-up
        rounds = []
        for number in range(options.rounds):
            rounds.append(run_in_turns(config, Path(name), options.rival))
            other, ours = np.median(rounds[-1], axis=0)
            print(f"round {number + 1}: an epoch takes {other:.3f} s bare, {ours:.3f} s as it is", flush=True)
        resolved = prepare(config)
    other, ours = np.concatenate(rounds).T
    ratios = 100 * (ours / other - 1)
    low, high = bootstrap((ratios,), np.median, rng=0, method="percentile").confidence_interval
    result = {
        "overhead_percent": round(float(np.median(ratios)), 2),
        "interval_95_percent": [round(float(bound), 2) for bound in (low, high)],
        "of_the_total_seconds_percent": round(100 * float(ours.sum() / other.sum() - 1), 2),
        "rival": options.rival,
        "trains": "the head" if options.head_only else "all",
        "batch_size": resolved.config.data.batch_size,
        "rival_ms_per_step": round(1e3 * float(np.median(other)) / resolved.steps_per_epoch, 2),
        "rounds": options.rounds,
        "epochs_per_round": resolved.config.train.epochs,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        **describe(),
    }
    batch = f"_batch_{options.batch_size}" if options.batch_size else ""
    rival = "_over_engine" if options.rival == "engine" else ""
    write_result("engine_overhead" + rival + "_head" * options.head_only + batch, result)


if __name__ == "__main__":
    main()
