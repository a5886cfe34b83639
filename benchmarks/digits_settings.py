"""How the default settings of `vit_micro_2` on digits were chosen: validation scores of a few settings, n seeds each.

    python -m benchmarks.digits_settings [--seeds 3] [--jobs 2]

Every setting changes something of the default. Only validation scores are printed and kept; the test split plays no
part.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.environment import describe, write_result
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from vit.config import ModelConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "lr 2e-3": {"lr": 2e-3},
    "lr 5e-3": {"lr": 5e-3},
    "batch 32, lr 2e-3": {"batch_size": 32, "lr": 2e-3},
    "augment none": {"augment": "none"},
    "augment standard": {"augment": "standard"},
    "label smoothing 0": {"label_smoothing": 0.0},
    "weight decay 0.2": {"weight_decay": 0.2},
    "stochastic depth 0.1": {"stochastic_depth": 0.1},
    "dropout 0.1": {"dropout": 0.1},
    "EMA 0.99": {"ema_decay": 0.99},
    "mean pooling": {"pool": "mean"},
    "mean pooling, dropout 0.1": {"pool": "mean", "dropout": 0.1},
    "mean pooling, dropout 0.1, lr 2e-3": {"pool": "mean", "dropout": 0.1, "lr": 2e-3},
}


def run_config(changes: dict[str, Any], seed: int, folder: Path) -> RunConfig:
    """The default run with these options changed, wherever in the tree they live."""

    def changed(part: Any) -> Any:
        return replace(part, **{key: value for key, value in changes.items() if hasattr(part, key)})

    return RunConfig(
        model=changed(ModelConfig()),
        data=changed(DataConfig(workers=0)),
        train=replace(changed(TrainConfig()), seed=seed),
        output=OutputConfig(output_dir=folder),
    )


def trial(name: str, seed: int) -> tuple[str, float, float]:
    """Validation accuracy and loss of the best epoch."""
    import torch

    from trainers.run import train

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = train(run_config(SETTINGS[name], seed, Path(folder)))
    return name, result.val["accuracy"], result.val["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    options = parser.parse_args()
    scores_of: dict[str, list[tuple[float, float]]] = {name: [] for name in options.only}
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(trial, name, seed) for seed in range(options.seeds) for name in options.only]
        for future in pending:
            name, accuracy, loss = future.result()
            scores_of[name].append((accuracy, loss))
            print(f"{name:>38}  val accuracy {accuracy:.2%}  loss {loss:.4f}", flush=True)
    table = {
        name: {
            "val_accuracy_mean": round(statistics.mean(accuracy for accuracy, _ in scores), 5),
            "val_accuracy_all": [round(accuracy, 5) for accuracy, _ in scores],
            "val_loss_mean": round(statistics.mean(loss for _, loss in scores), 5),
        }
        for name, scores in scores_of.items()
    }
    write_result("digits_settings", {"settings": table, "seeds": options.seeds, "threads": 1, **describe()})


if __name__ == "__main__":
    main()
