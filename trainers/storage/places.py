"""Paths among the options of a run: relative ones count from the directory in which it started.

Its meta.json records that directory, so a run is opened from any other. Images that moved are named by `resume --data`.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import DataError, OptionError
from common.shell import command
from datasets.config import DATASETS, HUB_PREFIX
from trainers.config import RunConfig
from trainers.storage.run_folder import read_if_whole, working_directory


def with_present_places(config: RunConfig, run_dir: Path) -> RunConfig:
    """Resolve relative paths against the directory in which a run started, where something is there.

    A split that is gone gives way to the run's own split.csv.
    """
    directory = started_in(run_dir)
    if directory is not None and str(directory) != working_directory():

        def place(value: Any) -> Any:
            named = value is None or not is_there(directory / value)
            return value if named else type(value)(directory / value)

        def of_weights(value: str | None) -> str | None:
            return value if is_a_name(value) else place(value)

        data = {name: place(getattr(config.data, name)) for name in ("root", "split", "exclude")}
        source = config.data.source if is_a_set(config.data.source) else place(config.data.source)
        networks = tuple(replace(network, weights=of_weights(network.weights)) for network in config.model.networks)
        model = {"weights": of_weights(config.model.weights), "networks": networks}
        config = config.changed(model=model, data=data | {"source": source})
    own, split = run_dir / "split.csv", config.data.split
    return config.changed(data={"split": own}) if split and not split.is_file() and own.is_file() else config


def started_in(run_dir: Path) -> Path | None:
    """Read from its meta.json in which directory a run started; None: it does not say."""
    directory = (read_if_whole(run_dir / "meta.json") or {}).get("directory")
    return None if directory is None else Path(directory)


def is_there(path: Path) -> bool:
    """Return whether there is a file or a folder, or a file that a pattern such as FOLDER/*.tar means."""
    return path.exists() or ("*" in path.name and any(path.parent.glob(path.name)))


def is_a_set(source: str) -> bool:
    """Return whether this names a built-in set or one of the hub, and no path."""
    return source in DATASETS or source.startswith(HUB_PREFIX)


def is_a_name(value: str | None) -> bool:
    """Return whether weights are named as a model's are, not by a path."""
    return value is None or not (set(value) & {"/", os.sep} or Path(value).suffix)


def same_source(source: str, meta: dict[str, Any]) -> bool:
    """Return whether a path means the images here that it meant where a run with this meta.json started."""
    then = Path(meta.get("directory") or "", source)
    return is_a_set(source) or not is_there(then) or os.path.realpath(then) == os.path.realpath(source)


def require_images(run_dir: Path, config: RunConfig) -> None:
    """Raise DataError where a run's images are gone, with the command that says where they are now."""
    source = config.data.source
    if (read_if_whole(run_dir / "meta.json") or {}).get("own_images"):
        raise DataError(
            f"{run_dir} was trained on Datasets of a program, which no command finds again: in Python give them to"
            f" resume({str(run_dir)!r}, dataloaders=..., model=...); evaluate --data scores other images"
        )
    if is_a_set(source) or is_there(Path(source).expanduser()):
        return
    place = ((started_in(run_dir) or Path()) / source).absolute()
    again = command("resume", run_dir, "--data", "NEW_PLACE")
    raise DataError(
        f"{run_dir} was trained on the images at {place}, and there are none now; if they moved: {again}, which makes"
        " sure that they are the same"
    )


def moved_to(config: RunConfig, place: str) -> RunConfig:
    """Let the options of a run name another place of its images.

    Raises OptionError: a built-in set, or one of the hub, has a name and no place."""
    for source in (config.data.source, place):
        if is_a_set(source):
            raise OptionError(f"--data {place}: {source} is the name of a set; --data-root says where such a set lies")
    return config.changed(data={"source": str(Path(place).expanduser().absolute())})
