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
"""Files that are searched for one of a cell's name."""


class TableFiles:
    """Finds files in the folder of a table and in the folders next to it; lists each folder at most once."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        training = [name for name in list_folder(root)[0] if SPLIT_FOLDERS.get(name.lower(), "train") == "train"]
        self._folders = ["", *(f"{name}/" for name in training)]
        self._listings: dict[str, dict[str, list[str]]] = {}
        self._by_stem: dict[str, str] | None = None

    def find(self, cell: str) -> list[str]:
        """Return the files that a cell may mean, relative to the table; several: it is not clear which.

        A cell is a path as it is written, or with Windows' \\, without its extension, in another spelling of Unicode,
        or in a folder next to the table.
        """
        if cell and os.path.isfile(os.path.join(self._root, cell)):
            return [cell]
        found: dict[str, str] = {}
        for folder in [] if os.path.isabs(cell) or not cell else self._folders:
            for file in self._alike(folder + plain_path(cell)):
                place = os.path.join(self._root, file)
                if os.path.isfile(place):
                    found.setdefault(os.path.realpath(place), file)
        return [*found.values()]

    def _alike(self, path: str) -> list[str]:
        """Return the paths that may be meant, with each part as it is written or as the folder has it."""
        places = [""]
        for part in os.path.normpath(path).split("/"):
            places = [
                os.path.join(place, name) for place in places for name in (part, *self._listing(place).get(part, ()))
            ]
        return places

    def _listing(self, folder: str) -> dict[str, list[str]]:
        """List a folder: other spellings -> entries; an image's other spellings are without its extension, too."""
        if folder not in self._listings:
            listing = self._listings[folder] = {}
            with suppress(OSError):
                for entry in sorted(os.listdir(os.path.join(self._root, folder))):
                    name, stem = plain_path(entry), os.path.splitext(plain_path(entry))[0]
                    for key in [name] * (name != entry) + [stem] * (is_image_name(name) and not is_image_name(stem)):
                        listing.setdefault(key, []).append(entry)
        return self._listings[folder]

    def nearest(self, cell: str) -> str:
        """Return the end of a message: a file of the same name in another folder, or with another extension."""
        if self._by_stem is None:
            files = (os.path.join(folder, file) for folder, _, files in os.walk(self._root) for file in sorted(files))
            images = [file for file in islice(files, MOST_NAMES) if is_image_name(file)]
            self._by_stem = {_stem(file): os.path.relpath(file, self._root) for file in reversed(images)}
        near = self._by_stem.get(_stem(cell))
        return f"; there is {near}" if near else ""


def _stem(path: str) -> str:
    return os.path.splitext(plain_path(path).rpartition("/")[2])[0].casefold()
