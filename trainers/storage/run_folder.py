"""A run's folder: its files, in plain formats for people and scripts, and what each of them says. No torch here."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Self

from common.errors import CheckpointError, OptionError
from common.files import NO_DOWNLOADS, write_text
from common.options import Movable
from common.shell import command
from common.tables import csv_text, read_rows
from common.text import shorten_list
from trainers.config import RunConfig, from_dict, run_options, to_dict
from trainers.storage.data_folder import TUNING, from_directory
from trainers.system import folder_lock
from trainers.system.process import command_line, working_directory
from vit.config import HUB_OFFLINE

SNAPSHOTS = "snapshots"
"""Folder of a run with its weights on the way."""
META: dict[str, Any] = {
    "started": str, "argv": list, "requested": dict, "data_fingerprint": str, "class_names": list, "threads": int,
    "versions": dict, "directory": (str, NoneType), "git": (dict, NoneType), "processes": (int, NoneType),
    "kept": (str, NoneType),
}  # fmt: skip
"""Entries of meta.json; it may lack those that may be None."""
SUMMARY: dict[str, Any] = {"status": str, "epochs": int, "seconds": (int, float)}
"""Entries of summary.json."""
FINISHED: dict[str, Any] = {"best": dict, "parameters": int, "images_seen": (int, float), "images": dict}
"""Entries that summary.json of a finished run has, too."""
SCORES = ("accuracy", "loss", "macro_f1", "ece")
"""Scores that every split of a run has."""
CHECKPOINT = re.compile(r"step_\d+|best")
"""Names of files with checkpoints."""
WHOLE = ("epoch", "step", "val_accuracy", "val_loss")
"""Columns of metrics.csv that every row fills."""


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run; each file is read and checked once.

    A new object reads anew, also what this one has written. Raises FileNotFoundError: the run has no such file.
    CheckpointError: it is damaged.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def find(cls, name: str, output_dir: Path | str = "runs") -> Self:
        """Return the run that a person named: a path, or `latest` below `output_dir`.

        The latest run is the one that was started last, or that the last command kept of several.
        Raises FileNotFoundError: no such run. CheckpointError: a link in it leads elsewhere.
        """
        output_dir = Path(output_dir)
        if name == "latest":
            # Runs that only tried a rate lie deeper in it than those of a set of its name.
            tried = output_dir / TUNING
            runs = [run for run in runs_below(output_dir) if run.parent == tried or tried not in run.parents]
            if not runs:
                raise FileNotFoundError(f"no run in {output_dir}/: `{command('train')}` makes one")
            return max(map(cls, runs), key=lambda run: run.moment)
        run = cls(Path(name))
        if not run.is_run:
            folder = run.path
            what = "has no config.json" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
            held = sorted(run.name for run in runs_below(folder)) if folder.is_dir() else []
            choice = f"one of its runs: {shorten_list(held)}" if held else f"a folder below {output_dir}/, or latest"
            raise FileNotFoundError(f"{folder} is not a run directory: it {what}; name {choice}")
        run.refuse_links_out()
        return run

    @property
    def is_run(self) -> bool:
        return (self.path / "config.json").is_file()

    def held(self) -> AbstractContextManager[None]:
        """Hold the folder inside a block. Raises OptionError: another process works in it."""
        return folder_lock.held(self.path)

    def refuse_links_out(self) -> None:
        """Raise CheckpointError for links out of a run, and for special files.

        A run may be a stranger's, and its files are read and replaced."""
        home = os.path.realpath(self.path)
        for folder, folders, files in os.walk(self.path):
            for path in (Path(folder, name) for name in (*folders, *files)):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
                    raise CheckpointError(f"{path} is a link that leads out of the run: put what it names in its place")
                if not (path.is_file() or path.is_dir()) and os.path.lexists(path):  # else it went meanwhile
                    raise CheckpointError(f"{path} is neither a file nor a folder: remove it")

    @cached_property
    def given(self) -> RunConfig:
        """Return the options in config.json, as they are there.

        Raises OptionError: not those of a run."""
        path = self.path / "config.json"
        try:
            config: RunConfig = from_dict(RunConfig, read_json(path))
        except OptionError as error:
            raise OptionError(f"config {path}: {error}") from error
        return config

    @cached_property
    def config(self) -> RunConfig:
        """Return the options of the run, with its files where they are now."""
        return self.at_present(self.given)

    def at_present(self, config: RunConfig) -> RunConfig:
        """Resolve relative paths against the directory in which this run started, where something is there.

        A split that is gone gives way to the run's own split.csv."""
        if self.started_in is not None and str(self.started_in) != working_directory():
            config = from_directory(config, self.started_in)
        own, split = self.split_file, config.data.split
        return config.changed(data={"split": own}) if split and not split.is_file() and own.is_file() else config

    @property
    def split_file(self) -> Path:
        """Return the table of images and splits, which need not be there."""
        return self.path / "split.csv"

    @cached_property
    def meta(self) -> dict[str, Any]:
        """Return the table of meta.json, about the start of the run."""
        path = self.path / "meta.json"
        values = read_json(path, **META)
        names = values["class_names"]
        refuse_damage(path, values, ["class_names"] * (not names or not all(isinstance(name, str) for name in names)))
        return values

    @cached_property
    def about(self) -> dict[str, Any]:
        """Return `meta`, or nothing where that is missing or damaged."""
        with suppress(FileNotFoundError, CheckpointError):
            return self.meta
        return {}

    @property
    def requested(self) -> RunConfig | None:
        """Return the options as they were given; None: meta.json does not say."""
        with suppress(OptionError):
            if "requested" in self.about:
                return from_dict(RunConfig, self.about["requested"])
        return None

    @property
    def started_in(self) -> Path | None:
        """Return the directory the run started in; None: meta.json does not say."""
        directory = self.about.get("directory")
        return None if directory is None else Path(directory)

    @property
    def moment(self) -> str:
        """Return when a run was started or kept, the same in copies; empty: unknown."""
        return self.kept or self.started

    @property
    def started(self) -> str:
        return str(self.about.get("started", ""))

    @property
    def kept(self) -> str:
        """Return when a command of several kept this run; empty: none did."""
        return str(self.about.get("kept") or "")

    @property
    def is_of_this_command(self) -> bool:
        """Return whether this very command line began the run, neutral options aside."""
        return [*telling(self.about.get("argv", ()))] == [*telling(command_line())]

    @property
    def seen(self) -> list[str]:
        """Return lines about images that the run's start was trained on."""
        said = self.about.get("seen")
        return [str(line) for line in said] if isinstance(said, list) else []

    def keep(self) -> None:
        """Let `latest` mean this run, the one that a command kept of several."""
        self.write_meta(self.meta | {"kept": now()})

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Return the table of summary.json: how far the run is, what it found."""
        path = self.path / "summary.json"
        values = read_json(path, **SUMMARY)
        if values["status"] == "finished":
            require_kinds(path, values, FINISHED)
            test, images = values.get("test"), values["images"]
            holds = {
                "best": isinstance(values["best"].get("epoch"), int),
                "test": test is None or are_scores(test),
                "images": all(isinstance(images.get(split), int) for split in ("train", "val", *["test"] * bool(test))),
            }
            refuse_damage(path, values, [name for name, right in holds.items() if not right])
        return values

    @cached_property
    def progress(self) -> dict[str, Any]:
        """Return `summary`; one that is lost says running, and an epoch for best weights."""
        with suppress(FileNotFoundError, CheckpointError):
            return self.summary
        return {"status": "running", "epochs": len(self.checkpoints("best"))}

    @property
    def is_finished(self) -> bool:
        return self.is_run and self.progress["status"] == "finished"

    @property
    def unfinished(self) -> str:
        """Return a line if the run ended early, with how it continues; else empty."""
        with suppress(FileNotFoundError, CheckpointError):
            if (status := self.summary["status"]) != "finished":
                ended = "is running or was killed" if status == "running" else f"was {status}"
                epochs = f"{self.summary['epochs']} of {self.summary.get('planned_epochs')}"
                return f"{self} {ended} after epoch {epochs}; {command('resume', self.path)} continues it"
        return ""

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return metrics.csv, a row per epoch: numbers, None where a cell is empty."""
        path = self.path / "metrics.csv"
        require_file(path)
        try:
            rows = read_rows(path, WHOLE)
            if not rows or any(not row[name] for row in rows for name in WHOLE):
                raise ValueError("a row or a cell is missing")
            return [{name: float(text) if text else None for name, text in row.items()} for row in rows]
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None

    def validated(self, epoch: int) -> dict[str, float]:
        """Return the validation scores of the best epoch. Raises CheckpointError: metrics.csv has lost them."""
        rows = (scores_in(row) for row in self.history if row["epoch"] == epoch)
        found = [scores for scores in rows if are_scores(scores)]
        if not found:
            raise CheckpointError(
                f"{self}/metrics.csv has no row of scores for epoch {epoch}, which is the best: it was cut short"
            )
        best = self.progress.get("best") or {}
        for scores in found:  # an epoch has two where the run once ended within it
            if all(best.get(name, scores[name]) == scores[name] for name in ("accuracy", "loss")):
                return scores
        raise CheckpointError(f"{self}/metrics.csv is of another run: its best epoch is none of summary.json's")

    @cached_property
    def heads(self) -> dict[str, Any]:
        """Return the scores of the parts of a fitted head."""
        return read_json(self.path / "heads.json")

    def checkpoints(self, kind: str) -> list[Path]:
        """List the checkpoints of a kind (`step` or `best`), newest first."""
        found = (self.path / "checkpoints").glob(f"{kind}*.safetensors")
        whole = [path for path in found if CHECKPOINT.fullmatch(path.stem) and path.is_file()]
        return sorted(whole, key=lambda path: (len(path.stem), path.stem), reverse=True)  # the longer number is larger

    @property
    def best(self) -> Path:
        """Checkpoint of the best epoch. Raises CheckpointError: there is none."""
        for path in self.checkpoints("best"):
            return path
        raise CheckpointError(f"{self}/checkpoints has no best.safetensors, the weights of the best epoch")

    def changed_since(self, config: RunConfig, plain: dict[str, Any]) -> str:
        """List the options that decide the run's bits and differ from a checkpoint's, `plain`."""
        begun = self.at_present(from_dict(RunConfig, plain))
        fixed = (option for option in run_options() if Movable not in option.marks)
        pairs = ((option, option.of(begun), option.of(config)) for option in fixed)
        changes = [f"{o.section}.{o.name} from {then!r} to {now!r}" for o, then, now in pairs if then != now]
        return ", ".join(changes[:3]) + f" and {len(changes) - 3} more" * (len(changes) > 3)

    def write_config(self, config: RunConfig) -> None:
        write_json(self.path / "config.json", to_dict(config))

    def write_meta(self, values: dict[str, Any]) -> None:
        write_json(self.path / "meta.json", values)

    def write_summary(self, values: dict[str, Any]) -> None:
        write_json(self.path / "summary.json", values)

    def write_heads(self, scores: dict[str, Any]) -> None:
        write_json(self.path / "heads.json", scores)

    def write_history(self, rows: list[dict[str, Any]]) -> None:
        """Write all rows of the history, each float in full precision."""
        cells = ([row.get(name) for name in rows[0]] for row in rows)
        write_text(self.path / "metrics.csv", csv_text(list(rows[0]), cells))


def runs_below(folder: Path, *, above: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield the run directories in a folder, at any depth; hidden ones are unfinished.

    `above`: folders that it lies in, to which a link may lead back."""
    here = folder.resolve()
    for path in folder.iterdir() if folder.is_dir() and here not in above else ():
        if path.name.startswith(".") or not path.is_dir():
            continue
        if (path / "config.json").is_file():
            yield path
        else:
            yield from runs_below(path, above=(*above, here))


@contextmanager
def untrusted_run(*, may_fetch_images: bool = False) -> Iterator[None]:
    """Forbid network, downloads and unpacking: a run's files may be a stranger's.

    `may_fetch_images`: images may be fetched, as a person named the folder for them.
    """
    limits = (HUB_OFFLINE,) if may_fetch_images else (NO_DOWNLOADS, HUB_OFFLINE)
    tokens = [(limit, limit.set(True)) for limit in limits]
    try:
        yield
    finally:
        for limit, token in tokens:
            limit.reset(token)


def write_json(path: Path, values: dict[str, Any]) -> None:
    # What of a name is no UTF-8 becomes \udcXX, which JSON reads back as it was.
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def read_json(path: Path, **kinds: Any) -> dict[str, Any]:
    """Read a JSON file with at least values of these `kinds`.

    Raises FileNotFoundError: no such file. CheckpointError: it holds something else."""
    require_file(path)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it is not readable JSON ({str(error)[:100]})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is damaged: it holds no table of values")
    require_kinds(path, values, kinds)
    return values


def read_if_whole(path: Path, **kinds: Any) -> dict[str, Any] | None:
    """Read JSON like `read_json`, but return None for a missing or damaged file."""
    with suppress(FileNotFoundError, CheckpointError):
        return read_json(path, **kinds)
    return None


def require_kinds(path: Path, values: dict[str, Any], kinds: dict[str, Any]) -> None:
    refuse_damage(path, values, [name for name, kind in kinds.items() if not isinstance(values.get(name), kind)])


def refuse_damage(path: Path, values: dict[str, Any], wrong: list[str]) -> None:
    """Raise CheckpointError that names the first of the wrong entries, if there are any."""
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong[0]} is {values.get(wrong[0])!r:.100}")


def require_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {path.name}: the run is not finished, or not whole")


def scores_in(row: dict[str, Any]) -> dict[str, float]:
    """Return the validation scores of a row of metrics.csv."""
    return {
        name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_") and value is not None
    }


def are_scores(values: Any) -> bool:
    """Return whether this is a table of numbers that has those of every split."""
    if not isinstance(values, dict) or not {*SCORES} <= values.keys():
        return False
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values.values())


def now() -> str:
    """Return the time in UTC as text that sorts like it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def telling(words: Iterable[Any]) -> Iterator[Any]:
    """Yield the words of a command line without `--auto-resume` and `--jobs N`."""
    rest = iter(words)
    for word in rest:
        if word == "--jobs":
            next(rest, None)
        elif word != "--auto-resume" and not str(word).startswith("--jobs="):
            yield word
