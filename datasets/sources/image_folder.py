"""A folder of images: `train/ val/ [test/]`, or one folder of class folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.errors import DataError
from datasets.images import IMAGE_EXTENSIONS, is_image_name

SPLIT_FOLDERS: dict[str, str] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


def read_image_folder(root: Path, name: str | None = None) -> Samples:
    """Index a folder. The class map comes from `train` (or the only tree) and holds for every split.

    Raises:
        FileNotFoundError: no such folder.
        DataError: no images, an empty class folder, or a class in val or test that train does not have.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    name = name or root.name
    root = innermost(root)
    splits = split_folders(root)
    if "train" in splits:
        return _read_splits(root, splits, name)
    if splits:
        raise DataError(f"{root} has the folder {next(iter(splits.values()))!r} but no 'train' folder")
    return _read_tree(root, name)


def innermost(root: Path) -> Path:
    """Step into a folder that holds nothing but one folder: archives often wrap their contents so."""
    while True:
        folders, files = list_folder(root)
        inner = root / folders[0] if len(folders) == 1 else None
        if inner is None or files or folders[0].lower() in SPLIT_FOLDERS or not list_folder(inner)[0]:
            return root
        root = inner


def split_folders(root: Path) -> dict[str, str]:
    """Split name -> folder name, for the folders of `root` that are called train, val, valid, test, ..."""
    found: dict[str, str] = {}
    for folder in list_folder(root)[0]:
        split = SPLIT_FOLDERS.get(folder.lower())
        if split in found:
            raise DataError(f"{root} has two folders for {split}: {found[split]!r} and {folder!r}; keep one")
        if split is not None:
            found[split] = folder
    return dict(sorted(found.items(), key=lambda item: SPLITS.index(item[0])))


def list_folder(folder: Path | str) -> tuple[list[str], list[str]]:
    """Sorted names of the visible sub-folders and of the visible files."""
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name != "__MACOSX":
                (folders if entry.is_dir() else files).append(entry.name)
    return sorted(folders), sorted(files)


def _read_splits(root: Path, splits: dict[str, str], name: str) -> Samples:
    class_names = tuple(list_folder(root / splits["train"])[0])
    if not class_names:
        raise DataError(f"{root / splits['train']} has no class folders; expected {root}/train/<class>/<image>")
    notes: list[str] = []
    tree, groups, labels, codes = _Classes(root), [], [], []
    for split, folder in splits.items():
        classes = list_folder(root / folder)[0]
        if split == "test" and not classes:
            notes.append(f"{folder}/ has no class folders, so no labels: it is not used")
            continue
        unknown = [each for each in classes if each not in class_names]
        if unknown:
            raise DataError(
                f"{root / folder} has the class {unknown[0]!r}, which {splits['train']}/ does not have; "
                f"classes there: {', '.join(class_names[:10])}{', ...' if len(class_names) > 10 else ''}"
            )
        groups.append(tree.walk([f"{folder}/{each}" for each in classes], required=split == "train"))
        labels += [class_names.index(each) for each in classes]
        codes += [SPLITS.index(split)] * len(classes)
    paths = PathTable(chain.from_iterable(groups))
    return Samples(
        name=name,
        class_names=class_names,
        paths=paths,
        labels=np.repeat(np.array(labels, np.int32), tree.counts),
        splits=np.repeat(np.array(codes, np.int8), tree.counts),
        root=root,
        val_fraction=0.1 if "test" in splits else 0.15,
        notes=(*notes, *tree.notes()),
    )


def _read_tree(root: Path, name: str) -> Samples:
    class_names, files = list_folder(root)
    if not class_names:
        pictures = sum(map(is_image_name, files))
        raise DataError(
            f"{root} has {pictures} images but no class folders; expected {root}/<class>/<image> "
            f"or {root}/train/<class>/<image>"
        )
    tree = _Classes(root)
    paths = PathTable(tree.walk(class_names, required=True))
    return Samples(
        name=name,
        class_names=tuple(class_names),
        paths=paths,
        labels=np.repeat(np.arange(len(class_names), dtype=np.int32), tree.counts),
        splits=np.full(len(paths), UNSPLIT, np.int8),
        root=root,
        notes=tree.notes(),
    )


class _Classes:
    """Walks class folders, one after the other as the table asks for them, and notes what it passes over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts: list[int] = []
        self._other: list[str] = []

    def walk(self, folders: list[str], *, required: bool) -> Iterator[tuple[str, list[str]]]:
        """(folder, image names) for every folder below the class folders; `counts` grows by one per class folder."""
        for folder in folders:
            count = 0
            for each, names in self._walk(folder):
                count += len(names)
                yield each, names
            if required and not count:
                raise DataError(
                    f"class folder {self.root / folder} holds no images ({', '.join(IMAGE_EXTENSIONS)}); "
                    "fill or remove it"
                )
            self.counts.append(count)

    def notes(self) -> tuple[str, ...]:
        if not self._other:
            return ()
        more = f" and {len(self._other) - 1} more" if len(self._other) > 1 else ""
        return (f"not images, by their names, and left out: {self._other[0]}{more}",)

    def _walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        folders, files = list_folder(os.path.join(self.root, folder))
        images = [name for name in files if is_image_name(name)]
        if len(images) < len(files):
            self._other += [f"{folder}/{name}" for name in files if not is_image_name(name)]
        if images:
            yield folder, images
        for each in folders:
            yield from self._walk(f"{folder}/{each}")
