"""One round of labelling: read the pool, choose what to label next, and leave it as a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import OptionError
from common.shell import command
from common.text import pluralise, printable
from datasets.config import DataConfig
from inference.labels.choose import Chosen, choose, few_labels, free_rows, probabilities_of
from inference.labels.features import ExtractedFeatures
from inference.labels.picks import CENTRE, UNCERTAIN, Pick, read_labels, read_picks, read_skipped, write_picks
from inference.labels.pool import Label, Pool, in_test, labels_of_set, read_pool
from trainers.reporting.console import say
from trainers.storage.finished_run import read_run_config, untrusted_run

LISTED = 10
"""Pictures named on the terminal."""


@dataclass(frozen=True)
class LabellingState:
    """A pool, and what earlier rounds left."""

    pool: Pool
    picks: list[Pick]
    """Picks of the last round."""
    skipped: list[str]

    @property
    def waiting(self) -> list[Pick]:
        """The picks that nobody has decided on."""
        return [pick for pick in self.picks if not pick.decision]

    @property
    def labels(self) -> dict[str, Label]:
        """Labels by path."""
        return {self.pool.samples.paths[row]: label for row, label in self.pool.labels.items()}


def open_round(
    source: str, root: Path, folder: Path, *, labelled: Sequence[str], run_dir: Path | None, path_column: str | None
) -> LabellingState:
    """The pictures of `source`, with all labels that are known: of `labelled` sets, of the images of a run, and of
    earlier rounds in `folder`, whose word counts most. Raises what reading them raises; a run whose images are not
    there is a note."""
    labels: dict[str, Label] = {}
    if run_dir is not None:
        try:
            with untrusted_run():
                labels |= labels_of_set(read_run_config(run_dir).data)
        except (OSError, ValueError) as error:
            say(f"the images of {run_dir} are not known, so copies of them may be chosen: {error}", label="note")
    for place in labelled:
        labels |= labels_of_set(DataConfig(place, root))
    labels |= read_labels(folder / "labels.csv")
    picks = read_picks(folder / "picks.csv") if (folder / "picks.csv").is_file() else []
    labels |= {pick.path: Label(pick.label) for pick in picks if pick.label}
    for pick in picks:
        if not pick.label:  # taken back since labels.csv was written
            labels.pop(pick.path, None)
    pool = read_pool(source, root, labels, path_column=path_column, written=folder / "images")
    skipped = dict.fromkeys([*read_skipped(folder / "skipped.csv"), *(pick.path for pick in picks if pick.skipped)])
    return LabellingState(pool, picks, list(skipped))


@dataclass(frozen=True)
class Round:
    """Pictures that were chosen, and the pool they are from."""

    picks: list[Pick]
    free: int
    """Pictures that could be chosen."""
    copies: int
    """Pictures that were left out as copies."""
    classes: list[str] = field(default_factory=list)


def choose_round(opened: LabellingState, extracted: ExtractedFeatures, folder: Path, count: int) -> Round:
    """Choose `count` pictures and write picks.csv into `folder`. Raises OptionError: no picture is left."""
    pool = opened.pool
    for fault in extracted.faults[:LISTED]:
        say(f"left out, cannot be read: {printable(fault)}", label="note")
    row_of = {path: row for row, path in enumerate(pool.samples.paths)}
    taken = [*pool.labels, *(row_of[path] for path in opened.skipped if path in row_of)]
    usable = extracted.readable & (np.arange(len(pool.samples)) < pool.own)
    usable[taken] = False
    free = free_rows(extracted.groups, usable, taken)
    if not len(free):
        raise OptionError(f"every picture of {pool.samples.name} has a label, or a copy with one: none is left")
    learnt = np.array(
        [row for row, label in pool.labels.items() if extracted.readable[row] and not in_test(label)], int
    )
    classes, probabilities = thought(pool, extracted, learnt)
    chosen = choose(extracted.features, free, learnt, count, probabilities=probabilities)
    picks = [pick_of(pool, each, classes, probabilities) for each in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    write_picks(folder / "picks.csv", picks)
    return Round(picks, len(free), int(usable.sum()) - len(free), classes)


def thought(
    pool: Pool, extracted: ExtractedFeatures, learnt: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.float64] | None]:
    """The classes, and what a model thinks of each picture (N, C): the run's own, or logistic regression on the labels.
    None where labels are too few to ask one."""
    names = [pool.labels[row].name for row in learnt.tolist()]
    classes = list(dict.fromkeys(names))
    numbers = np.array([classes.index(name) for name in names], int)
    if extracted.probabilities is not None and not (len(learnt) and few_labels(numbers)):
        return list(extracted.class_names), extracted.probabilities
    if few_labels(numbers):
        return classes, None
    return classes, probabilities_of(extracted.features, learnt, numbers, len(classes))


def pick_of(pool: Pool, chosen: Chosen, classes: list[str], probabilities: NDArray[np.float64] | None) -> Pick:
    guess = confidence = second = ""
    if probabilities is not None:
        order = np.argsort(-probabilities[chosen.row], kind="stable")
        guess, confidence = classes[order[0]], f"{probabilities[chosen.row, order[0]]:.4f}"
        second = classes[order[1]] if len(order) > 1 else ""
    reason = UNCERTAIN if chosen.uncertain else CENTRE
    path = pool.samples.paths[chosen.row]
    return Pick(path, reason, f"{chosen.score:.4f}", guess, confidence, second, label="", skipped="", decided="")


def lines(folder: Path, made: Round, *, review: str) -> Iterator[str]:
    """Say what was chosen, by which rule, and what to do next."""
    kinds = Counter(pick.reason for pick in made.picks)
    why = {
        CENTRE: "typical of many pictures, as labels are few or there are none",
        UNCERTAIN: "of those that the model is least sure of, as different as can be",
    }
    for kind, count in kinds.items():
        yield f"{'chosen':>9}  {pluralise(count, 'picture')} of {made.free:,}: {why[kind]}"
    if made.copies:
        yield f"{'copies':>9}  {pluralise(made.copies, 'picture')} not asked about: copies of others"
    yield f"{'table':>9}  {folder / 'picks.csv'}: paths and scores, for any labelling program"
    yield f"{'label':>9}  {review}"
    yield f"{'':>9}  or fill the column `label` of the table, and give the same command again"


def summary(folder: Path, labels: dict[str, Label]) -> Iterator[str]:
    """Number of labels, and the command that trains on them."""
    if not labels:
        return
    counts = Counter(label.name for label in labels.values())
    named = ", ".join(f"{printable(name)} {count:,}" for name, count in counts.most_common(LISTED))
    more = ", ..." * (len(counts) > LISTED)
    yield f"{'labels':>9}  {pluralise(len(labels), 'picture')}: {named}{more}"
    yield f"{'train':>9}  {command('train', folder / 'labels.csv', '--weights', 'auto')}"
