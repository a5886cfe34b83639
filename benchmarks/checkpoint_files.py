"""What a checkpoint costs: written, read, and on the disk, beside the torch file that it was before.

python -m benchmarks.checkpoint_files --models vit_micro_2 vit_tiny_16 --rounds 15
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.environment import describe, write_result
from datasets.files import put
from trainers.checkpoint import CheckpointWriter, checkpoints, read_checkpoint
from vit import build_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_micro_2", "vit_tiny_16"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measure(content_of(name), options.rounds) for name in options.models}
    write_result("checkpoint_files", {"rounds": options.rounds, "models": found} | describe("safetensors"))


def content_of(name: str) -> dict[str, Any]:
    """What a run of 100 epochs saves: weights, both slots of AdamW, its history."""
    model = build_model(name, num_classes=10, weights="none")
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    row = {f"val_{number}": 1 / (3 + number) for number in range(18)}
    history = json.dumps([row] * 100)
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": {"rows": history},
        "trainer": {"iteration": 100, "epoch_length": 10, "max_epochs": 10}, "format_version": 2,
    }  # fmt: skip


def measure(content: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Medians of interleaved rounds, and the ratios of the same round."""
    with tempfile.TemporaryDirectory() as folder:
        ours, torchs = Path(folder, "ours"), Path(folder, "torch")
        torchs.mkdir()
        seconds: dict[str, list[float]] = {name: [] for name in ("write", "write_torch", "read", "read_torch")}
        for _ in range(rounds):
            seconds["write"].append(timed(lambda: CheckpointWriter(ours, keep=1)(content, "step_1")))
            seconds["write_torch"].append(timed(lambda: write_torch(content, torchs)))
            mine, theirs = checkpoints(ours, "step")[0], next(torchs.glob("*.pt"))
            seconds["read"].append(timed(partial(read_checkpoint, mine)))
            seconds["read_torch"].append(timed(partial(read_torch, theirs)))
        sizes = {"bytes": mine.stat().st_size, "bytes_torch": theirs.stat().st_size}
    found: dict[str, Any] = {name: round(1000 * median(times), 2) for name, times in seconds.items()}
    for name in ("write", "read"):
        ratios = sorted(a / b for a, b in zip(seconds[name], seconds[f"{name}_torch"], strict=True))
        found[f"{name}_ratio"] = [round(value, 3) for value in (ratios[0], median(ratios), ratios[-1])]
    return found | sizes | {"bytes_ratio": round(sizes["bytes"] / sizes["bytes_torch"], 4)}


def write_torch(content: dict[str, Any], folder: Path) -> None:
    """As checkpoints were written before format 2."""
    aside = folder / "aside"
    with open(aside, "wb") as file:
        torch.save(content, file)
    put(aside, folder / f"step_1_{digest_of(aside)}.pt")


def read_torch(path: Path) -> Any:
    assert digest_of(path) in path.name
    return torch.load(path, map_location="cpu", weights_only=True)


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:8]


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
