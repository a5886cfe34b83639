"""What Ignite, its handlers and the default logging cost over a bare loop, on the default digits run.

    python -m benchmarks.engine_overhead [--rounds 8] [--epochs 15] [--batch-size 8]

Both sides take the same steps on the same batches: same model, optimizer, learning-rate schedule, clipping, seeds, the
same validation after every epoch, and the same checkpoints (all of the state each epoch, the weights when they are
better), written by the same writer. The Ignite side is the application's own assembly with everything it logs by
default: TensorBoard, metrics.csv, summary.json, console lines. Both run in one process, in alternating
order; the figure is the median of the paired ratios with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
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
from trainers.run import assemble
from trainers.seeding import seed_step
from trainers.tensorboard import RunLoggers


def run_bare(job: Job, epochs: int, folder: Path) -> tuple[float, list[float]]:
    """A plain loop that trains, validates and saves alike, and logs nothing but one number per epoch."""
    steps, bests = (CheckpointWriter(folder / f"bare_{time.monotonic_ns()}", keep=keep) for keep in (2, 1))
    best = -1.0
    model, optimizer, device = job.model, job.optimizer, job.device
    loss_fn = nn.CrossEntropyLoss(label_smoothing=job.config.train.label_smoothing or 0.0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rate = schedule(job)
    train, val = job.data.dataloaders["train"], job.data.dataloaders["val"]
    losses = []
    start = time.perf_counter()
    validate_bare(model, val)
    for epoch in range(epochs):
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
        losses.append(total / seen)
        _, accuracy = validate_bare(model, val)
        if accuracy > best:
            best = accuracy
            bests({"model": model.state_dict()}, "best.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        steps(state, f"step_{(epoch + 1) * len(train)}.pt")
    return time.perf_counter() - start, losses


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


def run_ignite(job: Job, epochs: int, folder: Path) -> tuple[float, list[float]]:
    run_dir = folder / f"run_{time.monotonic_ns()}"
    run_dir.mkdir()
    with contextlib.redirect_stdout(io.StringIO()), RunLoggers(run_dir / "tb") as loggers, SignalFlag() as flag:
        start = time.perf_counter()
        trainer = assemble(job, run_dir, loggers, flag).trainer
        trainer.run(
            endless_batches(job.data.dataloaders["train"], 0), max_epochs=epochs, epoch_length=job.steps_per_epoch
        )
        seconds = time.perf_counter() - start
    return seconds, [row["train_loss"] for row in trainer.state.history if row["epoch"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, help="smaller batches make shorter steps; default: the default run's")
    options = parser.parse_args()
    ratios, step_ms = [], []
    with tempfile.TemporaryDirectory() as name:
        config = RunConfig(
            data=DataConfig(batch_size=options.batch_size),
            train=TrainConfig(epochs=options.epochs, device="cpu"),
            output=OutputConfig(output_dir=Path(name)),
        )
        for round_number in range(options.rounds + 1):
            order = ("bare", "ignite") if round_number % 2 else ("ignite", "bare")
            seconds, losses = {}, {}
            for side in order:
                job = prepare(config)  # the same start for both
                if side == "bare":
                    seconds[side], losses[side] = run_bare(job, options.epochs, Path(name))
                else:
                    seconds[side], losses[side] = run_ignite(job, options.epochs, Path(name))
            assert losses["bare"] == losses["ignite"], "the two sides did not take the same steps"
            if round_number == 0:  # warm-up
                continue
            ratios.append(seconds["ignite"] / seconds["bare"])
            step_ms.append(1e3 * seconds["bare"] / (options.epochs * job.steps_per_epoch))
            print(f"round {round_number}: bare {seconds['bare']:.2f} s, ignite {seconds['ignite']:.2f} s", flush=True)
    low, high = bootstrap((np.array(ratios),), np.median, rng=0, method="percentile").confidence_interval
    result = {
        "overhead_percent": round(100 * (float(np.median(ratios)) - 1), 2),
        "interval_95_percent": [round(100 * (float(bound) - 1), 2) for bound in (low, high)],
        "batch_size": job.config.data.batch_size,
        "bare_ms_per_step": round(float(np.median(step_ms)), 2),
        "rounds": options.rounds,
        "epochs_per_round": options.epochs,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        **describe(),
    }
    write_result("engine_overhead" + (f"_batch_{options.batch_size}" if options.batch_size else ""), result)


if __name__ == "__main__":
    main()
