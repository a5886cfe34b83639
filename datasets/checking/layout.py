"""A data set as it lies on the disk, for `check`: every picture with its split and label, and all that is out of place.

The loader takes what it can use; this walk also records what the loader leaves out, and why.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from datasets.images import IMAGE_EXTENSIONS
from datasets.sources.image_folder import SPLIT_FOLDERS, innermost

SPLIT_ORDER = {"": 0, "train": 0, "val": 1, "test": 2}
"""Where two pictures are the same, the one in the later split is the one out of place."""

FEW_IMAGES = 5
"""A class with fewer training images is reported."""

IMBALANCE = 10
"""So many times the images of the smallest class in the largest one are reported."""

_SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini", ".gitkeep", ".keep", ".gitignore", ".nojekyll"})
_UNREAD_PICTURES = (".gif", ".heic", ".heif", ".avif", ".jfif", ".jpe", ".jp2", ".svg", ".tga", ".ico", ".raw", ".psd")


class Picture(NamedTuple):
    """One labelled image: `path` relative to the root, `/` between parts; `split` is "" where none is set."""

    path: str
    split: str
    label: str


class Finding(NamedTuple):
    """One fault. `kind` is a key of `check.KINDS`; `other` is the second file of a pair."""

    kind: str
    path: str
    split: str = ""
    label: str = ""
    other: str = ""
    detail: str = ""

    @classmethod
    def about(cls, kind: str, picture: Picture, detail: str = "", *, other: str = "") -> Finding:
        return cls(kind, picture.path, picture.split, picture.label, other, detail)


@dataclass
class Layout:
    """The pictures in a fixed order, the classes each split names (empty ones too), the faults so far."""

    root: Path
    form: str
    """In words: `split folders`, `class folders`, `table`, `built-in`."""
    pictures: list[Picture] = field(default_factory=list)
    classes: dict[str, set[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def splits(self) -> list[str]:
        return sorted(self.classes, key=SPLIT_ORDER.__getitem__)

    def counts(self, split: str) -> Counter[str]:
        """Pictures per class of one split, 0 for the empty classes."""
        counts = Counter(dict.fromkeys(sorted(self.classes.get(split, ())), 0))
        counts.update(picture.label for picture in self.pictures if picture.split == split)
        return counts


def folder_layout(root: Path) -> Layout:
    """Walk a folder of class folders, or of split folders with class folders in them.

    Raises:
        DataError: the folder cannot be listed, or there is no image in any class folder.
    """
    try:
        root = innermost(root)
        tops = _entries(root)
    except OSError as error:
        raise DataError(f"cannot list the folder {error.filename or root}: {error.strerror}") from error
    splits = {entry.name: SPLIT_FOLDERS[entry.name.lower()] for entry in tops if _is_split_folder(entry)}
    if splits:
        layout = _split_layout(root, tops, splits)
    else:
        walk = _Walk(Layout(root, "class folders"))
        walk.split_folder("", "")
        layout = walk.layout
    if not layout.pictures:
        raise DataError(
            f"{root} has no images in class folders; expected {root}/<class>/<image> or {root}/train/<class>/<image>"
        )
    layout.pictures.sort(key=lambda picture: (SPLIT_ORDER[picture.split], picture.path))
    return layout


def _split_layout(root: Path, tops: list[os.DirEntry[str]], splits: dict[str, str]) -> Layout:
    walk = _Walk(Layout(root, "split folders"))
    if "train" not in splits.values():
        walk.add("empty_split", "train", "train", detail=f"no train folder beside {', '.join(splits)}")
    seen: dict[str, str] = {}
    for entry in tops:
        split = splits.get(entry.name)
        if split in seen:
            walk.add("two_split_folders", entry.name, split, detail=f"{seen[split]} is {split} too")
        elif split:
            seen[split] = entry.name
            walk.split_folder(entry.name, split)
        elif not entry.is_dir():
            walk.loose_entry(entry, "", "")
        elif not walk.hidden_folder(entry, "", ""):
            walk.add("stray_folder", entry.name, detail=f"beside {', '.join(splits)}: left out")
    return walk.layout


def _is_split_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower() in SPLIT_FOLDERS and entry.is_dir()


class _Walk:
    """One pass over the tree, links followed."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def add(self, kind: str, path: str, split: str = "", label: str = "", detail: str = "") -> None:
        self.layout.findings.append(Finding(kind, path, split, label, "", detail))

    def split_folder(self, path: str, split: str) -> None:
        """Class folders in a split folder (or in the root, split ""); everything else in there is out of place."""
        classes: set[str] = set()
        loose: list[os.DirEntry[str]] = []
        for entry in self._list(path, split, ""):
            if not entry.is_dir():
                loose.append(entry)
            elif not self.hidden_folder(entry, path, split):
                classes.add(entry.name)
                self._class_folder(_join(path, entry.name), split, entry.name)
        pictures = [entry for entry in loose if entry.name.lower().endswith(IMAGE_EXTENSIONS)]
        if not classes and split:
            kind = "split_without_classes" if pictures and split == "test" else "empty_split"
            self.add(kind, path, split, detail=f"{len(pictures):,} images, no class folders")
            return
        self.layout.classes[split] = classes
        for entry in loose:
            self.loose_entry(entry, path, split)

    def loose_entry(self, entry: os.DirEntry[str], folder: str, split: str) -> None:
        """A file outside every class folder: notes and tables belong there, pictures do not."""
        path = _join(folder, entry.name)
        if _is_broken_link(entry):
            self.add("broken_link", path, split, detail=_target(entry))
        elif entry.is_file() and entry.name.lower().endswith(IMAGE_EXTENSIONS + _UNREAD_PICTURES):
            self.add("stray_image", path, split, detail="outside every class folder: left out")

    def _class_folder(self, path: str, split: str, label: str) -> None:
        for entry in self._list(path, split, label):
            child = _join(path, entry.name)
            name = entry.name.lower()
            if _is_broken_link(entry):
                self.add("broken_link", child, split, label, _target(entry))
            elif entry.is_dir():
                if _leads_back(entry):
                    self.add("broken_link", child, split, label, "leads back to a folder above it")
                elif not self.hidden_folder(entry, path, split, label):
                    self._class_folder(child, split, label)
            elif name in _SYSTEM_FILES:
                continue
            elif name.startswith("."):
                self.add("hidden_file", child, split, label, "left out")
            elif not entry.is_file():
                self.add("unsupported_file", child, split, label, "neither a file nor a folder: left out")
            elif name.endswith(IMAGE_EXTENSIONS):
                self.layout.pictures.append(Picture(child, split, label))
            else:
                suffix = Path(name).suffix
                detail = f"{suffix} files are not read" if suffix else "no extension"
                self.add("unsupported_file", child, split, label, f"{detail}: left out")

    def hidden_folder(self, entry: os.DirEntry[str], folder: str, split: str, label: str = "") -> bool:
        if not _is_hidden(entry.name):
            return False
        images = sum(name.lower().endswith(IMAGE_EXTENSIONS) for _, _, files in os.walk(entry.path) for name in files)
        if images or entry.name == ".ipynb_checkpoints":  # .git and its like are nobody's class
            detail = f"{images:,} images in it: left out; other programs take it for a class"
            self.add("hidden_folder", _join(folder, entry.name), split, label, detail)
        return True

    def _list(self, path: str, split: str, label: str) -> list[os.DirEntry[str]]:
        """Entries of a folder, sorted; none, and a finding, where it cannot be listed."""
        try:
            return _entries(self.layout.root / path)
        except OSError as error:
            self.add("unreadable_folder", path, split, label, error.strerror or str(error))
            return []


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # as the loader


def _is_broken_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _leads_back(entry: os.DirEntry[str]) -> bool:
    if not entry.is_symlink():
        return False
    return Path(os.path.realpath(os.path.dirname(entry.path))).is_relative_to(os.path.realpath(entry.path))


def _target(entry: os.DirEntry[str]) -> str:
    return f"-> {os.readlink(entry.path)}"


def class_findings(layout: Layout) -> list[Finding]:
    """Class maps that differ between splits, empty and tiny classes, names that look alike, imbalance."""
    findings = []
    home = layout.splits[0]  # train, or all there is
    counts = layout.counts(home)
    for label, count in counts.items():
        if count == 0:
            findings.append(Finding("empty_class", label, home, label, detail="no image to learn it from"))
        elif count < FEW_IMAGES:
            findings.append(
                Finding("few_images", label, home, label, detail=f"{count} images; {FEW_IMAGES} or more help")
            )
    for split in layout.splits[1:]:
        findings += _compare_classes(counts, layout.counts(split), split)
    filled = [(count, label) for label, count in counts.items() if count]
    if len(filled) == 1:
        findings.append(Finding("one_class", filled[0][1], home, filled[0][1], detail="nothing to tell it from"))
    if len(filled) > 1 and max(filled)[0] > IMBALANCE * min(filled)[0]:
        (most, large), (least, small) = max(filled), min(filled)
        detail = f"{most:,} images of {large}, {least:,} of {small}: {most / least:.0f} to 1"
        findings.append(Finding("imbalance", small, home, small, detail=detail))
    return findings + _similar_names(layout)


def _compare_classes(train: Counter[str], other: Counter[str], split: str) -> list[Finding]:
    findings = []
    for label, count in other.items():
        if label not in train:
            detail = f"{count:,} images of a class that train does not have"
            findings.append(Finding("class_not_in_train", label, split, label, detail=detail))
    for label, count in train.items():
        if count and not other.get(label):
            detail = "empty folder" if label in other else "no such class"
            findings.append(Finding("class_missing", label, split, label, detail=f"{detail}: it is never measured"))
    return findings


def _similar_names(layout: Layout) -> list[Finding]:
    """Class names that a reader cannot tell apart, or that differ in case alone."""
    groups: dict[str, list[str]] = defaultdict(list)
    for label in sorted(set().union(*layout.classes.values())):
        groups[_plain(label).casefold()].append(label)
    findings = []
    for labels in groups.values():
        for label in labels[1:]:
            same_case = any(_plain(label) == _plain(other) for other in labels if other != label)
            kind = "class_names_differ_in_spaces" if same_case else "class_names_differ_in_case"
            findings.append(Finding(kind, label, label=label, other=labels[0], detail=f"{label!r} and {labels[0]!r}"))
    return findings


def _plain(name: str) -> str:
    """Without Unicode variants of the same letters, invisible characters, and differences in spacing."""
    text = unicodedata.normalize("NFKC", name)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())
