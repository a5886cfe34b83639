"""`next POOL`: which of many unlabelled pictures to label next; a page to label them on, and a table to train on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from common.options import Arg, Positional, require, require_counts
from common.shell import command
from common.text import wrapped
from datasets.config import Name
from trainers.config import OutputConfig
from trainers.storage.data_folder import claimed_folder, data_folder


@dataclass(frozen=True)
class Options:
    """Choose the pictures to label next: typical ones first, then those that a model is unsure of, and no copies.

    Leaves picks.csv, with scores, and labels.csv, path and label of all that is labelled so far, for train. Given
    again, it takes the labels from picks.csv and, when all its pictures are decided, chooses the next ones. To choose
    others at once, remove picks.csv.
    """

    pool: Annotated[str, Positional, Arg(metavar="PATH")]
    """A folder of pictures with its sub-folders, a CSV or TSV table that names pictures, or a zip."""
    number: Annotated[int, Arg(short="-n")] = 40
    """Number of pictures to choose."""
    labelled: Annotated[tuple[str, ...], Arg(metavar="NAME|PATH")] = ()
    """Labelled sets, as train reads them: their pictures and copies of these are not asked about, the model learns from
    them, and labels.csv contains them."""
    review: bool = False
    """Label the pictures on a page of this machine, by keys."""
    path_column: Name = None
    """Column of a table that names the pictures, as for train."""
    data_root: Path = Path("data")
    """Folder of unpacked archives."""
    output: Path | None = None
    """Folder for the tables. Default: next/ in the folder of the runs on these pictures, runs/<pool>."""
    port: int = 7862
    """TCP port of --review; 0 takes a free one."""

    def __post_init__(self) -> None:
        require_counts(self, "number")
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")

    @property
    def folder(self) -> Path:
        return self.output or data_folder(OutputConfig(), self.pool) / "next"

    @property
    def features(self) -> Path:
        """Folder in which features of these pictures are kept."""
        return (self.output or self.folder.parent) / "features"

    @property
    def review_command(self) -> str:
        """The command that opens the page on these pictures."""
        words: list[object] = ["--labelled", *self.labelled] if self.labelled else []
        words += ["--path-column", self.path_column] if self.path_column else []
        words += ["--output", self.output] if self.output else []
        return command("next", self.pool, *words, "--review")


def main(options: Options) -> int:
    """Take over the labels of the last choice; choose where none of it waits for one; and open the page."""
    from inference.labels import rounds
    from inference.labels.features import extract_features, pretrained
    from inference.labels.picks import PicksTable
    from inference.labels.review import Review

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            print(wrapped(line, indent=11))

    folder, features = options.folder, None
    pool = rounds.open_round(
        options.pool, options.data_root, folder, labelled=options.labelled, path_column=options.path_column
    )
    if pool.picks:
        PicksTable(folder, pool.samples, pool.labels).save(pool.picks)
    if options.review or not pool.waiting:
        extracted = extract_features(pool.samples, pretrained(), options.features)
        features = extracted.features
    if pool.waiting:
        print(f"{len(pool.waiting)} of {len(pool.picks)} pictures of {folder / 'picks.csv'} have no label yet")
    else:
        say(rounds.choose_round(pool, extracted, folder, options.number))
    say([f"{'label':>9}  {options.review_command}"])
    say([f"{'':>9}  or fill the column `label` of the table, and give the same command again"])
    if options.output is None:
        claimed_folder(OutputConfig(), options.pool)
    table = PicksTable(folder, pool.samples, pool.labels, features=features)
    table.save(table.read())
    say(rounds.summary(folder, pool.labels))
    if options.review:
        with Review(table, port=options.port) as server:
            server.serve_until_interrupted(f"{'page':>9}  on {server.url}  (Ctrl-C ends it)")
        say(rounds.summary(folder, table.labels(table.read())))
    return 0
