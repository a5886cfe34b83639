"""The files that the cells of a table mean."""

import os
from collections import defaultdict
from contextlib import suppress
from itertools import islice
from pathlib import Path

from datasets.images import is_image_name
from datasets.sources.image_folder import list_folder
from datasets.sources.reading import SPLIT_FOLDERS
from datasets.text import plain_path

MOST_NAMES = 200_000
"""Files that are looked at for one of the name of a cell."""


class TableFiles:
    """Finds files in the folder of a table and in the folders beside it, each of which is listed at most once."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        beside = list_folder(root)[0]
        self._folders = [f"{name}/" for name in beside if SPLIT_FOLDERS.get(name.lower(), "train") == "train"]
        self._listings: dict[str, dict[str, list[str]]] = {}
        self._by_stem: dict[str, str] | None = None

    def find(self, cell: str) -> list[str]:
        """Return the files that a cell may mean, relative to the table; one where it is sure.

        They are as it is written, or without its extension, in another spelling of Unicode, with the \\ of Windows
        between folders, or in a folder beside the table.
        """
        for path in dict.fromkeys((cell, cell.replace("\\", "/"))) if cell else ():
            if os.path.isfile(os.path.join(self._root, path)):
                return [path]
            found = [file for folder in ("", *self._folders) for file in self._alike(folder + path)]
            if found := [file for file in found if os.path.isfile(os.path.join(self._root, file))]:
                return found
        return []

    def _alike(self, path: str) -> list[str]:
        """The files or folders of a relative path, but for the spelling of Unicode and a missing extension."""
        if os.path.isabs(path):
            return []
        if os.path.exists(os.path.join(self._root, path)):
            return [path]
        folder, _, name = plain_path(path).rpartition("/")
        keys = (name,) if is_image_name(name) else (name, f"{name}.*")
        listings = [self._listing(place) for place in (self._alike(folder) if folder else ("",))]
        return [file for listing in listings for key in keys for file in listing.get(key, ())]

    def _listing(self, folder: str) -> dict[str, list[str]]:
        """The entries of a folder by their plain names, images also by `NAME.*`."""
        if folder not in self._listings:
            listing = self._listings[folder] = defaultdict(list)
            with suppress(OSError):
                for entry in sorted(os.listdir(os.path.join(self._root, folder))):
                    name, path = plain_path(entry), f"{folder}/{entry}" if folder else entry
                    listing[name].append(path)
                    if is_image_name(name):
                        listing[f"{os.path.splitext(name)[0]}.*"].append(path)
        return self._listings[folder]

    def nearest(self, cell: str) -> str:
        """The end of a message: a file of the same name in another folder, or with another ending."""
        if self._by_stem is None:
            self._by_stem = {}
            files = ((folder, file) for folder, _, files in os.walk(self._root) for file in sorted(files))
            for folder, file in islice(files, MOST_NAMES):
                if is_image_name(file):
                    self._by_stem.setdefault(_stem(file), os.path.relpath(os.path.join(folder, file), self._root))
        near = self._by_stem.get(_stem(cell))
        return f"; there is {near}" if near else ""


def _stem(path: str) -> str:
    return os.path.splitext(plain_path(path).rpartition("/")[2])[0].casefold()
