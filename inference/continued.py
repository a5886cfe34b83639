"""Continue the table of a `predict` that was stopped: the rows that it has written say how far it was."""

import csv
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TextIO

import torch

from common.errors import Interrupted
from common.files import replacing, stamp, temporary_path
from common.tables import unguarded
from common.text import pluralise, wrapped
from common.versions import versions_of
from datasets.transforms import Pipeline
from inference.certainty.answers import FILE
from inference.classifier import Classifier
from inference.images import ImageFile, Unreadable, read_pixels
from inference.predict import Tally
from inference.prediction_table import YES_NO
from trainers.reporting.figures.images import ImagePrediction
from trainers.system.folder_lock import held


class Kept:
    """Rows that a stopped command has left: those of whole batches of files, so that the next batches are the same."""

    def __init__(self, table: Path, files: Iterable[ImageFile], pipeline: Pipeline, *, size: int) -> None:
        self.table, self.pipeline, self.size = table, pipeline, size
        self.files = iter(files)
        """Files that are left to classify, after `results`."""
        self.end = 0
        """Bytes of the table up to the last row that is kept."""

    def results(self) -> Iterator[ImagePrediction | Unreadable]:
        """Yield what the table has of the files, up to the first batch with one that it lacks.

        It lacks one that has changed since its last row. A file without a row is read once more, for the reason why
        it cannot be."""
        with suppress(FileNotFoundError), open(self.table, "rb") as table:
            last, rows = os.stat(self.table).st_mtime, rows_in(table)
            end, header = next(rows, (0, []))
            row = next(rows, None)
            while batch := list(islice(self.files, self.size)):
                results = list[ImagePrediction | Unreadable]()
                for file in batch:
                    cells = dict(zip(header, row[1], strict=True)) if row is not None else {}
                    if row is not None and cells["path"] == file.path and changed(file.path) <= last:
                        results.append(prediction_in(cells))
                        end, row = row[0], next(rows, None)
                    elif isinstance(pixels := read_pixels(file, self.pipeline), Unreadable):
                        results.append(pixels)
                    else:
                        self.files = chain(batch, self.files)
                        return
                self.end = end
                yield from results


@contextmanager
def continued_table(
    path: Path, key: str, files: Iterable[ImageFile], tally: Tally, *, batch_size: int
) -> Iterator[tuple[TextIO, Iterator[ImageFile], bool]]:
    """Yield a file for the rows that lack, the files that they are of, and whether the header is there.

    The rows of a command with the same key that a signal has stopped stay, and are counted by `tally`. The file takes
    its place when the block ends. Raises OptionError: another process writes it."""
    with ExitStack() as holding:
        place = path.resolve()
        try:
            trial = temporary_path(place)  # where no file can be made, the lock looks taken
            trial.touch()
            trial.unlink()
            holding.enter_context(held(place))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None  # rather than their names
        part = holding.enter_context(replacing(path, key=key))
        if not is_own(part):
            part.unlink(missing_ok=True)
        kept = Kept(part, files, Pipeline(tally.classifier.spec), size=batch_size)
        for _ in tally.readable(kept.results()):
            pass
        if kept.end:
            text = f"note: {pluralise(tally.images, 'image')} are in the table of the command that was stopped"
            print(wrapped(text), file=sys.stderr)
        if part.exists():
            os.truncate(part, kept.end)
        with open(part, "a", newline="", encoding="utf-8", errors="surrogateescape") as file:
            try:
                yield file, kept.files, kept.end > 0
            except Interrupted as stop:
                stop.hint = "the same command continues"
                raise


def is_own(part: Path) -> bool:
    """Return whether a file is one that this user wrote; in a shared folder its name can be known."""
    with suppress(FileNotFoundError):
        found = part.lstat()
        return stat.S_ISREG(found.st_mode) and (os.name == "nt" or found.st_uid == os.geteuid())
    return False


def key_of(classifier: Classifier, options: object) -> str:
    """Return what the bytes of a table depend on, its images apart."""
    source, files = Path(classifier.source).absolute(), [Path(classifier.source)]
    if classifier.run is not None:
        files = [classifier.run.best, classifier.run.path / "eval" / FILE]
    versions = versions_of("torch", "torchvision", "pillow", "numpy")
    return repr([source, *map(stamp, files), options, torch.get_num_threads(), versions])


def rows_in(table: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield the whole rows of a table, the header first, each with the number of bytes up to its end."""
    end, width = 0, 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line in table:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line.decode("utf-8", "surrogateescape")

    with suppress(csv.Error):  # a name with a line feed, cut off
        for cells in csv.reader(lines(), strict=True):
            width = width or len(cells)
            if len(cells) != width:
                return
            yield end, [unguarded(cell) for cell in cells]


def prediction_in(cells: dict[str, str]) -> ImagePrediction:
    """Return what a tally counts of a row."""
    ranked = ((cells["predicted"], float(cells["probability"])),)
    unknown = {text: value for value, text in YES_NO.items()}[cells.get("unknown", "")]
    return ImagePrediction(cells["path"], ranked, cells["label"] or None, unknown=unknown)


def changed(path: str) -> float:
    """Return when a file was changed or renamed last; infinity if there is none."""
    with suppress(OSError):
        found = os.stat(path)
        return max(found.st_mtime, found.st_ctime)
    return float("inf")
