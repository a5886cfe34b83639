"""Folder of everything that belongs to one set of images, `runs/<name>`, and names that are free in it. No torch here.

A file in it names the set, so that another set of that name gets a folder of its own. Relative paths among the options
of a run count from the directory in which it started.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from common.errors import OptionError
from common.files import cut_name, write_text
from datasets.built_in import BUILT_IN
from datasets.config import HUB_PREFIX, data_name, data_place
from trainers.config import OutputConfig, RunConfig
from trainers.system.folder_lock import is_held, refuse_held

MARKER = ".set"


def data_folder(output: OutputConfig, source: str) -> Path:
    """Return the folder of a set: `runs/<name>`, unless that is another's. Nothing is made yet.

    Raises OptionError: it lies in the folder of images, which would be another set with it."""
    plain, place = output.output_dir / cut_name(data_name(source)), data_place(source)
    if os.path.isdir(place) and Path(os.path.realpath(plain)).is_relative_to(place):
        raise OptionError(
            f"{plain} lies in {source}, among the images: name another folder with --output-dir; for check, clean and"
            " next with --output"
        )
    mark = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    own = plain.with_name(f"{plain.name}-{mark}")
    return own if own.exists() or owner(plain) not in ("", place) else plain


def claimed_folder(output: OutputConfig, source: str) -> Path:
    """Make the folder of a set, and mark it as that of this set."""
    folder = data_folder(output, source)
    folder.mkdir(parents=True, exist_ok=True)
    if not owner(folder):
        write_text(folder / MARKER, data_place(source))
    return folder


def home_of(run_dir: Path) -> Path | None:
    """Return the folder of a set that a run lies in, else None."""
    above = (*run_dir.parents, *run_dir.absolute().parents)
    return next((folder for folder in above if (folder / MARKER).is_file()), None)


def owner(folder: Path) -> str:
    """Return the place of the set whose folder this is; empty where nothing says so."""
    with suppress(OSError):
        return os.fsdecode((folder / MARKER).read_bytes())  # as the place is decoded, also in a locale without UTF-8
    return ""


def plan_run_directory(config: RunConfig) -> Path:
    """Return the folder that this run will get (see `free_folder`)."""
    model = cut_name(config.model.name.replace(":", "_").replace("/", "_"))
    fold = "" if config.data.fold is None else f"_fold{config.data.fold}"
    going_on = " add --auto-resume to continue it,"
    if config.output.auto_resume:
        going_on = " it was begun with other options, with which the same command continues it,"
    return free_folder(config.output, config.data.source, f"{model}_s{config.train.seed}{fold}", going_on=going_on)


def named_folder(config: RunConfig) -> Path:
    """Return the folder of a run with a name, even before it exists."""
    assert config.output.run_name is not None, "a run without a name is found again by its options"
    return data_folder(config.output, config.data.source) / config.output.run_name


TUNING = "tuning"
"""Folder of runs that only try a learning rate, which TensorBoard does not show among the others."""


def tuning(output: OutputConfig) -> OutputConfig:
    return replace(output, output_dir=output.output_dir / TUNING)


def features_folder(output: OutputConfig, source: str) -> Path:
    """Return the folder of a set's kept features.

    Runs that only try a learning rate share it with the others."""
    shared = output.output_dir.parent if output.output_dir.name == TUNING else output.output_dir
    return data_folder(replace(output, output_dir=shared), source) / "features"


def free_folder(output: OutputConfig, source: str, name: str, *, going_on: str = "") -> Path:
    """Return a folder that is free in that of a set (see `free_in`)."""
    return free_in(data_folder(output, source), output, name, data_folder(tuning(output), source), going_on=going_on)


def free_in(parent: Path, output: OutputConfig, name: str, *others: Path, going_on: str = "") -> Path:
    """Return a folder that is free in `parent`: `--run-name`, else `name`.

    That is numbered from the second on, and no folder there or in the `others` begins with it. Nothing is created yet,
    so that a wrong input leaves nothing behind. A name is taken, too, if a process works in a folder of it that
    somebody has removed. Raises OptionError: `--run-name` is taken, with how a run in its folder continues."""
    if output.run_name is not None:
        folder = parent / output.run_name
        if folder.exists():
            going_on = going_on if (folder / "config.json").is_file() else ""
            raise OptionError(f"{folder} exists already;{going_on} choose another --run-name, or remove it")
        refuse_held(folder)
        return folder
    taken = [path.name for folder in (parent, *others) for path in folder.glob("*")]
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    # The folds and the runs of a comparison begin with its name: another would take up those of one that was removed.
    free = (name for name in names if not any(f"{other}_".startswith(f"{name}_") for other in taken))
    return next(folder for folder in map(parent.joinpath, free) if not is_held(folder))


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
    """Return whether a file or folder is there, or a file of FOLDER/*.tar."""
    return path.exists() or ("*" in path.name and any(path.parent.glob(path.name)))


def is_a_set(source: str) -> bool:
    """Return whether this names a built-in set or one of the hub, and no path."""
    return source in BUILT_IN or source.startswith(HUB_PREFIX)


def is_a_name(value: str | None) -> bool:
    """Return whether weights are named as a model's are, not by a path."""
    return value is None or not (set(value) & {"/", os.sep} or Path(value).suffix)
