"""A folder of images: `train/ val/ [test/]` with class folders in each, or one folder of class folders."""

import os
from itertools import product
from pathlib import Path

from common.errors import DataError
from common.files import list_entries
from common.text import shorten_list
from datasets.bundle import SPLITS
from datasets.images import IMAGE_EXTENSIONS, is_image_name
from datasets.sources.problems import Problem
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows, split_word, training_notes

BESIDE_CLASSES = 0.25
"""Images outside the folder of the classes, at most, as a share of those in it."""
_SYSTEM_FOLDERS = (
    "__macosx", "@eadir", "#recycle", "@recycle", "$recycle.bin", "system volume information", "lost+found",
)  # fmt: skip
_ABOUT = ("README", "LICENSE", "LICENCE", "CITATION")
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_UNREAD_PICTURES = (".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".svg", ".tga", ".ico", ".raw", ".psd")


def read_image_folder(root: Path, name: str | None = None) -> Reading:
    """List a folder, links followed, and report all that is out of place. The class map holds for every split.

    Raises FileNotFoundError: no such folder. DataError: it cannot be listed, or no class folder has an image.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    name = name or root.name
    try:
        root = innermost(root)
        tree = _Tree(root)
        tree.walk()
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or root}: {error.strerror}") from error
    if not len(tree.paths):
        raise DataError(
            f"{root} has no images in class folders; expected {root}/<class>/<image> or {root}/train/<class>/<image>"
            + "".join(f"; {line}" for line in training_notes(tree.problems))
        )
    form = "class folders" if "" in tree.classes else "split folders"
    return Reading(str(root), form, tree.samples(name, root), tree.classes, tree.problems)


def innermost(root: Path) -> Path:
    """Step into a folder that holds one folder alone, and texts about it, as archives often do."""
    while True:
        folders, files = list_folder(root)
        if len(folders) != 1 or folders[0].lower() in SPLIT_FOLDERS or not list_folder(root / folders[0])[0]:
            return root
        if not all(file.upper().startswith(_ABOUT) for file in files):
            return root
        root = root / folders[0]


def list_folder(folder: Path | str) -> tuple[list[str], list[str]]:
    """Return the sorted names of the visible sub-folders and of the visible files."""
    entries = [entry for entry in list_entries(folder) if not _is_hidden(entry.name)]
    return [entry.name for entry in entries if _is_dir(entry)], [entry.name for entry in entries if not _is_dir(entry)]


class _Tree(Rows):
    """Walks the class folders, split by split and class by class."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def walk(self) -> None:
        entries = list_entries(self.root)
        named = self._split_folders([entry.name for entry in entries if _is_dir(entry) and not _is_hidden(entry.name)])
        if not named:
            self._split("", "")
            return
        beside, folders = f"beside {', '.join(named)}", dict[str, str]()
        for entry in entries:
            split = named.get(entry.name)
            if split in folders:
                self.problem(
                    "two_split_folders", entry.name, split, detail=f"{folders[split]} is {split} too; keep one"
                )
            elif split:
                folders[split] = entry.name
            elif split is not None:
                self.problem("unsure_split", entry.name, detail=beside)
            elif not _is_dir(entry):
                self._loose_entry(entry, "", "")
            elif not self._hidden_folder(entry, "", ""):
                self.problem("stray_folder", entry.name, detail=f"{beside}: left out")
        other_names = [f"{name}: {split}" for split, name in folders.items() if name.lower() not in SPLIT_FOLDERS]
        if other_names:
            self.problem("named_split", self.root.name, detail=", ".join(other_names))
        if "train" not in folders:
            self.problem("empty_split", "train", "train", detail=beside)
        for split in SPLITS:
            if split in folders:
                self._split(folders[split], split)

    def _split_folders(self, folders: list[str]) -> dict[str, str]:
        """Return the folders that are splits, and which, "" where that is not sure; none where all are classes.

        One of an exact name is a split, unless it holds pictures beside folders of pictures: then it is a class. One
        with such a word in its name is, if another one, and one of them train, has the rest of its name or its folders.
        """
        words = {folder: found for folder in folders if (found := split_word(folder))}
        exact = {folder for folder in words if folder.lower() in SPLIT_FOLDERS}
        within = {folder: self._within(folder) for folder in words}
        if exact and not any(within[folder][0] for folder in exact):
            others = [folder for folder in folders if folder not in exact and self._within(folder)[1]]
            if len(others) >= sum(within[folder][1] for folder in exact) > 0:
                return {}
        alike: set[str] = set()
        trains = [folder for folder, (split, _) in words.items() if split == "train"]
        for train, other in product(trains, words.keys() - trains):
            rest, other_rest = words[train][1], words[other][1]
            if within[train][0] & within[other][0] or (rest and rest == other_rest):
                alike |= {train, other}
        inside = set.intersection(*(within[folder][0] for folder in alike)) if alike else set()
        if inside and not exact and any(inside & self._within(folder)[0] for folder in folders if folder not in words):
            return {}  # of each class, such as a train station's and a bus stop's, there are pictures by day and night
        return {folder: words[folder][0] for folder in folders if folder in exact | alike}

    def _within(self, folder: str) -> tuple[set[str], bool]:
        """Return the folders in a folder, and whether it holds pictures, too."""
        try:
            folders, files = list_folder(self.root / folder)
        except OSError:  # reported where it is read
            return set(), False
        return set(folders), any(map(is_image_name, files))

    def _split(self, folder: str, split: str) -> None:
        """Read the class folders in a split folder, or in the root (split ""); report all else in there."""
        entries = self._list(folder, split, "")
        loose = [entry for entry in entries if not _is_dir(entry)]
        labels = [entry.name for entry in entries if _is_dir(entry) and not self._hidden_folder(entry, folder, split)]
        if not labels and split:
            detail = f"{sum(is_image_name(entry.name) for entry in loose):,} images"
            self.problem("empty_split" if split == "train" else "split_without_classes", folder, split, detail=detail)
            return
        self.classes[split] = set(labels)
        within = {label: self._class_folder(_join(folder, label), split, label) for label in labels}
        if not split:
            self._report_splits_below(within)
        if split or not self._report_classes_below(within):
            for label in labels:
                above, names = _branches(within[label])
                if len(names) > 1:
                    found = f"{len(names)} folders of images ({shorten_list(names)})"
                    detail = f"{found}; if these are the classes: {self.root / above}"
                    self.problem("folder_of_folders", _join(folder, label), split, label, detail)
        for entry in loose:
            self._loose_entry(entry, folder, split)

    def _report_classes_below(self, within: dict[str, dict[str, int]]) -> bool:
        """Report, and return, whether the classes lie further down: in one folder that holds nearly all images, the
        others having a few of their own, such as plots and examples."""
        images = {label: sum(folders.values()) for label, folders in within.items()}
        most = max(images, key=lambda label: images[label], default="")
        others = [folder for label, folders in within.items() if label != most for folder in folders]
        few = sum(images.values()) <= (1 + BESIDE_CLASSES) * images.get(most, 0)
        if not others or not few or any("/" in folder for folder in others):
            return False
        above, names = _branches(within[most])
        if len(names) > 1:
            seem = f"the classes seem to be {shorten_list(names)}, in {self.root / above}"
            detail = f"{seem}; beside it: {shorten_list(sorted(others))}"
            self.problems.append(Problem("above_the_classes", most, "", most, str(self.root / above), detail))
        return len(names) > 1

    def _report_splits_below(self, within: dict[str, dict[str, int]]) -> None:
        """Report the classes that hold train and another split, where several do."""
        of_classes = {}
        for label, folders in within.items():
            names = sorted({path.split("/")[1] for path in folders if "/" in path})
            splits = {found[0]: name for name in names if (found := split_word(name))}
            if "train" in splits and len(splits) > 1:
                of_classes[label] = splits
        for label, splits in of_classes.items() if len(of_classes) > 1 else ():
            detail = f"{shorten_list(sorted(splits.values()))}; expected {self.root}/{splits['train']}/{label}"
            self.problem("splits_below_classes", label, "", label, detail)

    def _class_folder(self, folder: str, split: str, label: str) -> dict[str, int]:
        """Add its images and those below it; return each folder that has some, and how many."""
        images, folders = [], []
        for entry in self._list(folder, split, label):
            path, name = f"{folder}/{entry.name}", entry.name.lower()
            if _is_dir(entry):
                if _leads_back(entry):
                    self.problem("broken_link", path, split, label, "leads back to a folder above it")
                elif not self._hidden_folder(entry, folder, split, label):
                    folders.append(path)
            elif name.startswith(".") or name in _SYSTEM_FILES:
                continue
            elif is_image_name(name) and (entry.is_symlink() or entry.is_file()):
                images.append(path)  # a link that leads nowhere is an image that cannot be read
            elif not self._broken_link(entry, path, split, label):
                suffix = os.path.splitext(name)[1] if entry.is_file() else "such"
                if suffix in _UNREAD_PICTURES:
                    target = "png" if suffix == ".gif" else "jpg"
                    convert = f"{suffix}; to convert: magick mogrify -format {target} *{suffix}"
                    self.problem("unread_picture", path, split, label, convert)
                else:
                    detail = f"{suffix or 'no extension: such'} files are not read"
                    self.problem("unsupported_file", path, split, label, detail)
        for image in images:
            self.add(image, label, split)
        within = {folder: len(images)} if images else {}
        for below in folders:
            within |= self._class_folder(below, split, label)
        return within

    def _loose_entry(self, entry: os.DirEntry[str], folder: str, split: str) -> None:
        """Report a picture outside every class folder; notes and tables belong there."""
        path, picture = _join(folder, entry.name), entry.name.lower().endswith((*IMAGE_EXTENSIONS, *_UNREAD_PICTURES))
        if not self._broken_link(entry, path, split) and entry.is_file() and picture:
            self.problem("stray_image", path, split, detail="outside every class folder: left out")

    def _broken_link(self, entry: os.DirEntry[str], path: str, split: str, label: str = "") -> bool:
        """Report, and return, whether an entry is a link that leads nowhere."""
        broken = entry.is_symlink() and not os.path.exists(entry.path)
        if broken:
            self.problem("broken_link", path, split, label, f"-> {os.readlink(entry.path)}")
        return broken

    def _hidden_folder(self, entry: os.DirEntry[str], folder: str, split: str, label: str = "") -> bool:
        """Return whether a folder is hidden; report one with images in it."""
        if not _is_hidden(entry.name):
            return False
        if entry.name != ".git" and any(is_image_name(name) for _, _, files in os.walk(entry.path) for name in files):
            detail = "images in it are left out; other programs take it for a class"
            self.problem("hidden_folder", _join(folder, entry.name), split, label, detail)
        return True

    def _list(self, path: str, split: str, label: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder, sorted; report one that cannot be listed."""
        try:
            return list_entries(self.root / path)
        except OSError as error:
            self.problem("unreadable_folder", path, split, label, error.strerror or str(error))
            return []


def _branches(folders: dict[str, int]) -> tuple[str, list[str]]:
    """Return the folder above all of these, and the names in it that lead to them; none if it is one of them."""
    above = os.path.commonpath(folders) if folders else ""
    names = {path.removeprefix(f"{above}/").partition("/")[0] for path in folders}
    return above, [] if above in folders else sorted(names)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder, or a link to one; of a link to itself `entry.is_dir()` raises an error."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _leads_back(entry: os.DirEntry[str]) -> bool:
    home = os.path.dirname(entry.path)
    return entry.is_symlink() and Path(os.path.realpath(home)).is_relative_to(os.path.realpath(entry.path))
