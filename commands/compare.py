"""Run `compare`: train models under one protocol, or compare finished runs."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from commands.arguments import DEFAULT_MINUTES, SeveralRuns, left_out, sections
from commands.output import JsonOption, json_document
from commands.parser import ManyOptions, UsageError, by_sections, filled, read, takes_several
from common.errors import OptionError
from common.options import (
    Arg,
    ForAllArms,
    NoWord,
    Option,
    Positional,
    Shared,
    Training,
    operand,
    require,
    require_counts,
    require_finite,
)
from common.shell import command
from common.tables import own_objects
from common.text import pluralise
from datasets.built_in import BUILT_IN, small_model
from trainers.config import RunConfig, load_config, run_options
from trainers.options.recipes import RECIPES
from trainers.reporting.console import say

if TYPE_CHECKING:
    from comparison.plan import Request
    from comparison.results import Comparison

ARM_OPTIONS = {
    option.flag.removeprefix("--"): option
    for option in run_options()
    if (option.section in ("model", "train") or Training in option.marks)
    and option.kind is not bool
    and not takes_several(option)
    and not {Shared, NoWord} & {*option.marks}
}
"""Options that may differ between models; everything else is the same for all."""

STORY = (
    "--data", "digits", "--labels-per-class", "10", "all", "--images-seen", "4000", "25000", "--tune-lr", "off",
    "--seeds", "3",
)  # fmt: skip
"""Options of the bare `python main.py`: in about two minutes on two cores."""


@dataclass(frozen=True)
class Options(JsonOption, SeveralRuns, RunConfig, ManyOptions):
    """Train several models under one protocol, and find out which is better.

    All share the split, the budget and the seeds. Finished run directories are compared as they are. A stopped
    comparison continues when the command is repeated.
    """

    FIRST = (
        "runs", "data", "arms", "labels-per-class", "seeds", "minutes", "epochs", "image-size", "tune-lr", "config",
        "output-dir",
    )  # fmt: skip
    EXAMPLES = (
        "--data path/to/images",
        "--data path/to/images --arms resnet18 vit_b_16",
        "runs/photos/resnet18_s0 runs/photos/vit_b_16_s0",
    )
    IN_FILES = frozenset(option.flag for option in {*run_options()} - {*run_options(ForAllArms)})
    OF_ARMS = frozenset(option.flag for option in ARM_OPTIONS.values())

    runs: Annotated[tuple[str, ...], Positional, Arg(metavar="RUN")] = ()
    """Compare finished run directories, and train nothing."""
    arms: Annotated[tuple[str, ...], Arg(metavar="NAME")] = ()
    """Compare these models, each as MODEL[,option=value...]. Such as "vit_b_16,weights=none,trainable=last:4". Default:
    one architecture from scratch and pretrained."""
    config: Path | None = None
    """Read shared options from a file, TOML or JSON. The command line overrides it."""
    seeds: int = 3
    """Train each model with this many seeds. The first is --seed."""
    labels: Annotated[tuple[str, ...], Arg(name="labels-per-class", metavar="N")] = ()
    """Train on so many images of each class. Of several numbers each is compared; all: every training image."""
    minutes: float | None = None
    """Plan all runs together for this many minutes. Runs that train have equal time. Default for a folder: 15, unless
    models or a length are named."""
    images_seen: tuple[int, ...] = ()
    """Show this many training images to every run. One number, or one for each of --labels-per-class; it sets the
    epochs. Default: the longest of the models' own."""
    tune_lr: Annotated[tuple[Literal["auto", "on", "off"] | float, ...], Arg(metavar="RATE")] = ("auto",)
    """Choose each model's learning rate on validation images. auto, on, off, or the rates to try; without, three by the
    size of the models. All models try the same. Default: auto, which tunes if the time allows it."""
    plan_only: bool = False
    """Write a config for each run and a list of commands, and train nothing. For any scheduler. When they are done, the
    same command without this option collects the runs; with it, it lists those that are left."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(self)
        if self.plan_only and (self.minutes is not None or self.on or self.jobs != "auto"):
            raise UsageError("--plan-only leaves training to others: leave out --minutes, --jobs and --on slurm")
        require_counts(self, "seeds")
        require(self, "be at least 1", lambda numbers: min(numbers, default=1) >= 1, "images_seen")
        wanted = "be numbers of training labels per class, or all"
        require(self, wanted, lambda words: all(w == "all" or (w.isdecimal() and int(w)) for w in words), "labels")
        one_word = len(self.tune_lr) == 1 and isinstance(self.tune_lr[0], str)
        if not one_word and not all(isinstance(rate, float) and rate > 0 for rate in self.tune_lr):
            raise UsageError(f"tune_lr={self.tune_lr} must be auto, on, off, or rates greater than 0")
        require(self, "be greater than 0", lambda time: time > 0, "minutes")
        if self.images_seen and self.train.epochs is not None:
            raise UsageError("--epochs and --images-seen both set the length of the training: give one of them")
        if self.minutes is not None and (self.images_seen, self.train.epochs) != ((), None):
            raise UsageError("minutes sets the epochs: leave out --epochs and --images-seen, or --minutes")
        if self.runs and self.arms:
            raise UsageError("runs and --arms: compare runs that are there, or train new ones, not both")
        if images := next(filter(names_images, self.runs), None):
            training = command("compare", "--data", operand(images))
            raise UsageError(f"{images} is not a run directory; to train models on images: {training}")
        if len(self.runs) == 1:
            raise UsageError(f"one run, {self.runs[0]}: there is nothing to compare it with")

    @classmethod
    def from_given(cls, given: Mapping[Option, Any]) -> Self:
        """Fill all: defaults < `--config FILE` < command line.

        Raises UsageError: options that finished runs leave without effect."""
        options = filled(cls, {option: value for option, value in given.items() if not option.section})
        heeded = {"--runs", "--output-dir", "--run-name", "--json"}
        if options.runs and (idle := [option.flag for option in given if option.flag not in heeded]):
            raise UsageError(f"runs that are there are compared as they are: leave out {', '.join(idle)}")
        if options.config is None:
            return filled(cls, given)
        if str(options.config) in RECIPES and not options.config.exists():
            raise UsageError(f"config {options.config}: a recipe is for `train`; compare reads a file")
        line = by_sections(given)
        base = load_config(options.config, line)
        for by in ("minutes", "images_seen"):
            if getattr(options, by) and "epochs" not in line.get("train", {}):
                base = left_out(base, ["epochs"], options.config, by=f"--{by.replace('_', '-')}")
        return filled(cls, given, cls(**sections(base)))


def names_images(word: str) -> bool:
    """Return whether a word in the place of a run names images.

    It is then a built-in set, or a path to something that holds no runs."""
    path = Path(word)
    holds_runs = path.is_dir() and any(next(path.glob(below), None) for below in ("config.json", "*/config.json"))
    return word in BUILT_IN or (path.exists() and not holds_runs)


def main(options: Options) -> int:
    with json_document(options) as document:
        if options.plan_only:
            document.update(write_plan(options))
        else:
            comparison = compared(options)
            document.update(as_json(comparison) if options.json else {})
    return 0


def write_plan(options: Options) -> dict[str, Any]:
    """Write the commands of a comparison, and say how to go on."""
    from comparison.compare import plan_arms

    file, commands = plan_arms(request_of(options))
    say()
    if commands:
        say(f"{file}: {pluralise(len(commands), 'run')}, to start in this directory, in any order", label="commands")
        say("the same command again: it lists what is left; without --plan-only it makes the report", label="then")
    else:
        say("every run is finished: the same command without --plan-only makes the report", label="done")
    return {"folder": file.parent, "commands": commands}


def compared(options: Options) -> Comparison:
    """Compare the runs that are named, or train the models."""
    began = time.monotonic()
    from comparison.compare import compare_arms, compare_runs

    if options.runs:
        return compare_runs(options.runs, options.output, elsewhere="--output-dir" in options.given)
    comparison = compare_arms(request_of(options), began=began, **options.placed)
    if not options.arms and small_model(options.data.source):
        say(command("compare", "--data", "path/to/images"), label="next")
    return comparison


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Build what `--json` prints: docs/use-the-result.md lists the fields."""
    from comparison.results import by_arm, rows_of
    from comparison.verdict import headline, pair_sentence

    arms, pairs = (own_objects(table).to_dict("records") for table in (comparison.table, comparison.pairs))
    runs = [[folder.path for folder in of_arm["folder"]] for of_arm in by_arm(comparison.runs)]
    shown = ("labels_per_class", "first", "second", "low", "difference", "high", "p", "p_holm", "verdict")
    sentences = map(pair_sentence, rows_of(comparison.pairs))
    return {
        "data": comparison.data,
        "use": [headline(condition) for condition in comparison.conditions],
        "arms": [arm | {"runs": folders} for arm, folders in zip(arms, runs, strict=True)],
        "pairs": [
            {name: pair[name] for name in shown} | {"sentence": sentence}
            for pair, sentence in zip(pairs, sentences, strict=True)
        ],
        "warnings": comparison.warnings,
        "protocol": comparison.protocol,
        "folder": comparison.folder,
        "kept": comparison.kept,
    }


def request_of(options: Options) -> Request:
    from comparison.plan import Request
    from comparison.planning import default_arms

    base = RunConfig(**sections(options))
    if base.model.name != "auto":
        raise UsageError(f"model {base.model.name}: compare takes its models from --arms")
    if base.model.weights is not None and not options.arms:
        raise UsageError(f"weights {base.model.weights}: they are for the models of --arms; name some")
    minutes = minutes_of(options)
    arms = tuple(parse_arm(text, base) for text in options.arms) or default_arms(base, in_minutes=minutes is not None)
    labels = (None if word == "all" else int(word) for word in options.labels)
    first, rates = options.tune_lr[0], tuple(rate for rate in options.tune_lr if isinstance(rate, float))
    return Request(
        base=base,
        arms=arms,
        seeds=options.seeds,
        labels=tuple(dict.fromkeys(labels)) or (None,),
        images_seen=options.images_seen,
        tune_lr=first if isinstance(first, str) else rates,
        minutes=minutes,
        optional=0 if options.arms else len(arms) - 2,
    )


def minutes_of(options: Options) -> float | None:
    """Return the minutes for all runs.

    For one's own images, where nothing else sets a length, they are those of `train`."""
    says_how = options.arms or options.images_seen or options.plan_only or options.on
    if options.minutes is not None or says_how or options.train.epochs is not None or options.data.source in BUILT_IN:
        return options.minutes
    say(f"Nothing says for how long: comparing in {DEFAULT_MINUTES:g} minutes (--minutes M changes it).\n")
    return DEFAULT_MINUTES


def parse_arm(text: str, base: RunConfig) -> RunConfig:
    """Return the options of one model: `base` with what `text` changes."""
    model, *changes = [part.strip() for part in re.split(r",(?=\s*[\w-]+\s*=)", text)]  # a path may have a comma
    given: dict[Option, Any] = {ARM_OPTIONS["model"]: model}
    try:
        for change in changes:
            key, equals, value = change.partition("=")
            option = ARM_OPTIONS.get(key.replace("_", "-"))
            if not equals or option is None:
                raise UsageError(f"{change!r} is not option=value with an option of {', '.join(sorted(ARM_OPTIONS))}")
            given[option] = read(option, value)
        config: RunConfig = filled(RunConfig, given, base)
    except (OptionError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"--arms {text!r}: {error}") from None
    return config
