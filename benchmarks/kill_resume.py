"""Kill a run again and again, in every phase of its life, and hold what it ends with against an unharmed run.

    python -m benchmarks.kill_resume [--kills 50]

A child process trains or resumes and kills itself with SIGKILL in a chosen phase: in a step, in validation, while a
checkpoint is written, around its rename, around the pruning of old ones. Workers 0 and 2 take turns. When a run has
survived to its end, its weights, optimizer, averages, history, best checkpoint, TensorBoard scalars and pictures are
compared with those of a run that was never killed; MixUp, CutMix, augmentation, dropout, stochastic depth and EMA are
on.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.environment import describe, write_result

PHASES = ("step", "validation", "save", "rename", "prune")


def demanding_config(folder: Path, *, workers: int) -> Any:
    """A short run with everything on that draws random numbers or carries state.

    It starts from pretrained weights: random ones that a resumed run forgot would come back with the seed.
    """
    from datasets.config import DataConfig
    from trainers.config import OutputConfig, RunConfig, TrainConfig
    from vit.config import ModelConfig

    return RunConfig(
        model=ModelConfig(
            name="vit_nano_8", weights="fashion_mnist", dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1
        ),
        data=DataConfig(source="digits", labels_per_class=25, augment="light", batch_size=48, workers=workers),
        train=TrainConfig(
            epochs=3,
            mixup=0.2,
            cutmix=1.0,
            accumulate=2,
            ema_decay=0.9,
            save_every=2,
            log_every=2,
            patience=50,
            device="cpu",
        ),
        output=OutputConfig(output_dir=folder, run_name="r"),
    )


def run_content(run_dir: Path) -> dict[str, Any]:
    """All that must not depend on how often a run was killed."""
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from trainers.checkpoint import checkpoints, read_checkpoint
    from trainers.handlers import TIMING_FIELDS

    final, best = (read_checkpoint(checkpoints(run_dir / "checkpoints", kind)[0]) for kind in ("step", "best"))

    def tensors(tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return tree.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        if isinstance(tree, dict):
            return {key: tensors(value) for key, value in tree.items()}
        return [tensors(value) for value in tree] if isinstance(tree, list | tuple) else tree

    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        history = [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in csv.DictReader(file)]
    scalars = {}
    for split in ("train", "val"):
        events = EventAccumulator(str(run_dir / "tb" / split), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            if not tag.startswith("speed/"):
                scalars[split, tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    root = EventAccumulator(str(run_dir / "tb"), size_guidance={"images": 0}).Reload()
    pictures = {
        tag: [(event.step, event.encoded_image_string) for event in root.Images(tag)] for tag in root.Tags()["images"]
    }
    return {
        **{name: tensors(final[name]) for name in ("model", "optimizer", "ema", "early_stopping")},
        "history": history,
        "best": [best["epoch"], tensors(best["model"])],
        "tensorboard": scalars,
        "pictures": pictures,
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


def arm(phase: str, occurrence: int) -> None:
    """Make this process kill itself the `occurrence`-th time it comes to `phase`."""
    from trainers import checkpoint, engines, metrics

    count = 0

    def die_on_time() -> None:
        nonlocal count
        count += 1
        if count == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(owner: Any, name: str, *, only: Any = lambda *_: True) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if only(*args):
                die_on_time()
            result = original(*args, **kwargs)
            if only(*args):
                die_on_time()
            return result

        setattr(owner, name, wrapped)

    if phase == "step":
        before(engines, "gradient_norm")  # between the backward pass and the optimizer's step
    elif phase == "validation":
        before(metrics.ExpectedCalibrationError, "update")
    elif phase == "save":
        before(checkpoint._HashingFile, "write")
    elif phase == "rename":
        before(checkpoint.os, "replace", only=lambda source, *_: str(source).endswith(".tmp") and "step" in str(source))
    elif phase == "prune":
        before(checkpoint.CheckpointWriter, "prune")


def child(folder: Path, phase: str, occurrence: int, workers: int) -> None:
    import torch

    from trainers.resume import resume
    from trainers.run import train

    torch.set_num_threads(1)
    if phase != "none":
        arm(phase, occurrence)
    run_dir = folder / "digits" / "r"
    if not run_dir.exists():
        train(demanding_config(folder, workers=workers))
        return
    set_workers(run_dir, workers)
    resume(run_dir)


def set_workers(run_dir: Path, workers: int) -> None:
    """The number of loader processes may change between two lives of a run: it must not matter."""
    from trainers.run_directory import read_json, write_json

    values = read_json(run_dir / "config.json")
    values["data"]["workers"] = workers
    write_json(run_dir / "config.json", values)


def launch(folder: Path, phase: str, occurrence: int, workers: int) -> int:
    words = ["--child", str(folder), "--phase", phase, "--occurrence", str(occurrence), "--workers", str(workers)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_resume", *words], capture_output=True, text=True, timeout=300
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the child ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--phase", choices=(*PHASES, "none"), default="none")
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.phase, options.occurrence, options.workers)
        return
    dice = random.Random(0)
    hits = dict.fromkeys(PHASES, 0)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        launch(Path(name) / "whole", "none", 1, 0)
        whole = run_content(Path(name) / "whole" / "digits" / "r")
        while sum(hits.values()) < options.kills:
            folder, kills, workers = Path(name) / f"run_{len(runs)}", [], set()
            while True:
                enough = sum(hits.values()) >= options.kills or len(kills) >= 8  # then let the run live to its end
                phase = min(PHASES, key=lambda p: (hits[p], dice.random()))
                most = {"step": 12, "validation": 20, "save": 60, "rename": 8, "prune": 10}[phase]
                count = (len(kills) + len(runs)) % 2 * 2
                workers.add(count)
                if launch(folder, "none" if enough else phase, dice.randint(1, most), count) == 0:
                    break
                hits[phase] += 1
                kills.append(phase)
            wrong = differences(whole, run_content(folder / "digits" / "r"))
            runs.append({"kills": kills, "workers": sorted(workers), "differences": wrong})
            print(f"run {len(runs)}: killed in {', '.join(kills) or 'nothing'}: {wrong or 'identical'}", flush=True)
    write_result(
        "kill_resume",
        {
            "kills": sum(hits.values()),
            "kills_by_phase": hits,
            "runs": len(runs),
            "runs_identical_to_the_unharmed_one": sum(not run["differences"] for run in runs),
            "details": runs,
            **describe(),
        },
    )


if __name__ == "__main__":
    main()
