"""Find the files that the cells of a table mean."""

import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from common.text import plain_path
from datasets.images import is_image_name
from datasets.sources.image_folder import leads_back, list_folder
from datasets.sources.reading import SPLIT_FOLDERS

MOST_FILES = 1_000_000
"""Files below a table's folder that are listed, at most."""


class TableFiles:
    """Finds files in the folder of a table and in the folders next to it; lists them once, if a cell is not exact."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        training = [name for name in list_folder(root)[0] if SPLIT_FOLDERS.get(name.lower(), "train") == "train"]
        self._folders = ["", *(f"{name}/" for name in training)]

    def find(self, cell: str) -> list[str]:
        """Return the files that a cell may mean, relative to the table; several: it is not clear which.

        A cell is a path as it is written, or with Windows' \\, without its extension, in another spelling of Unicode,
        or in a folder next to the table.
        """
        for path in (cell, cell.replace("\\", "/")):
            if path and os.path.isfile(os.path.join(self._root, path)):
                return [path]
        path, found = os.path.normpath(plain_path(cell)), dict[str, str]()
        for folder in [] if os.path.isabs(path) else self._folders:
            for file in (folder + path, *self._by_name.get(plain_path(folder) + path, ())):
                place = os.path.join(self._root, file)
                if os.path.isfile(place):
                    found.setdefault(os.path.realpath(place), file)
        return [*found.values()]

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        """Return the files below the folder by other names: of an image without its extension, or spelled otherwise."""
        names = defaultdict(list)
        for file in islice(self._files(), MOST_FILES):
            name = plain_path(file)
            stem = os.path.splitext(name)[0]
            if name != file:
                names[name].append(file)
            if is_image_name(name) and not is_image_name(stem):
                names[stem].append(file)
        return names

    def _files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self._root, followlinks=True):
            folders[:] = [name for name in folders if not leads_back(os.path.join(folder, name))]
            for name in sorted(files):
                yield os.path.join(folder, name).removeprefix(os.path.join(self._root, ""))

    @cached_property
    def _by_stem(self) -> dict[str, str]:
        """Return the first image of each name, without its folder and extension, in lower case."""
        images = (file for files in self._by_name.values() for file in files if is_image_name(file))
        return {_stem(file): file for file in sorted(images, reverse=True)}

    def nearest(self, cell: str) -> str:
        """Return the end of a message: a file of the same name in another folder, or with another extension."""
        near = self._by_stem.get(_stem(cell))
        return f"; there is {near}" if near else ""


def _stem(path: str) -> str:
    return os.path.splitext(plain_path(path).rpartition("/")[2])[0].casefold()
