"""Sharing of runs, by their names, with a tracker."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sharing.replay import Replay, is_comparison, replay_of_run, replays_of_comparison
from sharing.trackers import Tracker
from trainers.storage.finished_run import find_run


def read_all(names: Iterable[str], output_dir: Path) -> list[Replay]:
    """Every run that is named, or is part of a comparison that is named, once. Raises FileNotFoundError: there is none.
    CheckpointError: one is not finished, or damaged; nothing has been shared then."""
    found = []
    for name in names:
        if is_comparison(Path(name)):
            found += replays_of_comparison(Path(name))
        else:
            found.append(replay_of_run(find_run(name, output_dir)))
    return list({replay.id: replay for replay in found}.values())


def share(replays: Iterable[Replay], tracker: Tracker) -> Iterator[tuple[Replay, bool]]:
    """Put each run into the tracker, unless it is there as it is. Yields the run, and whether it was written."""
    for replay in replays:
        there = tracker.has(replay)
        if not there:
            tracker.put(replay)
        yield replay, not there
