"""Run `pack DATA FOLDER`: write a set of images as few large files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from commands.arguments import ImagesOptions
from common.options import Arg, OutputFolder, Positional
from common.shell import command
from common.text import pluralise
from trainers.reporting.console import say


@dataclass(frozen=True)
class Options(ImagesOptions):
    """Write a set of images as tar shards in the WebDataset convention. That is key.jpg, key.cls, and classnames.txt
    for all. Nothing is decoded. `--data FOLDER` then reads them where they lie: same order, same split, same run.
    """

    folder: Annotated[Path, Positional, OutputFolder, Arg(metavar="FOLDER")]
    """Write the shards to this new folder. Their names are train-000000.tar, val-000000.tar, ..., or all-000000.tar
    where the set brings no split."""


def main(options: Options) -> int:
    from datasets.open import read_samples
    from datasets.packing import pack

    samples = read_samples(options.images)
    shards = pack(samples, options.folder)
    size = sum(shard.stat().st_size for shard in shards) / 1e6
    groups = f" of {pluralise(len(samples.group_names), 'group')}" if samples.groups is not None else ""
    what = f"{pluralise(len(samples), 'image')}{groups} in {pluralise(len(shards), 'shard')}, {size:,.1f} MB"
    say(f"{options.folder}: {what}", label="written")
    say(command("train", "--data", options.folder), label="next")
    return 0
