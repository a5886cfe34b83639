"""The plan of a comparison, and the request from which it is made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from comparison.shared_split import SharedSplit
from datasets.open import OpenedImages
from trainers.budget.pace import Pace
from trainers.config import RunConfig
from trainers.multirun.sharing import Sharing
from trainers.options import defaults

Cell = tuple[int, int]
"""Places of a label budget and of a model in the plan."""


@dataclass(frozen=True)
class Request:
    """A request for a comparison. `arms` and `base` hold all options of a run."""

    base: RunConfig
    arms: tuple[RunConfig, ...]
    seeds: int = 3
    labels: tuple[int | None, ...] = (None,)
    """Labels per class of each label budget; None: all training images."""
    images_seen: tuple[int, ...] = ()
    """Training images that every run sees; one number, or one for each label budget."""
    tune_lr: Literal["auto", "on", "off"] | tuple[float, ...] = "auto"
    """Whether each model tries several learning rates, or the rates to try."""
    minutes: float | None = None
    """Time for all runs together, which sets their epochs."""
    optional: int = 0
    """Number of the last models that are left out where `minutes` are few."""


@dataclass(frozen=True)
class PlannedArm:
    """One model: all of its options but seed, budget and tuned learning rate."""

    name: str
    slug: str
    """The name as a part of a folder's name."""
    config: RunConfig
    """Options as they were given."""
    resolved: RunConfig
    """Options with every default filled in, as in a run of its own."""
    parameters: int
    pace: Pace | None
    """None: not measured, as the runs compute elsewhere, or the comparison continues as it was planned."""

    @property
    def keeps_features(self) -> bool:
        return self.resolved.train.cache_features == "on"

    @property
    def start_head(self) -> str:
        return str(self.resolved.train.start_head)


@dataclass(frozen=True)
class ComparisonPlan:
    """A request with everything decided: split, models, budgets, rates, folder."""

    request: Request
    opened: OpenedImages
    split: SharedSplit
    arms: tuple[PlannedArm, ...]
    train_images: tuple[int, ...]
    """Training images of each label budget."""
    usual_epochs: tuple[float, ...]
    """Epochs of each label budget where nothing but the images decides."""
    epochs: tuple[tuple[float, ...], ...]
    """Epochs of each model under each label budget: all the same, or with `--minutes` those of equal time."""
    number_of_seeds: int
    select: str
    sharing: Sharing
    slurm: dict[str, str] | None
    """Options of the jobs that train; None: this machine does."""
    seen: Sequence[str]
    """Lines about test images that a model's weights were trained on."""
    folder: Path
    continued: bool
    """The folder is that of the same comparison, which was stopped."""
    until: float | None
    """Second of `time.monotonic` at which the last run is to end; None without minutes."""
    grid: tuple[float, ...] = ()
    """Learning rates that each model tries; none: they are not tuned."""
    why_not_tuned: str = ""
    seconds: tuple[float, ...] | None = None
    """Expected seconds of each run, in their order; None: not measured."""
    given_up: tuple[str, ...] = ()
    """What `--minutes` leave no time for."""
    minutes_for_all: int = 0
    """Minutes that leave time for all of it; 0: unknown."""

    @property
    def seeds(self) -> range:
        return range(self.request.base.train.seed, self.request.base.train.seed + self.number_of_seeds)

    @property
    def split_file(self) -> Path:
        return self.folder / "split.csv"

    @property
    def cells(self) -> list[Cell]:
        return [(place, number) for place in range(len(self.request.labels)) for number in range(len(self.arms))]

    @property
    def trained(self) -> list[Cell]:
        """List the cells whose runs take steps; others fit a head."""
        return [cell for cell in self.cells if self.arms[cell[1]].start_head != "fit"]

    @property
    def searched(self) -> list[Cell]:
        """List the cells that try several learning rates."""
        return [cell for cell in self.cells if len(self.rates(self.arms[cell[1]])) > 1]

    @property
    def untuned(self) -> list[Cell]:
        """List the cells of one learning rate, fitted heads first: no deadline can shorten them."""
        return sorted({*self.cells} - {*self.searched}, key=lambda cell: (cell in self.trained, cell))

    @property
    def order(self) -> list[Cell]:
        """List the cell of each run, in the order in which they start.

        Every rate at the first seed comes before the other seeds, which need the best one."""
        others = self.number_of_seeds - 1
        return [*self.untuned * (1 + others), *self.searched * len(self.grid), *self.searched * others]

    def passes(self, cell: Cell) -> float:
        return self.epochs[cell[0]][cell[1]]

    def with_first(self, arms: int) -> Self:
        """Return the plan with the first models alone, not measured."""
        epochs = tuple(each[:arms] for each in self.epochs)
        return replace(self, arms=self.arms[:arms], epochs=epochs, seconds=None)

    def rates(self, arm: PlannedArm) -> tuple[float | None, ...]:
        """Return the rates that a model tries; None is the default.

        A rate that was given is not tuned."""
        lr = arm.config.train.lr
        return (lr,) if lr is not None or not self.grid or arm.start_head == "fit" else self.grid

    def runs_of(self, arm: PlannedArm) -> int:
        """Count a model's runs under one label budget.

        They are every rate at the first seed, one rate at the others."""
        return len(self.rates(arm)) + len(self.seeds) - 1

    @property
    def number_of_runs(self) -> int:
        return sum(map(self.runs_of, self.arms)) * len(self.request.labels)

    @property
    def where(self) -> str:
        """Say where the runs compute."""
        device = self.request.base.train.device
        return "in Slurm's queue" if self.slurm is not None else f"on {defaults.resolve_device(device)}"

    @property
    def all_seconds(self) -> float:
        """Return the expected seconds of all runs, one after the other; 0: not measured."""
        return sum(self.seconds or ())

    @property
    def settled(self) -> dict[str, Any]:
        """Return what a comparison continues with: `--minutes`, or another machine, would find other values."""
        names = ("epochs", "grid", "why_not_tuned", "seconds", "number_of_seeds", "given_up")
        known = {name: getattr(self, name) for name in names}
        return known | {"threads": self.sharing.threads, "number_of_arms": len(self.arms)}
