"""The files that the cells of a table mean."""

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path

from common.text import plain_path
from datasets.images import is_image_name
from datasets.sources.image_folder import list_folder
from datasets.sources.reading import SPLIT_FOLDERS

MOST_NAMES = 200_000
"""Files that are looked at for one of the name of a cell."""


class TableFiles:
    """Finds files in the folder of a table and in the folders beside it, each of which is listed at most once."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        beside = list_folder(root)[0]
        self._folders = [f"{name}/" for name in beside if SPLIT_FOLDERS.get(name.lower(), "train") == "train"]
        self._listings: dict[str, dict[str, str]] = {}
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
            places = {os.path.realpath(os.path.join(self._root, file)): file for file in reversed(found)}
            if files := [file for place, file in places.items() if os.path.isfile(place)]:
                return files[::-1]
        return []

    def _alike(self, path: str) -> list[str]:
        """The places that a relative path may mean, but for the spelling of Unicode and a missing extension."""
        if os.path.isabs(path):
            return []
        if os.path.exists(os.path.join(self._root, path)):
            return [path]
        folder, _, name = plain_path(path).rpartition("/")
        keys, found = [name, *[f"{name}.*"] * (not is_image_name(name))], []
        for place in self._alike(folder) if folder else [""]:
            listed = [self._listing(place).get(key, "") for key in keys]
            found += [f"{place}/{entry}".lstrip("/") for entry in "/".join([name, *filter(None, listed)]).split("/")]
        return found

    def _listing(self, folder: str) -> dict[str, str]:
        """The entries of a folder, with / between several: images by `NAME.*`, other spellings by the plain one."""
        if folder not in self._listings:
            listing = self._listings[folder] = {}
            with suppress(OSError):
                for entry in sorted(os.listdir(os.path.join(self._root, folder))):
                    name = plain_path(entry)
                    for key in [name] * (name != entry) + [f"{os.path.splitext(name)[0]}.*"] * is_image_name(name):
                        listing[key] = f"{listing[key]}/{entry}" if key in listing else entry
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
