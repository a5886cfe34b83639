"""`clean DATA`: which labels are likely wrong, by models that have not learnt from them; and a table without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from commands.arguments import ImagesOptions
from datasets.config import DataConfig
from datasets.text import aligned, printable
from trainers.config import OutputConfig, RunConfig, data_folder
from vit.config import require, require_finite

if TYPE_CHECKING:
    from datasets.bundle import Samples
    from datasets.suspects import Suspect

SHOWN = 10
SURE = 0.9
"""Below this accuracy of the models half of the suspects are hard images and more (docs/clean.md)."""


@dataclass(frozen=True)
class Options(ImagesOptions):
    """Find labels that are likely wrong, as models see it that have not learnt from them: a ranked list to decide on,
    suspects.csv, and a table to train on, cleaned.csv. The images and their folders stay as they are, and so do the
    labels of the test images. Given again, it takes the decisions from suspects.csv.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|PATH|RUN")]
    """A folder, a CSV or TSV table, a zip, a built-in set; or a run of `train --folds K`, for its own predictions."""
    review: bool = False
    """Decide on a page of this machine: keep, relabel, drop, undo, by keys."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """As for train: an unreadable image ends the command, or is left out."""
    folds: int = 5
    """Parts of the images, each judged by models of the others."""
    minutes: float | None = None
    """Time for looking at the images with the weights at hand. Default: one, or more of over 2,000 images."""
    output: Path | None = None
    """Folder for the files. Default: clean/ in the folder of the runs on these images, runs/<data>."""
    port: int = 7861
    """TCP port of --review; 0 takes a free one."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self, "be at least 2", lambda count: count >= 2, "folds")
        require(self, "be greater than 0", lambda time: time > 0, "minutes")
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")

    @property
    def of_run(self) -> bool:
        return (Path(self.data) / "config.json").is_file()

    @property
    def folder(self) -> Path:
        run = Path(self.data)
        own = run.with_name(f"{run.name}_clean") if self.of_run else data_folder(OutputConfig(), self.data) / "clean"
        return self.output or own

    def config(self) -> RunConfig:
        """The set, as training reads it: of a run, as its fold did."""
        if self.of_run:
            from trainers.result import read_run_config

            return read_run_config(Path(self.data))
        images = DataConfig(self.data, self.data_root, self.path_column, self.label_column)
        return RunConfig(data=replace(images, on_bad_image=self.on_bad_image))


def main(options: Options) -> int:
    """Look for suspects where no list of them is there, write the table that their decisions make, and review them."""
    from comparison.clean import samples_of
    from datasets.suspects import read_suspects, write_cleaned, write_suspects
    from inference.label_issues import cleanlab_filter
    from inference.review import Review

    table, config = options.folder / "suspects.csv", options.config()

    def save(decided: list[Suspect]) -> None:
        write_suspects(table, decided)
        write_cleaned(options.folder / "cleaned.csv", samples, decided)

    if table.is_file():
        print(f"{table} is there: its decisions count; remove it to look anew")
        samples = samples_of(config.data)
        suspects = read_suspects(table, samples)
    else:
        cleanlab_filter()  # where it is missing, that is said now
        samples, suspects = look(options, config)
    save(suspects)
    write_cleaned(options.folder / "given.csv", samples, [])
    print("\n".join(lines(options, config.data, samples, suspects)))
    if options.review:
        with Review(samples, suspects, save, port=options.port) as server:
            server.serve_until_interrupted(f"{'review':>9}  on {server.url}  (Ctrl-C ends it)")
    return 0


def look(options: Options, config: RunConfig) -> tuple[Samples, list[Suspect]]:
    """Judge all images, and say how good the judges are and what is doubtful among the test images."""
    from comparison import clean
    from datasets.suspects import write_suspects

    if options.of_run:
        judged = clean.judge_folds(Path(options.data), config)
    else:
        judged = clean.judge_set(config, folds=options.folds, minutes=options.minutes)
    suspects, of_test = (clean.suspects_of(judged, test=test) for test in (False, True))
    options.folder.mkdir(parents=True, exist_ok=True)
    write_suspects(options.folder / "test_suspects.csv", of_test)
    if suspects:
        clean.write_figure(options.folder / "suspects.png", judged.samples, suspects)
    print(f"\n{judged.accuracy:.1%} of the labels are what models say that have not learnt from them")
    if judged.accuracy < SURE:
        print("models that are right so seldom take many hard images for wrong labels: decide one by one")
    if of_test:
        print(f"{len(of_test)} test labels are doubtful, too, and stay: {options.folder / 'test_suspects.csv'}")
    gained = clean.worth(judged, suspects)
    if gained is not None:
        by = f"{100 * gained.mean:+.1f} points ({100 * gained.low:.1f} to {100 * gained.high:.1f})"
        print(f"learning without what is to be dropped changes the accuracy on {gained.images:,} test images by {by}")
    return judged.samples, suspects


def lines(options: Options, data: DataConfig, samples: Samples, suspects: Sequence[Suspect]) -> Iterator[str]:
    """The first suspects, how many there are of each kind, and what to do next."""
    header = ("given", "suggested", "", "kind", "decision", "image")
    rows = [
        (s.label, s.suggested, f"{float(s.confidence):.0%}", s.kind, s.decision, printable(s.path))
        for s in suspects[:SHOWN]
    ]
    if rows:
        yield from ("", *aligned([header, *rows], left=(0, 1, 3, 4, 5)))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(s.kind for s in suspects).items())
    decisions = Counter(s.decision.partition(":")[0] for s in suspects)
    share = len(suspects) / sum(len(samples.indices(split)) for split in ("train", "val"))
    yield f"\n{len(suspects):,} suspects ({share:.1%} of train and val){': ' * bool(kinds)}{kinds}"
    yield f"{'decide':>9}  in {options.folder}/suspects.csv, or: python main.py clean {options.data} --review"
    made = ", ".join(f"{count:,} {decision}" for decision, count in decisions.items()) or "nothing to decide"
    yield f"{'table':>9}  {options.folder}/cleaned.csv ({made})"
    recipe = "--recipe finetune-small --seeds 3" + " --mirror no" * (not data.may_mirror)
    if (samples.splits == 2).any():
        for name in ("given", "cleaned"):
            yield f"{'train':>9}  python main.py train --data {options.folder}/{name}.csv {recipe}"
        yield f"{'compare':>9}  python main.py compare runs/given/vit_stem_16_s? runs/cleaned/vit_stem_16_s?"
