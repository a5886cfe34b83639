"""Shards: tar files in the WebDataset convention, listed once and never unpacked.

The files of a sample lie next to each other and share their name up to its first dot, the key: `0001.jpg`, `0001.cls`
with its label, else its folder is its class, and perhaps `0001.group` with the name of its group. `classnames.txt` in
the folder of the shards names the classes 0, 1, ...
"""

import glob
import json
import os
import re
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.errors import DataError
from common.files import matching, stamp
from common.text import decode_text, normal, pluralise, read_text, shorten_list
from datasets.bundle import SPLITS, PathTable, Samples
from datasets.images import IMAGE_EXTENSIONS, is_image_name
from datasets.remembered import remembered
from datasets.sources.archives import name_inside
from datasets.sources.problems import Problem
from datasets.sources.reading import SPLIT_FOLDERS, Reading, Rows, split_word
from datasets.sources.walk import list_folder

CLASS_NAMES = "classnames.txt"
GROUP = "group"
"""Extension of the member that names the group of a picture."""
TABLES = (".parquet", ".arrow")
LARGE = 2**27
"""Bytes. Of more shards the list of their pictures is kept, as reading it anew takes seconds."""


class TarMember(NamedTuple):
    """A file inside a tar, to be read as a Path is; for messages `shard.tar/name`."""

    shard: str
    name: str
    offset: int
    size: int

    def __fspath__(self) -> str:
        return f"{self.shard}/{self.name}"

    def read_bytes(self) -> bytes:
        with open(self.shard, "rb") as file:  # a single read of a network's disk may be short
            file.seek(self.offset)
            return file.read(self.size)

    @property
    def opened(self) -> BytesIO:
        return BytesIO(self.read_bytes())


class Members(Sequence[TarMember]):
    """Positions of the pictures of a set, in arrays, so that a million of them are not objects."""

    def __init__(self, root: Path, paths: PathTable, shards: Sequence[str], *columns: np.ndarray) -> None:
        """`paths`: shard and name, below `root`. `columns`: of each picture its place in `shards`, offset and size."""
        self.root, self.paths, self.shards = root, paths, shards
        self.numbers, self.offsets, self.sizes = columns

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index):  # int -> TarMember is all that is offered
        shard = self.shards[self.numbers[index]]
        name = str(self.root / self.paths[index])[len(shard) + 1 :]
        return TarMember(shard, name, int(self.offsets[index]), int(self.sizes[index]))


def shards_at(path: Path) -> list[Path]:
    """Return the files that a pattern means, or the one shard; none of other data."""
    if path.is_file():
        return [path] if path.suffix in TABLES or (path.suffix == ".tar" and _is_shard(path)) else []
    return [Path(file) for file in matching(str(path))] if glob.has_magic(str(path)) else []


def shards_in(folder: Path) -> list[Path]:
    """Return the tar, parquet or Arrow files of a folder.

    Of its folders train, val and test, if it has no other folder."""
    folders, files = list_folder(folder)
    if folders and all(name.lower() in SPLIT_FOLDERS for name in folders):
        return [shard for name in folders for shard in shards_in(folder / name)]
    kinds = ([folder / file for file in files if file.endswith(suffix)] for suffix in (".tar", *TABLES))
    return [] if folders else next(filter(None, kinds), [])


def _is_shard(tar: Path) -> bool:
    """Return whether a picture has a label next to it, unlike in an archive of a folder."""
    first = [member for member, _ in islice(_members(tar), 8)]
    labelled = {_key(member) for member in first if member.name.endswith((".cls", ".json"))}
    return any(_key(member) in labelled for member in first if is_image_name(member.name))


def read_tar_shards(files: Sequence[Path], name: str, data_root: Path, *, grouped_by: str = "of the shards") -> Reading:
    """List the pictures of shards, whose split is a word of their path; of large ones once, as long as they stay.

    Raises DataError: a tar is damaged, cut short or compressed, holds a link, or a name twice; no picture has a label.
    """
    root = Path(os.path.commonpath([file.parent for file in files]))
    split_of = {file: (split_word(str(file.relative_to(root))) or ("",))[0] for file in files}
    files = sorted(files, key=lambda file: (("", *SPLITS).index(split_of[file]), file))
    stamps = [stamp(path) for path in (*files, root / CLASS_NAMES)]
    kept = remembered(
        "shards",
        repr([str(file.absolute()) for file in files]),
        json.dumps(stamps).encode(),
        lambda: _listed(root, {file: split_of[file] for file in files}),
        data_root=data_root if sum(size for *_, size in filter(None, stamps)) > LARGE else None,
    )
    facts = json.loads(kept["facts"].tobytes())
    paths = PathTable()
    paths.characters, paths.ends = bytearray(kept["characters"]), array("q", kept["ends"].tobytes())
    columns: dict[str, Any] = {name: kept[name] for name in ("labels", "splits", "sizes", "groups") if name in kept}
    if facts["group_names"]:
        columns |= {"group_names": tuple(facts["group_names"]), "grouped_by": grouped_by}
    members = Members(root, paths, tuple(map(str, files)), kept["numbers"], kept["offsets"], kept["sizes"])
    reading = Reading.of(Samples(name, tuple(facts["class_names"]), paths, root=root, members=members, **columns))
    problems = [Problem(*problem) for problem in facts["problems"]]
    return replace(reading, source=str(root), form=pluralise(len(files), "tar shard"), found=problems)


def _listed(root: Path, split_of: dict[Path, str]) -> dict[str, np.ndarray]:
    """Return the sample table of shards, and where their pictures lie, in columns.

    The rest is JSON."""
    rows = _Pictures(root)
    for number, (file, split) in enumerate(split_of.items()):
        if not split and any(split_of.values()):
            rows.problem("unknown_split", str(file.relative_to(root)), detail=f"known: {', '.join(SPLITS)}")
        rows.add_shard(file, number, split)
    if not rows.labels:
        first = next(iter(split_of))
        found = shorten_list([member.name for member, _ in islice(_members(first), 3)]) or "nothing"
        expected = "key.jpg and right after it key.cls, or class/key.jpg; a key ends at the first dot of the name"
        raise DataError(f"{first} holds no picture with a label; found {found}; expected {expected}")
    samples = rows.samples("", root, class_names=rows.in_order())
    facts = {"class_names": samples.class_names, "group_names": samples.group_names, "problems": rows.problems}
    columns = {"labels": samples.labels, "splits": samples.splits, "groups": samples.groups}
    return {column: values for column, values in columns.items() if values is not None} | {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
        "characters": np.frombuffer(rows.paths.characters, np.uint8),
        "ends": np.array(rows.paths.ends),
        "numbers": np.array(rows.shards),
        "offsets": np.array(rows.offsets),
        "sizes": np.array(rows.sizes),
    }


def _members(tar: Path) -> Iterator[tuple[TarMember, bytes]]:
    """Yield every file in a tar, in its order, with the content of labels and groups.

    Raises DataError: it is damaged, or holds something else than files.
    """
    try:
        with open(tar, "rb") as file, tarfile.open(fileobj=file, mode="r:") as opened:
            while (info := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined]  # which would hold them all
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise DataError(f"{tar}: {info.name!r} is a link, a device or a sparse file; a shard holds files")
                if not (name := name_inside(info.name)):
                    raise DataError(f"{tar} is refused: {info.name!r} lies outside the folder it is unpacked into")
                content = b""
                if info.name.lower().endswith((".cls", f".{GROUP}")):
                    file.seek(info.offset_data)
                    content = file.read(info.size)
                yield TarMember(str(tar), name, info.offset_data, info.size), content
            file.seek(opened.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile takes any fault for an end
                raise tarfile.ReadError(f"damaged at byte {opened.offset:,}, or cut short there")
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"cannot read shard {tar}: {error}; a shard is a whole tar, not compressed") from error


def _key(member: TarMember) -> str:
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


class _Pictures(Rows):
    """Collects, shard after shard, where each picture lies and which label it has."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.shards, self.offsets, self.sizes = array("i"), array("q"), array("q")
        names = root / CLASS_NAMES
        lines = read_text(names).replace("\r\n", "\n").split("\n") if names.is_file() else []
        times = Counter(lines)  # ImageNet has two classes called crane
        self.names = [name if times[name] == 1 else f"{name} ({place})" for place, name in enumerate(lines)]

    def add_shard(self, shard: Path, number: int, split: str) -> None:
        known: set[str] = set()
        inside = shard.relative_to(self.root).as_posix()
        for key, members in groupby(_members(shard), lambda pair: _key(pair[0])):
            parts, picture = dict[str, bytes](), None
            for member, content in members:
                suffix = member.name.rpartition("/")[2].partition(".")[2].lower()
                parts[suffix] = content
                picture = picture or (member if f".{suffix}" in (*IMAGE_EXTENSIONS, ".gif") else None)
            if picture is None or key.rpartition("/")[2] == "":  # a hidden file
                continue
            if key in known:
                raise DataError(f"{shard}: {key.strip('/')!r} is in it twice, or apart from its label")
            known.add(key)
            label = self._label(shard, key, parts)
            if not label:
                detail = "no .cls and no folder; a .json is not read, put its label into a .cls"
                self.problem("empty_label", f"{inside}/{picture.name}", split, detail=detail)
                continue
            group = normal(parts.get(GROUP, b"").decode("utf-8", "replace"))
            self.add(f"{inside}/{picture.name}", label, split, group)
            self.shards.append(number)
            self.offsets.append(picture.offset)
            self.sizes.append(picture.size)

    def _label(self, shard: Path, key: str, parts: dict[str, bytes]) -> str:
        """Return a sample's class; empty where it has none, or perhaps one in a .json."""
        if "cls" not in parts:
            return "" if "json" in parts else key.rpartition("/")[0].rpartition("/")[2]
        try:
            value = decode_text(parts["cls"])[0].strip()
            return self.names[int(value)] if self.names and value.isdecimal() else value
        except (ValueError, IndexError) as error:
            raise DataError(f"{shard}/{key.lstrip('/')}.cls holds no label: {error}") from error

    def in_order(self) -> list[str]:
        """Return the classes as classnames.txt has them, else by number or by name."""
        if self.names and self.numbers.keys() <= set(self.names):
            return sorted(self.numbers, key=self.names.index)
        return sorted(self.numbers, key=int if all(map(str.isdecimal, self.numbers)) else None)


def write_class_names(folder: Path, names: Sequence[str]) -> None:
    """Write classnames.txt, a line for each class. Raises DataError: a name has several lines, or is not UTF-8."""
    if unfit := [name for name in names if re.search("[\n\ud800-\udfff]", name)]:
        raise DataError(f"the class {unfit[0]!r} fits no line of {CLASS_NAMES}, which is UTF-8: rename it")
    (folder / CLASS_NAMES).write_text("\n".join(names), encoding="utf-8", newline="\n")


def add(
    tar: tarfile.TarFile, row: int, path: str, content: bytes, label: object, used: set[str], group: str = ""
) -> None:
    """Write picture, label and, where there is one, group. Their key is the picture's path without dots, which end a
    key; where that is taken its row is a folder in front, for a number in the name would suggest groups."""
    stem, suffix = os.path.splitext(path)
    key = re.sub("[.:]", "_", stem).replace("\\", "/").lstrip("/")  # a table of Windows may name whole paths
    key = f"{row:08}/{key}" if key in used else key
    used.add(key)
    suffix = suffix.lower() if suffix.lower() in (*IMAGE_EXTENSIONS, ".gif") else ".jpg"  # the decoder looks inside
    members = {f"{key}{suffix}": content, f"{key}.cls": str(label).encode()}
    if group:
        members[f"{key}.{GROUP}"] = group.encode(errors="backslashreplace")
    for name, data in members.items():
        info = tarfile.TarInfo(name)  # no time, no owner
        info.size = len(data)
        tar.addfile(info, BytesIO(data))
