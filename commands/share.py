"""`share RUN... --to TRACKER`: replay finished runs into a tracker."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from commands.arguments import UsageError
from datasets.text import pluralise


@dataclass(frozen=True)
class Options:
    """Show finished runs, or a whole comparison, in an experiment tracker: options, metrics of each epoch, pictures and
    final scores. A run that is shared twice is there once. Where the tracker lies is said by its own settings; its
    package is needed here alone, not for training. See docs/share.md.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directories, folders of comparisons, or `latest`."""
    to: Literal["mlflow", "wandb", "trackio", "clearml"] | None = None
    """Tracker that takes the runs. Must be given."""
    project: str | None = None
    """Project, or experiment, that the runs appear in. Default: the name of the set of images."""
    output_dir: Path = Path("runs")
    """Folder in which `latest` is looked for."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UsageError("no run named; see python main.py share --help")
        if self.to is None:
            raise UsageError("no tracker named: add --to mlflow, wandb, trackio or clearml")


def main(options: Options) -> int:
    from sharing.replay import plain
    from sharing.share import read_all, share
    from sharing.trackers import open_tracker

    replays = read_all(options.runs, options.output_dir)
    if options.project is not None:
        replays = [replace(replay, project=plain(options.project)) for replay in replays]
    written = 0
    for replay, new in share(replays, open_tracker(str(options.to))):
        print(f"{'shared' if new else 'there':>9}  {replay.name} in {replay.project} ({replay.id})")
        written += new
    print(f"\n{pluralise(written, 'run')} written to {options.to}, {len(replays) - written} there already, unchanged")
    return 0
