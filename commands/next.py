"""Run `next POOL`: choose pictures to label next, and keep a table to train on."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from commands.parser import UsageError
from common.errors import DataError
from common.options import Arg, OutputFolder, Positional, require, require_counts
from common.shell import command
from common.text import pluralise, printable
from datasets.config import Name
from trainers.config import OutputConfig
from trainers.reporting.console import say
from trainers.storage.data_folder import claimed_folder, data_folder

LISTED = 10
"""Most pictures and classes named on the terminal."""
WHY = {
    "centre": "typical of many pictures; there are few labels, or none",
    "uncertain": "of those that the model is least sure of, as different as can be",
}


@dataclass(frozen=True)
class Options:
    """Choose the pictures to label next: typical ones first, then those that a model is unsure of, and no duplicates.

    Leaves picks.csv, with scores, and labels.csv, path and label of all that is labelled so far, for train. Given
    again, it takes the labels from picks.csv and, when all its pictures are decided, adds the next ones. To choose
    others at once, remove the rows without a label.
    """

    pool: Annotated[str, Positional, Arg(metavar="PATH")]
    """A folder of pictures with its sub-folders, a CSV or TSV table that names pictures, or a zip."""
    number: Annotated[int, Arg(short="-n")] = 40
    """Number of pictures to choose."""
    labelled: Annotated[tuple[str, ...], Arg(metavar="NAME|PATH")] = ()
    """Labelled sets, as train reads them. Their pictures and duplicates of these are not asked about, the model learns
    from them, and labels.csv contains them."""
    review: bool = False
    """Label the pictures on a page of this machine, by keys."""
    path_column: Name = None
    """Column of a table that names the pictures, as for train."""
    data_root: Path = Path("data")
    """Folder of unpacked archives."""
    output: Annotated[Path | None, OutputFolder] = None
    """Folder for the tables. Default: next/ in the folder of the runs on these pictures, runs/<pool>."""
    port: int | None = None
    """TCP port of --review; 0 takes a free one. Default: 7862."""

    def __post_init__(self) -> None:
        require_counts(self, "number")
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")
        if self.port is not None and not self.review:
            raise UsageError("--port is of the page of --review: add it")

    @property
    def folder(self) -> Path:
        return self.output or data_folder(OutputConfig(), self.pool) / "next"


def main(options: Options) -> int:
    """Take over labels, choose new pictures once all are decided, and open the page."""
    from inference.labels import picks as table
    from inference.labels.features import extract_features, pretrained

    folder, listed = options.folder, options.folder / "picks.csv"
    pool = table.read_pool(options.pool, options.data_root, labelled=options.labelled, path_column=options.path_column)
    for line in pool.samples.notes:
        say(line, label="note")
    picks = table.read_picks(listed, pool.samples) if listed.is_file() else []
    labels = folder / "labels.csv"
    if labels.is_file() and not listed.is_file():
        raise DataError(
            f"{labels} has labels that {listed} lacks: move {folder} away, and name its {labels.name} by --labelled"
        )
    if picks:
        table.save_picks(folder, pool, picks)
    waiting = sum(not pick.decision for pick in picks)
    if options.review or not waiting:
        place = (options.output or folder.parent) / "features"
        networks = pretrained(table.NEXT_BACKBONE)
        found = extract_features(
            pool.samples, networks, place, components=table.NEXT_COMPONENTS, data_root=options.data_root
        )
    if not waiting:
        for fault in found.faults[:LISTED]:
            say(f"left out, cannot be read: {printable(fault)}", label="note")
        chosen = table.choose_picks(pool, picks, found, options.number)
        say(f"{pluralise(len(chosen), 'picture')}: {WHY[chosen[0].reason]}", label="chosen")
        picks, waiting = [*picks, *chosen], len(chosen)
        table.save_picks(folder, pool, picks)
    say(f"{waiting} of {len(picks)} pictures of {listed} have no label yet", label="table")
    page = "" if options.review else "; or add --review, for a page"
    say(f"fill its column `label`, and give the command again{page}", label="label")
    if options.output is None:
        claimed_folder(OutputConfig(), options.pool)
    if options.review:
        with table.PicksPage(folder, pool, found, port=7862 if options.port is None else options.port) as server:
            say(f"on {server.url}  (Ctrl-C ends it)", label="page")
            server.serve_until_interrupted()
            picks = server.rows
    counts = Counter(label.name for label in pool.labels(picks).values())
    if counts:
        named = ", ".join(f"{printable(name)} {count:,}" for name, count in counts.most_common(LISTED))
        more = ", ..." * (len(counts) > LISTED)
        say(f"{pluralise(counts.total(), 'picture')}: {named}{more}", label="labels")
        say(command("train", folder / "labels.csv", "--weights", "auto"), label="train")
    return 0
