"""The one walk through folders of pictures: what counts as a picture, what other programs left there, and links."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common.files import list_entries
from datasets.images import is_image_name

SYSTEM_FOLDERS = (
    "__macosx", "@eadir", "#recycle", "@recycle", "$recycle.bin", "system volume information", "lost+found",
)  # fmt: skip
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_UNREAD_PICTURES = (".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".svg", ".tga", ".ico", ".raw", ".psd")
Identity = tuple[int, int] | None
"""Device and inode of a folder; None of one that is gone."""


class Folder(NamedTuple):
    """Contents of a folder, without hidden and system files."""

    path: str
    """Relative to the root, which is empty."""
    images: list[str]
    """Names of images."""
    folders: dict[str, "Folder"]
    """Folders in it, by name."""
    odd: list[tuple[str, str, str]]
    """Kind of problem, path and detail of all else."""
    hidden: list[str]
    """Paths of pictures with hidden names, and of those in hidden folders: left out."""

    def filled(self) -> dict[str, int]:
        """Count the images of this folder and those below it, without empty ones."""
        own = {self.path: len(self.images)} if self.images else {}
        return own | {path: count for folder in self.folders.values() for path, count in folder.filled().items()}


def walk(root: str) -> Iterator[Folder]:
    """Yield a folder, then each one below it, sorted, links followed.

    The `folders` of each are filled when the walk ends. A folder that is open above by its inode is a link in a circle,
    and so is each further link to a folder of that circle. Raises OSError: the root cannot be listed.
    """
    real = Path(os.path.realpath(root))
    waiting = [(Folder("", [], {}, [], []), [_identity(path) for path in (*reversed(real.parents), real)])]
    circles = set[Identity]()
    while waiting:
        folder, above = waiting.pop()
        try:
            entries = list_entries(os.path.join(root, folder.path))
        except OSError as error:
            if not folder.path:
                raise
            folder.odd.append(("unreadable_folder", folder.path, error.strerror or str(error)))
            entries = []
        below = []
        for entry in entries:
            place = f"{folder.path}/{entry.name}" if folder.path else entry.name
            if not _is_dir(entry):
                _add_file(folder, entry, place)
                continue
            identity = _identity(entry.path)
            if identity in above:
                circles.update(above[above.index(identity) :])
            if identity in above or (identity in circles and entry.is_symlink()):
                folder.odd.append(("broken_link", place, "leads back to a folder above it"))
            elif is_hidden(entry.name):
                _add_hidden(folder, entry, place)
            else:
                folder.folders[entry.name] = Folder(place, [], {}, [], [])
                below.append((folder.folders[entry.name], [*above, identity]))
        yield folder
        waiting += reversed(below)


def list_folder(folder: Path | str) -> tuple[list[str], list[str]]:
    """Return the sorted names of the visible sub-folders and of the visible files."""
    entries = [entry for entry in list_entries(folder) if not is_hidden(entry.name)]
    return [entry.name for entry in entries if _is_dir(entry)], [entry.name for entry in entries if not _is_dir(entry)]


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def _add_file(folder: Folder, entry: os.DirEntry[str], place: str) -> None:
    name = entry.name.lower()
    if name.startswith(".") or name in _SYSTEM_FILES:
        folder.hidden.extend([place] * is_image_name(name))
    elif is_image_name(name) and (entry.is_symlink() or entry.is_file()):
        folder.images.append(entry.name)  # a link that leads nowhere is an image that cannot be read
    elif entry.is_symlink() and not os.path.exists(entry.path):
        folder.odd.append(("broken_link", place, f"-> {os.readlink(entry.path)}"))
    elif (suffix := os.path.splitext(name)[1]) in _UNREAD_PICTURES:
        target = "png" if suffix == ".gif" else "jpg"
        detail = f"{suffix}; to convert: magick mogrify -format {target} *{suffix}"
        folder.odd.append(("unread_picture", place, detail))
    else:
        suffix = suffix if entry.is_file() else "such"
        folder.odd.append(("unsupported_file", place, f"{suffix or 'no extension: such'} files are not read"))


def _add_hidden(folder: Folder, entry: os.DirEntry[str], place: str) -> None:
    if entry.name == ".git":
        return
    names = (os.path.join(here, file) for here, _, files in os.walk(entry.path) for file in files)
    found = [f"{place}{name[len(entry.path) :]}" for name in names if is_image_name(name)]
    if found:
        folder.hidden.extend(found)
        detail = "images in it are left out; other programs take it for a class"
        folder.odd.append(("hidden_folder", place, detail))


def _identity(folder: str | Path) -> Identity:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder, or a link to one.

    Of a link to itself `entry.is_dir()` raises an error."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
