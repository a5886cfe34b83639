"""What Ignite, its handlers and the default logging cost over a bare loop, on the default digits run.

    python -m benchmarks.engine_overhead [--rounds 3] [--batch-size 8] [--epochs 40] [--head-only]

Both sides take the same steps on the same batches: same model, optimizer, learning-rate schedule, clipping, seeds, the
same validation after every epoch, and the same checkpoints (all of the state each epoch, the weights when they are
better), written by the same writer. The Ignite side is the application's own assembly with everything it logs by
default: TensorBoard's curves (what its pictures cost is measured by benchmarks/tensorboard_cost.py), metrics.csv,
summary.json, console lines, the history in every checkpoint. Both run in one process and take turns epoch by epoch, so
that a machine that slows down slows both. The figure is the median over the epochs of the ratio between the two sides
(a neighbour on the machine who takes half a second from one of them changes a mean, not a median); its interval is a
bootstrap over the epochs. `--head-only` freezes the backbone, which makes steps of about 3 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Events
from scipy.stats import bootstrap
from torch import nn

from benchmarks.environment import describe, write_result
from datasets.config import DataConfig
from trainers.checkpoint import CheckpointWriter
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.handlers import endless_batches
from trainers.interruption import SignalFlag
from trainers.job import Job, prepare, schedule
from trainers.optim import set_learning_rate
from trainers.run import Record, assemble
from trainers.seeding import seed_step
from trainers.tensorboard import RunLoggers
from vit.config import ModelConfig


def bare_epochs(job: Job, folder: Path) -> Iterator[float]:
    """A plain loop that trains, validates and saves alike, and logs nothing: the training loss of each epoch."""
    steps, bests = (CheckpointWriter(folder / f"bare_{time.monotonic_ns()}", keep=keep) for keep in (2, 1))
    best = -1.0
    model, optimizer, device = job.model, job.optimizer, job.device
    loss_fn = nn.CrossEntropyLoss(label_smoothing=job.config.train.label_smoothing or 0.0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rate = schedule(job)
    train, val = job.data.dataloaders["train"], job.data.dataloaders["val"]
    validate_bare(model, val)
    assert job.config.train.epochs is not None
    for epoch in range(job.config.train.epochs):
        model.train()
        train.batch_sampler.set_position(epoch)  # type: ignore[union-attr]
        total, correct, seen = 0.0, 0, 0
        for i, (images, labels) in enumerate(train):
            step = epoch * len(train) + i
            set_learning_rate(optimizer, rate(step))
            seed_step(job.config.train.seed, step + 1, 0, device)
            logits = model(images)
            loss = loss_fn(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, job.config.train.clip_norm, foreach=True)
            optimizer.step()
            total += loss.item() * len(labels)
            correct += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
        _, accuracy = validate_bare(model, val)
        if accuracy > best:
            best = accuracy
            bests({"model": model.state_dict()}, "best.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        steps(state, f"step_{(epoch + 1) * len(train)}.pt")
        yield total / seen


def validate_bare(model: nn.Module, loader: torch.utils.data.DataLoader) -> tuple[float, float]:
    model.eval()
    loss, correct, seen = 0.0, 0, 0
    with torch.inference_mode():
        for images, labels in loader:
            logits = model(images)
            loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            correct += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
    return loss / seen, correct / seen


def run_in_turns(config: RunConfig, folder: Path) -> np.ndarray:
    """Seconds of each epoch, (epochs, 2): the bare loop's and Ignite's."""
    run_dir = folder / f"run_{time.monotonic_ns()}"
    run_dir.mkdir()
    job, bare_job = prepare(config), prepare(config)  # the same start for both
    bare, bare_losses = bare_epochs(bare_job, folder), []
    seconds: list[tuple[float, float]] = []
    with contextlib.redirect_stdout(io.StringIO()), RunLoggers(run_dir / "tb") as loggers, SignalFlag() as flag:
        started = time.perf_counter()
        run = assemble(job, run_dir, loggers, flag)
        Record(job, run_dir).attach(run.trainer)

        @run.trainer.on(Events.EPOCH_COMPLETED)  # attached last: all that an epoch costs lies before it
        def give_turn() -> None:
            nonlocal started
            ignite_ended = time.perf_counter()
            bare_losses.append(next(bare))
            bare_ended = time.perf_counter()
            seconds.append((bare_ended - ignite_ended, ignite_ended - started))
            started = time.perf_counter()

        run.trainer.run(
            endless_batches(job.data.dataloaders["train"], 0),
            max_epochs=job.config.train.epochs,
            epoch_length=job.steps_per_epoch,
        )
    losses = [row["train_loss"] for row in run.trainer.state.history if row["epoch"]]
    assert losses == bare_losses, "the two sides did not take the same steps"
    return np.array(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="default: the default run's")
    parser.add_argument("--head-only", action="store_true", help="train the head alone, on features computed each time")
    parser.add_argument("--batch-size", type=int, help="smaller batches make shorter steps; default: the default run's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        config = RunConfig(
            model=ModelConfig(trainable="head" if options.head_only else "all"),
            data=DataConfig(batch_size=options.batch_size, augment="light"),
            train=TrainConfig(epochs=options.epochs, device="cpu", cache_features="off"),
            output=OutputConfig(output_dir=Path(name), tb="scalars"),
        )
        run_in_turns(replace(config, train=replace(config.train, epochs=2)), Path(name))  # warm-up
        rounds = []
        for number in range(options.rounds):
            rounds.append(run_in_turns(config, Path(name)))
            bare, ignite = np.median(rounds[-1], axis=0)
            print(f"round {number + 1}: an epoch takes {bare:.3f} s bare, {ignite:.3f} s with Ignite", flush=True)
        resolved = prepare(config)
    bare, ignite = np.concatenate(rounds).T
    ratios = 100 * (ignite / bare - 1)
    low, high = bootstrap((ratios,), np.median, rng=0, method="percentile").confidence_interval
    result = {
        "overhead_percent": round(float(np.median(ratios)), 2),
        "interval_95_percent": [round(float(bound), 2) for bound in (low, high)],
        "of_the_total_seconds_percent": round(100 * float(ignite.sum() / bare.sum() - 1), 2),
        "trains": "the head" if options.head_only else "all",
        "batch_size": resolved.config.data.batch_size,
        "bare_ms_per_step": round(1e3 * float(np.median(bare)) / resolved.steps_per_epoch, 2),
        "rounds": options.rounds,
        "epochs_per_round": resolved.config.train.epochs,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        **describe(),
    }
    batch = f"_batch_{options.batch_size}" if options.batch_size else ""
    write_result("engine_overhead" + "_head" * options.head_only + batch, result)


if __name__ == "__main__":
    main()
