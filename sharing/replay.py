"""A finished run, or a comparison, as plain values that every tracker takes: read from its files, nothing computed."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets.config import data_name
from datasets.tables import read_rows
from trainers.config import to_dict
from trainers.errors import CheckpointError, report_damage
from trainers.storage.finished_run import read_given_config, read_result, refuse_links_out
from trainers.storage.run_folder import read_json

FIGURE = re.compile(r"(?P<tag>.+)_step_(?P<step>\d+)\.png")
SETTINGS_OF_A_TABLE = ("data", "verdict", "worst_class", "best_epoch", "runs", "scored")
"""Columns of table.csv that are no scores."""


@dataclass(frozen=True)
class Replay:
    """Content of one run for a tracker."""

    id: str
    """Sixteen hexadecimal digits made from what the run is, wherever its directory lies."""
    name: str
    """Short name in lists of runs, such as `compare/pretrained/10/s0`."""
    project: str
    """Name of the set of images."""
    settings: Mapping[str, str]
    """Options by their dotted names, such as `train.lr`, as text."""
    steps: Mapping[int, Mapping[str, float]]
    """Training step -> metric -> value, in the order of the steps."""
    pictures: Mapping[int, Mapping[str, Path]]
    """Training step -> name -> PNG file."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Final scores, as fractions, and costs."""

    @property
    def last_step(self) -> int:
        return max((*self.steps, *self.pictures), default=0)

    @cached_property
    def content(self) -> str:
        """SHA-256 of all but the names, with the bytes of the pictures: a run that went on has another one."""
        pictures = {
            f"{step} {name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for step, found in self.pictures.items()
            for name, path in found.items()
        }
        values = [self.id, self.settings, self.steps, self.scores, pictures]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode(errors="backslashreplace")).hexdigest()


def is_comparison(folder: Path) -> bool:
    return (folder / "compare.json").is_file() and not (folder / "config.json").is_file()


def replays_of_comparison(folder: Path) -> list[Replay]:
    """The runs of a comparison, and the comparison itself: its table and figures. Raises CheckpointError: it is not
    finished, or damaged."""
    refuse_links_out(folder)
    status = read_json(folder / "compare.json", status=str)
    if status["status"] != "finished":
        raise CheckpointError(f"comparison {folder} is {status['status']}: give its command again, and share it then")
    inside = sorted(path.parent for path in folder.glob("*/*/s*/config.json"))
    if not inside:
        raise CheckpointError(f"comparison {folder} has lost its runs: no {folder}/ARM/LABELS/s0 holds a config.json")
    runs = [replay_of_run(path) for path in inside]
    with report_damage(folder / "table.csv"):
        rows = read_rows(folder / "table.csv", ("arm", "labels_per_class"))
        settings, scores = {f"requested.{name}": text for name, text in flat(status.get("requested", {}))}, {}
        for row in rows:
            place = plain(f"{row['arm']} {row['labels_per_class']}")
            for name, text in row.items():
                if name in SETTINGS_OF_A_TABLE:
                    settings[f"{place}/{name}"] = text
                elif name not in ("arm", "labels_per_class") and text:
                    scores[f"{place}/{name}"] = float(text)
    whole = Replay(
        id=digest([run.id for run in runs]),
        name=plain(folder.resolve().name),
        project=runs[0].project,
        settings=settings,
        steps={},
        pictures=pictures_of(folder, last_step=0),
        scores=scores,
    )
    return [*runs, whole]


def replay_of_run(run_dir: Path) -> Replay:
    """Everything that a finished run found, from its files. Raises CheckpointError: it is not finished, or damaged."""
    refuse_links_out(run_dir)
    result, config = read_result(run_dir), to_dict(read_given_config(run_dir))
    meta, summary = read_json(run_dir / "meta.json"), read_json(run_dir / "summary.json")
    with report_damage(run_dir):
        steps: dict[int, dict[str, float]] = {}
        for row in result.epochs:
            found = {name: value for name, value in row.items() if value is not None and name != "step"}
            steps[int(row["step"])] = found
        scores = {f"best_val_{name}": value for name, value in result.val.items()}
        scores |= {f"test_{name}": value for name, value in (result.test or {}).items()}
        costs = {"total_seconds": "seconds", "parameters": "parameters", "trainable": "trainable"}
        scores |= {name: float(summary[key]) for name, key in costs.items() if key in summary}
        return Replay(
            id=identity(config, meta),
            name=plain(name_of(run_dir)),
            project=plain(data_name(config["data"]["source"])),
            settings=dict(flat(config)),
            steps=dict(sorted(steps.items())),
            pictures=pictures_of(run_dir, last_step=max(steps)),
            scores=scores | {"best_epoch": float(result.best_epoch)},
        )


def name_of(run_dir: Path) -> str:
    """The last part of a run's path; with those of its comparison, arm and labels where it is part of one."""
    path = run_dir.resolve()
    inside = len(path.parts) > 4 and is_comparison(path.parents[2])
    return "/".join(path.parts[-4 if inside else -1 :])


def identity(config: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """The digest of when and where a run started, on what, with which model and seed. It stays when the run is moved,
    evaluated again, or resumed for more epochs."""
    started = [meta.get(name) for name in ("started", "directory", "data_fingerprint")]
    place = [config["output"][name] for name in ("output_dir", "run_name")]
    return digest([started, place, config["model"], config["data"]["source"], config["train"]["seed"]])


def digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode(errors="backslashreplace")).hexdigest()[:16]


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Nested options as dotted names and texts."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", plain_text(value)


def plain_text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="backslashreplace").decode()


def plain(name: str) -> str:
    """A name with nothing in it but letters, digits and `_ - . /`, which every tracker takes."""
    return re.sub(r"[^A-Za-z0-9_\-./]+", "_", name).strip("_./") or "images"


def pictures_of(folder: Path, *, last_step: int) -> dict[int, dict[str, Path]]:
    """The PNG files of a folder's figures/ by their steps; those whose names hold none belong to the last one."""
    found: dict[int, dict[str, Path]] = defaultdict(dict)
    for path in sorted((folder / "figures").glob("*.png")):
        named = FIGURE.fullmatch(path.name)
        step, tag = (int(named["step"]), named["tag"]) if named else (last_step, path.stem)
        found[step][plain(tag)] = path
    return dict(sorted(found.items()))
