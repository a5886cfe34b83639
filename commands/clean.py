"""`clean DATA`: which labels models doubt that have not learnt from them; and a table without them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from commands.arguments import ImagesOptions
from commands.parser import UsageError
from common.options import require, require_finite
from common.shell import command
from datasets.config import named_set
from trainers.config import OutputConfig, RunConfig
from trainers.storage.data_folder import claimed_folder, data_folder


@dataclass(frozen=True)
class Options(ImagesOptions):
    """Find likely label errors by cross-validation, each image judged by models that were not trained on it: a ranked
    list to decide on, suspects.csv, and a table to train on, cleaned.csv. The images and their folders stay as they
    are, and so do the labels of the test images. Given again, it takes the decisions from suspects.csv.
    """

    review: bool = False
    """Decide on a page of this machine, by keys: keep, relabel, drop, undo, enlarge; with pictures to compare with."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Unreadable images: fail stops at the first; skip leaves them out."""
    folds: int = 5
    """Cross-validation folds; each is judged by models that were trained on the others."""
    minutes: float | None = None
    """Time budget in minutes for comparing pretrained weights on these images. Default: one, or more for over 2,000
    images."""
    output: Path | None = None
    """Folder for the files. Default: runs/<data>/clean/."""
    port: int = 7861
    """TCP port of --review; 0 takes a free one."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self, "be at least 2", lambda count: count >= 2, "folds")
        require(self, "be greater than 0", lambda time: time > 0, "minutes")
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")
        if (Path(self.data) / "config.json").is_file():
            raise UsageError(f"{self.data} is a run: name images, such as those that it was trained on")

    @property
    def folder(self) -> Path:
        return self.output or data_folder(OutputConfig(), self.data) / "clean"

    @property
    def review_command(self) -> str:
        """The command that opens the page about these suspects."""
        skip = ("--on-bad-image", "skip") * (self.on_bad_image == "skip")
        output = ("--output", self.output) if self.output else ()
        return command("clean", *named_set(self.images), *skip, *output, "--review")


def main(options: Options) -> int:
    """Look for suspects where no list of them is there, write the table that their decisions make, and review them."""
    from datasets.loaders import split_samples
    from inference.labels import clean
    from inference.labels.label_issues import cleanlab_filter
    from inference.labels.review import Review
    from inference.labels.suspects import SuspectsTable, read_suspects, write_cleaned, write_suspects
    from trainers.reporting.console import say

    folder = options.folder
    config = RunConfig(data=replace(options.images, on_bad_image=options.on_bad_image))
    if (folder / "suspects.csv").is_file():
        say(f"{folder / 'suspects.csv'} is there: its decisions count; remove it to look anew")
        samples = split_samples(config.data)
        suspects = read_suspects(folder / "suspects.csv", samples)
    else:
        cleanlab_filter()  # where it is missing, that is said now
        judged = clean.cross_validate_set(config, folds=options.folds, minutes=options.minutes)
        samples, suspects = judged.samples, clean.report_suspects(judged, folder)
        write_suspects(folder / "suspects.csv", suspects)
    if options.output is None:
        claimed_folder(OutputConfig(), options.data)
    table = SuspectsTable(folder, samples)
    table.save(suspects)
    write_cleaned(folder / "given.csv", samples, [])
    clean.say_suspects(folder, options.review_command, samples, suspects, may_mirror=config.data.may_mirror)
    if options.review:
        with Review(table, port=options.port) as server:
            server.serve_until_interrupted(f"{'review':>9}  on {server.url}  (Ctrl-C ends it)")
    return 0
