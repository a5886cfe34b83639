"""Send runs to an experiment tracker while they train, with Ignite's own loggers: `--tracker`."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers import clearml_logger, global_step_from_engine, mlflow_logger, wandb_logger

from common.errors import OptionError, first_line, import_optional
from datasets.config import data_name
from trainers.config import RunConfig, to_dict
from trainers.reporting import console
from trainers.reporting.tensorboard import scores, training_scores, utf8
from trainers.storage.run_folder import read_if_whole, write_json

FILE = "tracker.json"
"""File in a run with its id in the tracker, with which a resumed run continues there."""
MODULES = {"mlflow": mlflow_logger, "wandb": wandb_logger, "clearml": clearml_logger}

OFF = (
    "matplotlib", "tensorflow", "tensorboard", "pytorch", "xgboost", "scikit", "joblib", "fastai", "lightgbm", "hydra",
    "tfdefines", "megengine", "catboost", "gradio", "detect_repository",
)  # fmt: skip
"""Integrations that ClearML turns on by itself: weights, pictures, all TensorBoard data, and the state of the
repository, for which it may wait five minutes at the end of a run."""


def require(tracker: str) -> Any:
    """Import the package of a tracker. Raises MissingPackage: it is not installed."""
    return import_optional(tracker, f"--tracker {tracker} needs its package: pip install {tracker}")


def prepare_for_several(tracker: str) -> None:
    """Prepare a tracker for runs that several processes start at once.

    MLflow creates its local database at the first use, and two processes doing so at once break it. Raises
    MissingPackage: it is not installed. OptionError: it cannot be used with its settings.
    """
    package = require(tracker)
    try:
        if tracker == "mlflow":
            package.MlflowClient()
    except Exception as error:  # their exceptions have no common class
        raise OptionError(f"--tracker {tracker}: {first_line(error)}") from error


def opened_outside(tracker: str) -> bool:
    """Return whether the calling program has opened a run in the tracker."""
    package = require(tracker)
    if tracker == "mlflow":
        return package.active_run() is not None
    return (package.run if tracker == "wandb" else package.Task.current_task()) is not None


def open_logger(
    tracker: str, *, project: str, name: str, known: str | None, options: dict[str, str], outside: bool
) -> tuple[Any, str]:
    """Start a run in the tracker, or continue the `known` one.

    Return Ignite's logger and the run's id. `outside`: use the run that the calling program has opened.
    """
    run: dict[str, Any]
    if tracker == "wandb":
        if outside:
            logger = wandb_logger.WandBLogger(init=False)
            logger.config.update(options, allow_val_change=True)
            return logger, logger.run.id
        run = {"config": options} if known is None else {"id": known, "resume": "allow"}
        logger = wandb_logger.WandBLogger(project=os.environ.get("WANDB_PROJECT", project), name=name, **run)
        return logger, logger.run.id
    if tracker == "clearml":
        # 0: steps of a resumed run keep their numbers.
        run = {"reuse_last_task_id": False} if known is None else {"reuse_last_task_id": known, "continue_last_task": 0}
        run |= {"auto_connect_frameworks": dict.fromkeys(OFF, False), "auto_connect_arg_parser": False}
        logger = clearml_logger.ClearMLLogger(project_name=project, task_name=name, **run)
        if known is None:
            logger.get_task().connect(options)
        return logger, logger.get_task().id
    mlflow = require("mlflow")
    if not outside:
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment(project)
        mlflow.start_run(run_id=known, run_name=name)
    logger = mlflow_logger.MLflowLogger()
    if known is None:
        logger.log_params(options)
    return logger, logger.active_run.info.run_id


class Tracker:
    """Context manager of a run in a tracker.

    The first error of the tracker is printed, and training continues without it."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        """Open a run in the tracker.

        Raises MissingPackage: the tracker is not installed. OptionError: it cannot be used with its settings."""
        self.name, self.failed = str(config.output.tracker), False
        require(self.name)
        project = re.sub(r"[^\w.-]+", "_", data_name(config.data.source), flags=re.ASCII)
        options = {
            f"{section}.{option}": utf8(str(value))
            for section, values in to_dict(config).items()
            for option, value in values.items()
        }
        known = (read_if_whole(run_dir / FILE) or {}).get(self.name)
        name = utf8(config.output.run_name or run_dir.name)
        try:
            self.outside = opened_outside(self.name)
            self.logger, found = open_logger(
                self.name, project=project, name=name, known=known, options=options, outside=self.outside
            )
        except Exception as error:  # their exceptions have no common class
            anew = f"; without {run_dir / FILE} the run begins anew there" if known else ""
            raise OptionError(f"--tracker {self.name}: {first_line(error)}{anew}") from error
        write_json(run_dir / FILE, {self.name: found})

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.outside:  # whoever opened a run closes it
            return
        fail: dict[str, Callable[[], object]] = {  # Ignite's `close` says that a run has finished
            "mlflow": lambda: self.logger.end_run("FAILED"),
            "wandb": lambda: self.logger.finish(exit_code=1),
            "clearml": self.fail_clearml,
        }
        self.guard(self.logger.close if kind is None else fail[self.name])

    def fail_clearml(self) -> None:
        """Close the task, which completes it and lets the process open another, then mark it as failed."""
        self.logger.close()
        self.logger.get_task().mark_failed(force=True)

    def attach(self, trainer: Engine, evaluator: Engine, *, classes: int) -> None:
        """Send every validation, and the means over the training steps of each epoch."""
        validation = self.handler(trainer, "val", metric_names=[*scores(classes), "ece"])
        self.logger.attach(evaluator, validation, Events.COMPLETED)
        epoch = self.handler(trainer, "train", output_transform=lambda _: training_scores(trainer))
        self.logger.attach(trainer, epoch, Events.EPOCH_COMPLETED)

    def send_final(self, trainer: Engine, values: Mapping[str, float]) -> None:
        self.handler(trainer, "final", output_transform=lambda _: dict(values))(trainer, self.logger, Events.COMPLETED)

    def handler(self, trainer: Engine, tag: str, **what: Any) -> Callable[..., None]:
        """Return Ignite's OutputHandler of this tracker, guarded, with the trainer's step."""
        at = global_step_from_engine(trainer, Events.ITERATION_COMPLETED)
        output = MODULES[self.name].OutputHandler(tag, global_step_transform=at, **what)
        return lambda *given: None if self.failed else self.guard(lambda: output(*given))

    def guard(self, send: Callable[[], object]) -> None:
        """Call `send`; after its first error print a note and send no more."""
        try:
            send()
        except Exception as error:
            if not self.failed:
                console.say(f"{self.name} takes no more of this run: {first_line(error)}", label="note")
            self.failed = True
