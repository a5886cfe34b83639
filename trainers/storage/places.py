"""Paths of the files that the options of a run name: relative ones count from the directory in which it started.

Its meta.json records that directory, so a run is opened from any other. Images that moved are named by `resume --data`.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import DataError, OptionError
from common.shell import command
from datasets.config import DATASETS, HUB_PREFIX, DataConfig
from trainers.config import RunConfig
from trainers.storage.run_folder import read_if_whole, working_directory
from vit.config import Network


def started_in(run_dir: Path) -> Path | None:
    """The directory in which a run started, if its meta.json says so."""
    directory = (read_if_whole(run_dir / "meta.json") or {}).get("directory")
    return None if directory is None else Path(directory)


def with_present_places(config: RunConfig, run_dir: Path) -> RunConfig:
    """The options of a run with its files where they are: relative paths below the directory where it started, if it
    was another one; and its own split.csv in place of a split that is gone."""
    directory = started_in(run_dir)
    if directory is not None and str(directory) != working_directory():
        weights, networks = config.model.weights, config.model.networks
        config = config.changed(
            model={"weights": weights_placed(weights, directory), "networks": networks_placed(networks, directory)},
            data=vars(data_placed(config.data, directory)),
        )
    own = run_dir / "split.csv"
    if config.data.split is not None and not config.data.split.is_file() and own.is_file():
        return config.changed(data={"split": own})
    return config


def data_placed(data: DataConfig, directory: Path) -> DataConfig:
    """Resolve the paths among the options of the images alone."""
    values = {name: place_of(getattr(data, name), directory) for name in ("root", "split", "exclude")}
    source = data.source if is_a_set(data.source) else place_of(data.source, directory)
    return DataConfig(**vars(data) | values | {"source": source})


def place_of(value: Any, directory: Path) -> Any:
    """A path below `directory` where it is one and something is there; else the value as it is."""
    if value is None:
        return value
    path = directory / value
    return type(value)(path) if is_there(path) else value


def weights_placed(weights: str | None, directory: Path) -> str | None:
    """Like `place_of`, of weights, which may have a name in place of a path."""
    return weights if is_a_name(weights) else place_of(weights, directory)


def networks_placed(networks: Sequence[Network], directory: Path) -> tuple[Network, ...]:
    """The networks of a mixture with the runs that trained them where they are."""
    return tuple(replace(each, weights=weights_placed(each.weights, directory)) for each in networks)


def is_there(path: Path) -> bool:
    """Return whether there is a file or a folder, or a file that a pattern such as FOLDER/*.tar means."""
    return path.exists() or ("*" in path.name and any(path.parent.glob(path.name)))


def is_a_set(source: str) -> bool:
    """Return whether this names a built-in set or one of the hub, and no path."""
    return source in DATASETS or source.startswith(HUB_PREFIX)


def is_a_name(value: str | None) -> bool:
    """Return whether weights are named as a model's are, not by a path."""
    return value is None or not (set(value) & {"/", os.sep} or Path(value).suffix)


def require_images(run_dir: Path, config: RunConfig) -> None:
    """Raise DataError where a run's images are gone, with the command that says where they are now."""
    source = config.data.source
    if is_a_set(source) or is_there(Path(source).expanduser()):
        return
    place = ((started_in(run_dir) or Path()) / source).absolute()
    again = command("resume", run_dir, "--data", "NEW_PLACE")
    raise DataError(
        f"{run_dir} was trained on the images at {place}, and there are none now; if they moved: {again}, which makes"
        " sure that they are the same"
    )


def moved_to(config: RunConfig, place: str) -> RunConfig:
    """The options of a run whose images are at another place now. Raises OptionError: one is a built-in set, or of the
    hub, which have names."""
    for source in (config.data.source, place):
        if is_a_set(source):
            raise OptionError(f"--data {place}: {source} is the name of a set; --data-root says where such a set lies")
    return config.changed(data={"source": str(Path(place).expanduser().absolute())})


def same_source(source: str, meta: dict[str, Any]) -> bool:
    """Return whether a relative path means the same images here as it did where a run started, which its meta.json
    tells."""
    path = Path(source).expanduser()
    if is_a_set(source) or path.is_absolute() or "directory" not in meta:
        return True
    then, now = Path(meta["directory"]) / path, path.absolute()
    return then == now or not then.exists() or (now.exists() and then.samefile(now))
