"""`compare`: scratch against pretrained, or any other arms, under one protocol; or runs that are there already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from commands import arguments
from commands.arguments import SeveralRuns, UsageError, flags, sections
from commands.first_screen import FirstScreen
from commands.json_output import JsonOption, json_document
from common.options import Shared, flag, require, require_counts, require_finite
from common.shell import command
from common.text import pluralise
from datasets.config import DATASETS, DataConfig
from trainers.config import RunConfig, TrainConfig, run_options
from vit.config import ModelConfig

if TYPE_CHECKING:
    from comparison.compare import ComparisonReport
    from comparison.plan import Request

ARM_OPTIONS = {*flags(ModelConfig), *flags(TrainConfig), "--augment", "--batch-size"}
ARM_OPTIONS -= {"--model", *(option.flag for option in run_options(Shared))}  # an arm begins with its model
"""Options that may differ between arms; everything else is the same for all, or the result would mean nothing."""

STORY = (
    "--data", "digits", "--labels-per-class", "10", "all", "--images-seen", "4000", "25000", "--tune-lr", "off",
    "--seeds", "3",
)  # fmt: skip
"""Options of the bare `python main.py`: in about two minutes on two cores."""


@dataclass(frozen=True)
class SharedData(DataConfig):
    """Options of the images that all arms share; `--labels-per-class` is an option of the comparison itself."""

    labels_per_class: Annotated[int | None, tyro.conf.Fixed, tyro.conf.arg(name="fixed-labels")] = None


@dataclass(frozen=True)
class Options(JsonOption, SeveralRuns, RunConfig, FirstScreen):
    """Train several models on the same split, with the same budget and several seeds each: which is better, by how
    much, and how sure is that?

    Finished run directories are compared as they are. A stopped comparison continues when the command is repeated.
    """

    FIRST = (
        "data", "arms", "labels-per-class", "seeds", "minutes", "epochs", "images-seen", "tune-lr",
        "image-size", "group", "jobs", "device", "output-dir", "run-name",
    )  # fmt: skip
    EXAMPLES = (
        ("--data path/to/images", "A small ViT from scratch against the same one pretrained."),
        ("--data path/to/images --arms resnet18 vit_b_16", "Two models; with --minutes 60, in an hour."),
        ("runs/photos/resnet18_s0 runs/photos/vit_b_16_s0", "Runs that are finished."),
    )
    PAGE = "docs/compare.md"

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Finished run directories to compare, instead of training new ones."""
    arms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ARM")] = ()
    """Models to compare (the arms), each as MODEL[,option=value...], such as "vit_b_16,weights=none,trainable=last:4".
    Default: one architecture from scratch and pretrained."""
    seeds: int = 3
    """Runs per arm, with --seed and the numbers that follow it."""
    data: SharedData = field(default_factory=SharedData)
    labels: Annotated[tuple[str, ...], tyro.conf.arg(name="labels-per-class", metavar="N|all")] = ()
    """Labelled training images per class; of several numbers each is compared. all: every training image."""
    minutes: float | None = None
    """Time budget in minutes for all runs together. Measures the speed of each arm first, then sets the epochs."""
    images_seen: tuple[int, ...] = ()
    """Training images that every run sees, which sets its epochs; or such a number for each of --labels-per-class.
    Default: what the arm that takes most of them asks for."""
    tune_lr: Literal["auto", "on", "off"] = "auto"
    """Choose each arm's learning rate on the validation images, from the same grid. auto: if the time allows it."""
    lr_grid: tuple[float, ...] | None = None
    """Learning rates of that grid. Default: three, by the size of the models."""

    plan_only: bool = False
    """Train nothing: write a config for each run, and a list of commands for any scheduler. When they are done, the
    same command without this option collects the runs; with it, it lists those that are left."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(self)
        if self.plan_only and (self.minutes is not None or self.on == "slurm"):
            raise UsageError("--plan-only leaves training to others: leave out --minutes and --on slurm")
        require_counts(self, "seeds")
        require(self, "be at least 1", lambda numbers: min(numbers, default=1) >= 1, "images_seen")
        wanted = "be numbers of training labels per class, or all"
        require(self, wanted, lambda words: all(w == "all" or (w.isdecimal() and int(w)) for w in words), "labels")
        if self.lr_grid is not None and (not self.lr_grid or min(self.lr_grid) <= 0):
            raise UsageError(f"lr_grid={self.lr_grid} must hold rates greater than 0")
        require(self, "be greater than 0", lambda time: time > 0, "minutes")
        if self.minutes is not None and (self.images_seen, self.train.epochs) != ((), None):
            raise UsageError("minutes sets the epochs: leave out --epochs and --images-seen, or --minutes")
        if self.runs and self.arms:
            raise UsageError("runs and --arms: compare runs that are there, or train new ones, not both")
        if images := next(filter(names_images, self.runs), None):
            raise UsageError(f"{images} is not a run directory; to train models on images: compare --data {images}")
        if len(self.runs) == 1:
            raise UsageError(f"one run, {self.runs[0]}: there is nothing to compare it with")
        if self.runs and (idle := ", ".join(without_effect(self))):
            raise UsageError(f"runs that are there are compared as they are: leave out {idle}")


def without_effect(options: Options) -> Iterator[str]:
    """The options that differ from their default and mean nothing for runs that are there, as flags."""
    heeded = {"runs", "output_dir", "run_name", "json"}
    default = Options()
    pairs = [(options, default), *((getattr(options, part), getattr(default, part)) for part in sections(options))]
    for given, usual in pairs:
        for each in fields(given):
            name, value = each.name, getattr(given, each.name)
            if name not in heeded and not is_dataclass(value) and value != getattr(usual, name):
                yield f"--{flag(type(given), name)}"


def names_images(word: str) -> bool:
    """Return whether a word in the place of a run names a built-in set, or is a path to something that holds no
    runs."""
    path = Path(word)
    holds_runs = path.is_dir() and any(next(path.glob(below), None) for below in ("config.json", "*/config.json"))
    return word in DATASETS or (path.exists() and not holds_runs)


def main(options: Options) -> int:
    with json_document(options) as document:
        document.update(planned(options) if options.plan_only else as_json(compared(options)))
    return 0


def planned(options: Options) -> dict[str, Any]:
    """Write the commands of a comparison, and say how to go on."""
    from comparison.compare import plan_arms

    file, commands = plan_arms(request_of(options))
    if commands:
        print(f"\n{'commands':>9}  {file}: {pluralise(len(commands), 'run')}, to start in this directory, in any order")
        print(f"{'then':>9}  the same command again: it lists what is left; without --plan-only it makes the report")
    else:
        print(f"\n{'done':>9}  every run is finished: the same command without --plan-only makes the report")
    return {"folder": file.parent, "commands": commands}


def compared(options: Options) -> ComparisonReport:
    """Compare the runs that are named, or train the arms."""
    from comparison.compare import compare_arms, compare_runs
    from trainers.options.defaults import SMALL_IMAGES

    if options.runs:
        return compare_runs(options.runs, options.output)
    report = compare_arms(request_of(options), **options.placed)
    if not options.arms and options.data.source in SMALL_IMAGES:
        print(f"{'next':>9}  {command('compare', '--data', 'FOLDER')}, with your own images in a folder per class")
    return report


def as_json(report: ComparisonReport) -> dict[str, Any]:
    """Build what `--json` prints: docs/use-the-result.md lists the fields."""
    from comparison.table import rows
    from comparison.verdict import headline, pair_sentence

    comparison, results, folder, kept = report
    runs = [[run.run_dir for run in row.arm.runs] for result in results for row in result.arms]
    arms = [row | {"runs": folders} for row, folders in zip(rows(comparison, results), runs, strict=True)]
    pairs = [
        {
            "labels_per_class": result.condition.labels_per_class,
            "first": pair.first.name,
            "second": pair.second.name,
            **dict(zip(("low", "difference", "high"), pair.interval, strict=True)),
            "p": pair.difference.p,
            "p_holm": pair.adjusted_p,
            "verdict": pair.mark,
            "sentence": pair_sentence(pair, scored=comparison.scored),
        }
        for result in results
        for pair in result.pairs
    ]
    return {
        "data": comparison.data,
        "use": [headline(comparison, result) for result in results],
        "arms": arms,
        "pairs": pairs,
        "warnings": comparison.warnings,
        "protocol": comparison.protocol,
        "folder": folder,
        "kept": kept,
    }


def request_of(options: Options) -> Request:
    from comparison.plan import Request, default_arms

    data = DataConfig(**{each.name: getattr(options.data, each.name) for each in fields(DataConfig)})
    base = replace(RunConfig(**sections(options)), data=data)
    if base.model.name != "auto":
        raise UsageError(f"--model {base.model.name}: compare takes its models from --arms")
    arms = tuple(parse_arm(text, base) for text in options.arms) or default_arms(base)
    labels = (None if word == "all" else int(word) for word in options.labels)
    return Request(
        base=base,
        arms=arms,
        seeds=options.seeds,
        labels=tuple(dict.fromkeys(labels)) or (None,),
        images_seen=options.images_seen,
        tune_lr=options.tune_lr,
        lr_grid=options.lr_grid,
        minutes=options.minutes,
    )


def parse_arm(text: str, base: RunConfig) -> RunConfig:
    """The options of one arm: `base` with what `text` changes."""
    model, *changes = [part.strip() for part in text.split(",")]
    words = ["--model", model]
    for change in changes:
        key, equals, value = change.partition("=")
        option = f"--{key.replace('_', '-')}"
        if not equals or option not in ARM_OPTIONS:
            known = ", ".join(sorted(name.removeprefix("--") for name in ARM_OPTIONS))
            raise UsageError(f"arm {text!r}: {change!r} is not option=value with an option of {known}")
        words += [option, value]
    try:
        config: RunConfig = arguments.parse(RunConfig, words, prog="arm", default=base)
    except UsageError as error:
        raise UsageError(f"arm {text!r}: {error}") from None
    return config
