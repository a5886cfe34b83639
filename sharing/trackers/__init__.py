"""The trackers that runs can be shared with: a row and a short file each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sharing.errors import ShareError
from sharing.replay import Replay


class Tracker(Protocol):
    """A place that shows runs."""

    def has(self, replay: Replay) -> bool:
        """Return whether this very content is there, whole."""

    def put(self, replay: Replay) -> None:
        """Write a run, in the place of what is there of it: an older state, or what a killed command left."""


@dataclass(frozen=True)
class Row:
    """One kind of tracker."""

    package: str
    """The name to install, and to import."""
    open: Callable[[], Tracker]
    """Connects to the tracker that the package's own variables name."""


def open_mlflow() -> Tracker:
    from sharing.trackers.in_mlflow import MLflow

    return MLflow()


def open_wandb() -> Tracker:
    from sharing.trackers.in_wandb import WeightsAndBiases

    return WeightsAndBiases()


def open_trackio() -> Tracker:
    from sharing.trackers.in_trackio import Trackio

    return Trackio()


def open_clearml() -> Tracker:
    from sharing.trackers.in_clearml import ClearML

    return ClearML()


TRACKERS = {
    "mlflow": Row("mlflow", open_mlflow),
    "wandb": Row("wandb", open_wandb),
    "trackio": Row("trackio", open_trackio),
    "clearml": Row("clearml", open_clearml),
}


def open_tracker(name: str) -> Tracker:
    """The tracker of this name. Raises ShareError: its package is not installed."""
    row = TRACKERS[name]
    try:
        return row.open()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != row.package:
            raise
        raise ShareError(f"{row.package} is not installed: pip install {row.package}") from None
