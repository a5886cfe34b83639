"""What tests/test_trainers_distributed.py starts several times: one process of a run, told its place by environment
variables as torchrun tells it."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from ignite.engine import Events

import main
from common.errors import Interrupted, OptionError, TrainingError
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.system import distributed, process
from vit.config import ModelConfig

torch.set_num_threads(1)


def refuse(*_, **__) -> None:
    raise AssertionError("processes send each other tensors and JSON, and nothing that is pickled")


def config(folder: Path, *, data: str = "digits", **options) -> RunConfig:
    """A short run with everything on that draws random numbers."""
    return RunConfig(
        model=ModelConfig(name="vit_micro_2", dropout=0.2, attention_dropout=0.1, stochastic_depth=0.2),
        data=DataConfig(source=data, batch_size=48, workers=0, labels_per_class=15 if data == "digits" else None),
        train=TrainConfig(
            **{"epochs": 2, "mixup": 0.3, "cutmix": 0.5, "ema_decay": 0.9, "patience": 50, "device": "cpu"} | options
        ),
        output=OutputConfig(output_dir=folder, run_name="r", tb="scalars"),
    )


def slow_validation(trainer) -> None:
    """Where a test asks for it, each batch of a validation takes a second, and the first one says that it has come."""
    if "SLOW_VALIDATION" in os.environ:
        run = trainer.state.run
        begun = run.run_dir.parent / "validating"
        run.evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: (begun.touch(), time.sleep(1)))


def train_or_resume(folder: Path) -> int:
    from trainers.resume import resume
    from trainers.run import train

    run_dir = folder / "digits" / "r"
    try:
        (resume(run_dir) if run_dir.exists() else train(config(folder), handlers=[slow_validation]))
    except Interrupted as stop:
        return main.complain(str(stop), stop.exit_code)
    except (OptionError, TrainingError) as error:
        return main.complain(str(error), error.exit_code)
    return 0


if __name__ == "__main__":
    for name in dir(torch.distributed):
        if name.endswith(("_object", "_object_list")):
            setattr(torch.distributed, name, refuse)
    if "WAITS" in os.environ:
        distributed.STEP_TIMEOUT = timedelta(seconds=int(os.environ["WAITS"]))
    process.leave(main.main(sys.argv[2:]) if sys.argv[1] == "main" else train_or_resume(Path(sys.argv[1])))
