"""Images of a run that its starts have seen: the record that a run carries, and keeps in its folder."""

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.files import text_file
from common.tables import csv_lines, read_rows
from trainers.seen.hashes import NOTHING, SELECTED, TRAINED, Seen
from trainers.storage.run_folder import read_if_whole

if TYPE_CHECKING:
    from trainers.seen.starts import Start

FILE = "seen.csv"
"""File in a run directory: the validation and test images that its starts have seen, where there are any."""
COUNTS = {"val": (TRAINED,), "test": (TRAINED, SELECTED)}
"""Uses by which an image of a split counts as seen."""


class SeenImage(NamedTuple):
    """One row of seen.csv."""

    path: str
    split: str
    """The one that it belongs to."""
    use: str
    """Use of the image: `trained` or `selected`."""
    by: str
    """The starts that used it, as a person named them."""


@dataclass(frozen=True)
class Overlap:
    """Images of a run that its starts have seen."""

    starts: "tuple[Start, ...]" = ()
    images: tuple[SeenImage, ...] = ()
    """The validation and test images among them."""
    scored: bool = False
    """True if these are scored all the same (`--allow-seen`)."""
    said: tuple[str, ...] = ()
    """A sentence about each start and split."""

    @property
    def before(self) -> Seen:
        """All that the starts have seen."""
        return reduce(or_, (start.seen for start in self.starts), NOTHING)

    @property
    def summary(self) -> dict[str, Any]:
        """Return what meta.json and summary.json say of it."""
        counts = Counter(image.split for image in self.images)
        return {**{split: counts[split] for split in COUNTS}, "scored": self.scored, "said": list(self.said)}


def write_seen(run_dir: Path, overlap: Overlap) -> None:
    """Write seen.csv where there is something to say."""
    if overlap.images:
        with text_file(run_dir / FILE) as file:
            file.writelines(csv_lines(SeenImage._fields, overlap.images))


def read_seen(run_dir: Path) -> tuple[SeenImage, ...]:
    """The rows of seen.csv; none where the run has no such file."""
    path = run_dir / FILE
    if not path.is_file():
        return ()
    return tuple(SeenImage(*(row[name] for name in SeenImage._fields)) for row in read_rows(path, SeenImage._fields))


def said_at_start(run_dir: Path) -> tuple[str, ...]:
    """Read what was said of the seen images when the run started, as its meta.json has it."""
    seen = (read_if_whole(run_dir / "meta.json") or {}).get("seen")
    said = seen.get("said") if isinstance(seen, dict) else None
    return tuple(map(str, said)) if isinstance(said, list) else ()
