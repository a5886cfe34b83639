"""A run's folder on disk: everything a later command, a person or a script needs, in plain files."""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, OptionError
from common.files import cut_name, write_text
from common.tables import csv_text
from trainers.config import OutputConfig, RunConfig, to_dict
from trainers.storage.data_folder import data_folder


def plan_run_directory(config: RunConfig) -> Path:
    """Return the folder that this run will get (see `free_folder`)."""
    model = cut_name(config.model.name.replace(":", "_").replace("/", "_"))
    fold = "" if config.data.fold is None else f"_fold{config.data.fold}"
    return free_folder(config.output, config.data.source, f"{model}_s{config.train.seed}{fold}")


def tuning(output: OutputConfig) -> OutputConfig:
    """Return the options of runs that only try a learning rate, which TensorBoard does not show among the others."""
    return replace(output, output_dir=output.output_dir / "tuning")


def free_folder(output: OutputConfig, source: str, name: str) -> Path:
    """Return a folder that is free: `--run-name`, else `name`, numbered from the second on.

    Nothing is created yet, so that a wrong input leaves nothing behind. Raises OptionError: `--run-name` is taken."""
    parent = data_folder(output, source)
    if output.run_name is not None:
        folder = parent / output.run_name
        if folder.exists():
            going_on = " add --auto-resume to go on with it," if (folder / "config.json").is_file() else ""
            if going_on and output.auto_resume:
                going_on = " it was begun with other options, with which the same command goes on with it,"
            raise OptionError(f"{folder} exists already;{going_on} choose another --run-name, or remove it")
        return folder
    taken = [path.name for folder in (parent, data_folder(tuning(output), source)) for path in folder.glob("*")]
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    # The folds and the runs of a comparison begin with its name: another would take up those of one that was removed.
    return parent / next(name for name in names if not any(f"{other}_".startswith(f"{name}_") for other in taken))


SNAPSHOTS = "snapshots"
"""Folder of a run with its weights on the way."""

META = {"data_fingerprint": str, "threads": int, "versions": dict}
"""Entries that meta.json holds at least."""
SUMMARY = {"best": dict, "seconds": (int, float), "parameters": int, "images_seen": (int, float)}
"""Entries that summary.json of a finished run holds."""
SCORES = ("accuracy", "loss", "macro_f1", "ece")
"""Scores that every split of a run has."""
KNOWN = {"requested": dict, "versions": dict, "processes": int, "git": (dict, type(None)), "class_names": list,
         "directory": (str, type(None))}  # fmt: skip
"""Types of these values, where a file has them."""


def write_json(path: Path, values: dict[str, Any]) -> None:
    # What of a name is no UTF-8 becomes \udcXX, which JSON reads back as it was.
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n", errors="backslashreplace")


def read_json(path: Path, **kinds: Any) -> dict[str, Any]:
    """Read a JSON file of a run with at least values of these `kinds`. Raises FileNotFoundError: no such file.
    CheckpointError: it holds something else."""
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {path.name}: the run is not finished, or not whole")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it is not readable JSON ({str(error)[:100]})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is damaged: it holds no table of values")
    expected: dict[str, Any] = {name: kind for name, kind in KNOWN.items() if name in values} | kinds
    wrong = [name for name, kind in expected.items() if not isinstance(values.get(name), kind)]
    if values.get("test") is not None and not are_scores(values["test"]):
        wrong.append("test")
    if not counts_images(values):
        wrong.append("images")
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong[0]} is {values.get(wrong[0])!r:.100}")
    return values


def counts_images(values: dict[str, Any]) -> bool:
    """Return whether the images of each split that has scores are counted, in a file that counts any."""
    if "images" not in values:
        return True
    counts, scored = values["images"], ["val", *["test"] * bool(values.get("test"))]
    return isinstance(counts, dict) and all(isinstance(counts.get(split), int) for split in scored)


def are_scores(values: Any) -> bool:
    """Return whether this is a table of numbers that has those of every split."""
    if not isinstance(values, dict) or not {*SCORES} <= values.keys():
        return False
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values.values())


def read_if_whole(path: Path, **kinds: Any) -> dict[str, Any] | None:
    """Like `read_json`, but None if the file is missing or damaged."""
    with suppress(FileNotFoundError, CheckpointError):
        return read_json(path, **kinds)
    return None


def write_metrics_csv(path: Path, history: list[dict[str, Any]]) -> None:
    """Write all rows of the history, each float in full precision."""
    write_text(path, csv_text(list(history[0]), ([row.get(name) for name in history[0]] for row in history)))


def write_run_config(folder: Path, config: RunConfig) -> None:
    write_json(folder / "config.json", to_dict(config))


def now() -> str:
    """Return the time in UTC as text that sorts like it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def moment(run_dir: Path) -> str:
    """Read when a run was started, or kept by a command of several; copies of its files keep that. Empty: unknown."""
    meta = read_if_whole(run_dir / "meta.json") or {}
    return str(meta.get("kept") or meta.get("started") or "")


def command_line() -> list[str]:
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def is_this_command(argv: list[Any]) -> bool:
    """Return whether this command line was given before, but for options that change no result."""
    return [*telling(argv)] == [*telling(command_line())]


def telling(words: Iterable[Any]) -> Iterator[Any]:
    """Yield the words of a command line without `--auto-resume` and `--jobs N`."""
    rest = iter(words)
    for word in rest:
        if word == "--jobs":
            next(rest, None)
        elif word != "--auto-resume" and not str(word).startswith("--jobs="):
            yield word


def working_directory() -> str | None:
    """Return the working directory of this process; None where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None
