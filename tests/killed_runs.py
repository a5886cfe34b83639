"""Runs that are stopped: a demanding one, ways to stop it, and what must come out unharmed."""

import csv
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events
from safetensors.torch import save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.engine import handlers
from trainers.run import Handler
from trainers.storage.checkpoint_file import read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json, write_json
from vit.config import ModelConfig
from vit.factory import build_model

TIMING_FIELDS = ("seconds", "images_per_s", "data_wait", "memory_mb")
"""The columns of metrics.csv that are not a function of config and data."""

ROOT = Path(__file__).resolve().parent.parent
FEW: Any = {"source": "digits", "val_fraction": 0.03, "test_fraction": 0.03}
"""54 digits each for validation and test, where else most of a tiny run's time would go."""


class Crash(BaseException):
    """Stands for a kill: nothing in the application catches it, nothing is saved on its way."""


def crash() -> None:
    raise Crash


def signal_myself() -> None:
    signal.raise_signal(signal.SIGTERM)


def crash_after(step: int) -> Handler:
    """For `train(config, handlers=[...])`: die when all work of the `step`-th step is done."""
    return lambda trainer: trainer.add_event_handler(Events.ITERATION_COMPLETED(once=step), crash)


def signal_in(step: int) -> Handler:
    """For `train(config, handlers=[...])`: receive a SIGTERM in the `step`-th step."""
    return lambda trainer: trainer.add_event_handler(Events.ITERATION_STARTED(once=step), signal_myself)


@contextmanager
def stopped_in_validation(step: int, stop: Callable[[], object]) -> Iterator[None]:
    """A run started inside has `stop` called in the validation that follows its `step`-th step."""
    attach_validation = handlers.attach_validation

    def attach_both(trainer: Engine, evaluator: Engine, *rest: Any, **options: Any) -> None:
        attach_validation(trainer, evaluator, *rest, **options)

        @evaluator.on(Events.ITERATION_COMPLETED)
        def stop_on_time() -> None:
            if trainer.state.iteration == step:
                stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handlers, "attach_validation", attach_both)
        yield


def demanding_config(folder: Path, *, workers: int = 0, tb: str = "scalars") -> RunConfig:
    """A short run with everything on that draws random numbers or carries state: 3 epochs of 4 steps, the last of which
    is shorter than the others.

    It starts from weights in a file: random ones that a resumed run forgot would come back with the seed.
    """
    return RunConfig(
        model=ModelConfig(
            name="vit_micro_2",
            image_size=4,
            weights=str(weights_of_another_seed(folder)),
            dropout=0.1,
            attention_dropout=0.1,
            stochastic_depth=0.1,
        ),
        data=DataConfig(**FEW, labels_per_class=7, augment="light", batch_size=18, workers=workers),
        train=TrainConfig(
            epochs=3,
            mixup=0.2,
            cutmix=1.0,
            accumulate=2,
            ema_decay=0.9,
            save_every=2,
            log_every=1,
            patience=50,
            device="cpu",
        ),
        output=OutputConfig(output_dir=folder, run_name="r", tb=tb),
    )


def weights_of_another_seed(folder: Path) -> Path:
    path = folder / "weights.safetensors"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(123)
            save_file(build_model("vit_micro_2", num_classes=3, weights="none", image_size=4).state_dict(), path)
    return path


def rows_of(table: Path) -> list[dict[str, str]]:
    """The rows of a table, but for times and memory."""
    with open(table, newline="", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in csv.DictReader(file)]


def bits(tree: Any) -> Any:
    """What a checkpoint holds, with the bytes of each tensor."""
    if isinstance(tree, torch.Tensor):
        return tree.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, list | tuple) else tree


def run_content(run_dir: Path) -> dict[str, Any]:
    """All that must not depend on how often a run was killed. A conclusion that was killed is logged once more."""
    final, best = (read_checkpoint(RunFolder(run_dir).checkpoints(kind)[0]) for kind in ("step", "best"))
    scalars = {}
    for split in ("train", "val"):
        events = EventAccumulator(str(run_dir / "tb" / split), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            if not tag.endswith(("images_per_s", "data_wait", "10_result/seconds")):
                scalars[split, tag] = sorted({(event.step, event.value) for event in events.Scalars(tag)})
    return {
        **{name: bits(final[name]) for name in ("model", "optimizer", "ema", "early_stopping") if name in final},
        "history": rows_of(run_dir / "metrics.csv"),
        "best": [best["epoch"], bits(best["model"])],
        "tensorboard": scalars,
    }


def assert_same_content(expected: dict[str, Any], content: dict[str, Any]) -> None:
    """Names what differs: the values themselves are long."""
    assert not [name for name in expected if expected[name] != content[name]]


def set_workers(run_dir: Path, workers: int) -> None:
    """The number of loader processes may change between two lives of a run: it must not matter."""
    values = read_json(run_dir / "config.json")
    values["data"]["workers"] = workers
    write_json(run_dir / "config.json", values)
