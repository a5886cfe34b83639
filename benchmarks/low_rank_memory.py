"""Memory and time of a training step, by which part of a model trains.

    python -m benchmarks.low_rank_memory [--model vit_b_16] [--batch-size 8] [--steps 2] [--rounds 1]

Each turn is a fresh process that builds the model, untrained, and takes AdamW steps on random images on the processor;
the sides take turns. Peak memory is the maximum resident set of the process; seconds are those of the fastest step
after the first, which also makes the optimizer's moments.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import torch

from benchmarks.environment import describe
from benchmarks.whole_process import numbers_of
from trainers.engine.engines import create_trainer
from trainers.engine.handlers import peak_memory_mb
from trainers.engine.optim import build_optimizer
from vit import ModelConfig, build_model, image_spec
from vit.param_groups import param_groups

SIDES = ("all", "lora:8", "norms", "last:4", "head")
CPU = torch.device("cpu")


def take_turn(model_name: str, trainable: str, batch_size: int, steps: int) -> None:
    """Print the numbers of one process."""
    torch.manual_seed(0)
    config = ModelConfig(name=model_name, weights="none", trainable=trainable)
    model, side = build_model(config, num_classes=10), image_spec(config).image_size
    optimizer = build_optimizer(param_groups(model, weight_decay=0.05), name="adamw", lr=1e-4)
    trainer = create_trainer(model, optimizer, torch.nn.functional.cross_entropy, CPU)
    torch.nn.init.normal_(list(model.parameters())[-2], std=0.02)  # the head's weight: a zero one passes no gradient
    batch = (torch.randn(batch_size, 3, side, side), torch.arange(batch_size) % 10)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.run([batch], max_epochs=1)
        seconds.append(time.perf_counter() - start)
    trains = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(json.dumps({"seconds": min(seconds[1:]), "peak_mb": peak_memory_mb(CPU), "trainable": trains}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_b_16")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--turn")
    options = parser.parse_args()
    if options.turn:
        take_turn(options.model, options.turn, options.batch_size, options.steps)
        return
    print(describe())
    words = ("--model", options.model, "--batch-size", str(options.batch_size), "--steps", str(options.steps))
    turns: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for _ in range(options.rounds):
        for side, taken in turns.items():
            taken.append(numbers_of("-m", "benchmarks.low_rank_memory", "--turn", side, *words))
    print(f"{options.model}, batch {options.batch_size}, medians of {options.rounds}")
    for side, taken in turns.items():
        peak, seconds = (median(turn[name] for turn in taken) for name in ("peak_mb", "seconds"))
        print(f"{side:>8}  {taken[0]['trainable']:>12,.0f} trainable  {peak:>7,.0f} MB  {seconds:>7.3f} s a step")


if __name__ == "__main__":
    main()
