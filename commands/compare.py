"""`compare`: scratch against pretrained, or any other arms, under one protocol; or runs that are there already."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from commands import arguments
from commands.arguments import UsageError, flags, sections
from trainers.config import RunConfig, TrainConfig
from vit.config import ModelConfig

if TYPE_CHECKING:
    from comparison.plan import Request
    from comparison.runs import Comparison
    from comparison.train_arms import Finished

ARM_OPTIONS = {*flags(ModelConfig), *flags(TrainConfig), "--augment", "--batch-size"} - {
    "--seed", "--epochs", "--device", "--max-minutes", "--patience", "--select", "--loop", "--model"
}  # fmt: skip
"""What may differ between arms; everything else is the same for all, or the result would mean nothing."""

STORY = (
    "--data", "digits", "--labels", "10", "all", "--epochs", "20", "--tune-lr", "off", "--seeds", "3",
)  # fmt: skip
"""What `python main.py` alone compares: in about two minutes on two cores."""

BIGGER = ("compare", "--data", "hymenoptera", "--epochs", "10", "--tune-lr", "off")
"""The same story on photographs and with ImageNet's weights."""


@dataclass(frozen=True)
class Options(RunConfig):
    """Train several models on the same split, with the same budget, several seeds each, and say who wins, by how much,
    how sure that is and what it cost. Without --arms: one architecture from scratch and pretrained. With run
    directories instead: compare these, untrained and unchanged. A stopped comparison goes on when the command is
    repeated.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Finished run directories to compare, in place of training new ones."""
    arms: tuple[str, ...] = ()
    """Models to compare, each as MODEL[,option=value...]: "vit_b_16,weights=none,trainable=last:4"."""
    seeds: int = 3
    """Runs per arm, with --seed and the numbers that follow it."""
    labels: tuple[str, ...] = ()
    """Compare at each of these numbers of training labels per class; all: every training image."""
    images_seen: int | None = None
    """Training images every run sees, which sets its epochs. Default: what the arm that takes most of them asks for."""
    tune_lr: Literal["auto", "on", "off"] = "auto"
    """Choose each arm's learning rate on the validation images, from the same grid. auto: where it fits the time."""
    lr_grid: tuple[float, ...] | None = None
    """The learning rates of that grid. Default: three, by the size of the models."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds} must be at least 1")
        if self.images_seen is not None and self.images_seen < 1:
            raise ValueError(f"images_seen={self.images_seen} must be at least 1")
        if self.lr_grid is not None and (not self.lr_grid or min(self.lr_grid) <= 0):
            raise ValueError(f"lr_grid={self.lr_grid} must hold rates greater than 0")
        if self.runs and self.arms:
            raise ValueError("runs and --arms: compare runs that are there, or train new ones, not both")
        if len(self.runs) == 1:
            raise ValueError(f"one run, {self.runs[0]}: there is nothing to compare it with")


def parse(argv: Sequence[str], prog: str) -> Options:
    options: Options = arguments.parse(Options, argv, prog=prog)
    return options


def main(options: Options) -> int:
    if options.runs:
        return compare_runs([Path(name) for name in options.runs], options)
    from comparison.train_arms import compare_arms, mark_finished
    from trainers.defaults import SMALL_IMAGES, resolve_device

    finished = compare_arms(request_of(options))
    show(comparison_of(finished, options), finished.folder)
    mark_finished(finished.folder)
    if not options.arms and options.data.source in SMALL_IMAGES:
        print_bigger_version(resolve_device(options.train.device))
    return 0


def request_of(options: Options) -> Request:
    from comparison.arms import default_arms
    from comparison.plan import Request

    base = RunConfig(**sections(options))
    if base.model.name != "auto":
        raise UsageError(f"--model {base.model.name}: compare takes its models from --arms")
    texts = options.arms or default_arms(base.data.source)
    labels = tuple(number_of_labels(word) for word in options.labels) or (base.data.labels_per_class,)
    return Request(
        base=base,
        arms=tuple(parse_arm(text, base) for text in texts),
        seeds=options.seeds,
        labels=labels,
        images_seen=options.images_seen,
        tune_lr=options.tune_lr,
        lr_grid=options.lr_grid,
    )


def number_of_labels(word: str) -> int | None:
    if word == "all":
        return None
    if not word.isdecimal() or int(word) < 1:
        raise UsageError(f"--labels {word}: give a number of training labels per class, or all")
    return int(word)


def parse_arm(text: str, base: RunConfig) -> RunConfig:
    """The options of one arm: `base` with what `text` changes.

    Raises:
        UsageError: an option that arms may not differ in, or a value that cannot be.
    """
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
    except (UsageError, ValueError) as error:
        raise UsageError(f"arm {text!r}: {error}") from None
    return config


def comparison_of(finished: Finished, options: Options) -> Comparison:
    from comparison.runs import Arm, Comparison, Condition, read_run, require_same_data

    conditions = []
    for labels in dict.fromkeys(one.labels for one in finished.trained):
        of_condition = [one for one in finished.trained if one.labels == labels]
        arms = tuple(
            Arm(one.arm.name, tuple(read_run(result.run_dir, split="test") for result in one.results))
            for one in of_condition
        )
        require_same_data([run for arm in arms for run in arm.runs])
        conditions.append(Condition(labels, arms))
    return Comparison(
        data=options.data.source,
        conditions=tuple(conditions),
        protocol=finished.protocol,
        warnings=finished.warnings,
        command=command(),
        tuning=tuple(row for one in finished.trained for row in one.tuning),
        scored=finished.scored,
    )


def compare_runs(folders: Sequence[Path], options: Options) -> int:
    """Compare finished runs. Where they have no test images, the weights of their last epochs are scored on val."""
    from comparison.plan import free_folder
    from comparison.runs import Comparison, Condition, group_into_arms, left_out, read_run, require_same_data
    from inference.evaluate import score_last_epoch
    from trainers.run_directory import find_run

    folders = [find_run(str(folder), options.output.output_dir) for folder in folders]
    for folder in folders:
        score_last_epoch(folder)
    runs = [read_run(folder) for folder in folders]
    require_same_data(runs)
    scored = {"test": "test images, once per run, with the weights of the best validation epoch"}
    what = scored.get(runs[0].scored, "validation images with the weights of the last epoch: there is no test split")
    protocol = (
        f"These runs were trained on their own; nothing was tuned here. Scored on the {what}.",
        "They saw the same training, validation and test images; whether their budgets were equal, the table tells.",
    )
    data = runs[0].config["data"]["source"]
    arms = group_into_arms(runs)
    comparison = Comparison(
        data=data,
        conditions=(Condition(runs[0].config["data"]["labels_per_class"], arms),),
        protocol=protocol,
        warnings=tuple(left_out(runs, arms)),
        command=command(),
    )
    show(comparison, free_folder(options.output, data))
    return 0


def command() -> str:
    return shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]])


def show(comparison: Comparison, folder: Path) -> None:
    from comparison.report import write_report
    from comparison.results import analyse
    from comparison.table import terminal_table

    results = analyse(comparison)
    write_report(comparison, results, folder)
    print(f"\n{terminal_table(comparison, results)}\n")
    print(f"{'report':>9}  {folder / 'report.html'}")
    print(f"{'watch':>9}  tensorboard --logdir {folder.parent.parent}")


def print_bigger_version(device: str) -> None:
    """The same on photographs, with what it takes."""
    import torch

    from comparison.pace import training_flops_per_second
    from trainers.console import duration
    from trainers.defaults import computes_in_bf16

    # ViT-B/16 at 224 px: 35.1 GFLOPs forward, 3 times that a step; 244 images x 10 epochs x 3 seeds x 2 arms.
    dtype = torch.bfloat16 if computes_in_bf16(device) else torch.float32
    seconds = 3 * 35.1e9 * 244 * 10 * 3 * 2 / training_flops_per_second(torch.device(device), dtype)
    print(f"{'next':>9}  python main.py {shlex.join(BIGGER)}")
    print(f"{'':>9}  vit_b_16 from scratch and pretrained on ImageNet, 3 seeds each, about {duration(seconds)} on this")
    print(f"{'':>9}  machine; downloads 330 MB of weights and 47 MB of images")
