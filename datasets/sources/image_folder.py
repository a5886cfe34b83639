"""A folder of images: `train/ val/ [test/]` with class folders in each, or one folder of class folders."""

import os
import posixpath
from itertools import permutations
from pathlib import Path

from common.errors import DataError
from common.shell import command
from common.text import shorten_list
from datasets.bundle import SPLITS
from datasets.sources.problems import Problem
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows, split_word, training_notes
from datasets.sources.walk import Folder, list_folder, walk

OUTSIDE_CLASSES = 0.25
"""Images outside the folder of the classes, at most, as a share of those in it."""
_ABOUT = ("README", "LICENSE", "LICENCE", "CITATION")


def read_image_folder(root: Path, name: str | None = None) -> Reading:
    """List a folder, links followed, and report all that is out of place. The class map holds for every split.

    Raises DataError: it cannot be listed, or no class folder has an image.
    """
    name, tree = name or root.name, _Tree(root)
    tree.add_all(_listed(root)[0])
    if not len(tree.paths):
        raise DataError(
            f"{root} has no images in class folders; expected {root}/<class>/<image> or {root}/train/<class>/<image>"
            + "".join(f"; {line}" for line in training_notes(tree.problems))
            + (f"; to label pictures: {command('next', root, '--review')}" if tree.problems else "")
        )
    form = "class folders" if "" in tree.classes else "split folders"
    return Reading(str(root), form, tree.samples(name, root), tree.classes, tree.problems)


def read_pictures(root: Path, name: str) -> Reading:
    """List all pictures in a folder and below it, without labels.

    What its folders are called means nothing.

    Raises DataError: it cannot be listed, or has no picture.
    """
    rows = Rows()
    for folder in _listed(root):
        for kind, path, detail in folder.odd:
            if kind in ("unreadable_folder", "unread_picture", "hidden_folder"):
                rows.problem(kind, path, detail=detail)
        for path in (f"{folder.path}/{image}".lstrip("/") for image in folder.images):
            if os.path.isfile(root / path):
                rows.add(path, "", "")
            else:
                rows.problem("unsupported_file", path, detail="it leads to no file")
    if not len(rows.paths):
        raise DataError(f"{root} has no picture" + "".join(f"; {line}" for line in training_notes(rows.problems)))
    return Reading(str(root), "pictures", rows.samples(name, root), {}, rows.problems)


def _listed(root: Path) -> list[Folder]:
    try:
        return [*walk(str(root))]
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or root}: {error.strerror}") from error


def innermost(root: Path) -> Path:
    """Step into a folder that holds one folder alone, and texts about it, as archives often do."""
    while True:
        folders, files = list_folder(root)
        if len(folders) != 1 or folders[0].lower() in SPLIT_FOLDERS or not list_folder(root / folders[0])[0]:
            return root
        if not all(file.upper().startswith(_ABOUT) for file in files):
            return root
        root = root / folders[0]


def _split_folders(folders: dict[str, Folder]) -> dict[str, str]:
    """Return the folders that are splits, and which, "" where that is not sure.

    None where all are classes.

    One of an exact name is a split, unless it holds pictures next to folders of pictures: then it is a class. One with
    such a word in its name is, if another one, and one of them train, has the rest of its name or its folders.
    """
    words = {name: found for name in folders if (found := split_word(name))}
    inside = {name: folder.folders.keys() for name, folder in folders.items()}
    pictures = {name for name, folder in folders.items() if folder.images}
    exact = {name for name in words if name.lower() in SPLIT_FOLDERS}
    if not any(inside[name] for name in exact) and len(pictures - exact) >= len(pictures & exact) > 0:
        return {}
    alike: set[str] = set()
    for train, other in permutations(words, 2):
        (split, rest), (other_split, other_rest) = words[train], words[other]
        same = inside[train] & inside[other] or (rest and rest == other_rest)
        if split == "train" != other_split and same:
            alike |= {train, other}
    common = set.intersection(*(set(inside[name]) for name in alike)) if alike else set()
    if common and not exact and any(common & inside[name] for name in inside.keys() - words.keys()):
        return {}  # of each class, such as a train station's and a bus stop's, there are pictures by day and night
    return {name: words[name][0] for name in words if name in exact | alike}


class _Tree(Rows):
    """Collects the images of the class folders, split by split and class by class."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def add_all(self, top: Folder) -> None:
        named = _split_folders(top.folders)
        if not named:
            self._add_split(top, "")
            return
        place, names = f"next to {', '.join(named)}", dict[str, str]()
        for name in top.folders:
            split = named.get(name)
            if split in names:
                self.problem("two_split_folders", name, split, detail=f"{names[split]} is {split} too; keep one")
            elif split:
                names[split] = name
            elif split is None:
                self.problem("stray_folder", name, detail=place)
            else:
                self.problem("unsure_split", name, detail=place)
        self._report_loose(top, "")
        others = [f"{name}: {split}" for split, name in names.items() if name.lower() not in SPLIT_FOLDERS]
        if others:
            self.problem("named_split", self.root.name, detail=", ".join(others))
        if "train" not in names:
            self.problem("empty_split", "train", "train", detail=place)
        for split in SPLITS:
            if split in names:
                self._add_split(top.folders[names[split]], split)

    def _add_split(self, folder: Folder, split: str) -> None:
        """Add the class folders of a split, or of the root (""); report all else in there."""
        if not folder.folders and split:
            kind = "empty_split" if split == "train" else "split_without_classes"
            self.problem(kind, folder.path, split, detail=f"{len(folder.images):,} images")
            return
        self.classes[split] = set(folder.folders)
        for label, below in folder.folders.items():
            self._add_class(below, split, label)
        if not split:
            self._report_splits_below(folder)
        self._report_classes_below(folder, split)
        self._report_loose(folder, split)

    def _add_class(self, folder: Folder, split: str, label: str) -> None:
        for kind, path, detail in folder.odd:
            self.problem(kind, path, split, label, detail)
        for image in folder.images:
            self.add(f"{folder.path}/{image}", label, split)
        for below in folder.folders.values():
            self._add_class(below, split, label)

    def _report_loose(self, folder: Folder, split: str) -> None:
        """Report what lies outside every class folder, where notes and tables belong."""
        pictures = [f"{folder.path}/{image}".lstrip("/") for image in folder.images]
        pictures += [path for kind, path, _ in folder.odd if kind == "unread_picture"]
        for path in pictures:
            self.problem("stray_image", path, split)
        for kind, path, detail in folder.odd:
            if kind not in ("unread_picture", "unsupported_file"):
                self.problem(kind, path, split, detail=detail)

    def _report_classes_below(self, folder: Folder, split: str) -> None:
        """Report class folders that hold folders of images, but no image: their folders may be the classes. They are
        where the other folders hold no images, or a few, such as plots and examples."""
        filled = {label: below.filled() for label, below in folder.folders.items()}
        for label, inside in filled.items():
            above = posixpath.commonpath(inside) if inside else ""
            names = sorted({path.removeprefix(f"{above}/").partition("/")[0] for path in inside})
            if above in inside or len(names) < 2:
                continue
            place = str(self.root / above)
            others = {path: n for other, paths in filled.items() if other != label for path, n in paths.items()}
            few = sum(others.values()) <= OUTSIDE_CLASSES * sum(inside.values())
            nearby = [*others] or [other for other in filled if other != label and folder.folders[other].odd]
            if nearby and few and not any("/" in path for path in others):
                detail = f"the classes seem to be {shorten_list(names)}, in {place}; next to it: {shorten_list(nearby)}"
                self.problems.append(Problem("above_the_classes", label, "", label, place, detail))
            else:
                detail = f"{len(names)} folders of images ({shorten_list(names)}); if these are the classes: {place}"
                self.problem("folder_of_folders", folder.folders[label].path, split, label, detail)

    def _report_splits_below(self, folder: Folder) -> None:
        """Report the classes that hold train and another split, where several do."""
        of_classes = {}
        for label, below in folder.folders.items():
            names = [name for name in below.folders if below.folders[name].filled()]
            splits = {found[0]: name for name in names if (found := split_word(name))}
            if "train" in splits and len(splits) > 1:
                of_classes[label] = splits
        for label, splits in of_classes.items() if len(of_classes) > 1 else ():
            detail = f"{shorten_list(sorted(splits.values()))}; expected {self.root}/{splits['train']}/{label}"
            self.problem("splits_below_classes", label, "", label, detail)
