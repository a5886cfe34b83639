"""Paths among the options of a run: relative ones count from the directory in which it started."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets.config import DATASETS, HUB_PREFIX
from trainers.config import RunConfig


def from_directory(config: RunConfig, directory: Path) -> RunConfig:
    """Resolve the relative paths of options against a directory, where something is there."""

    def place(value: Any) -> Any:
        named = value is None or not is_there(directory / value)
        return value if named else type(value)(directory / value)

    def of_weights(value: str | None) -> str | None:
        return value if is_a_name(value) else place(value)

    data = {name: place(getattr(config.data, name)) for name in ("root", "split", "exclude")}
    source = config.data.source if is_a_set(config.data.source) else place(config.data.source)
    networks = tuple(replace(network, weights=of_weights(network.weights)) for network in config.model.networks)
    model = {"weights": of_weights(config.model.weights), "networks": networks}
    return config.changed(model=model, data=data | {"source": source})


def is_there(path: Path) -> bool:
    """Return whether there is a file or a folder, or a file that a pattern such as FOLDER/*.tar means."""
    return path.exists() or ("*" in path.name and any(path.parent.glob(path.name)))


def is_a_set(source: str) -> bool:
    """Return whether this names a built-in set or one of the hub, and no path."""
    return source in DATASETS or source.startswith(HUB_PREFIX)


def is_a_name(value: str | None) -> bool:
    """Return whether weights are named as a model's are, not by a path."""
    return value is None or not (set(value) & {"/", os.sep} or Path(value).suffix)
