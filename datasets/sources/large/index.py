"""The index of a large set: what listing it gave, kept below --data-root as arrays (.npz) for later starts.

It holds as long as every folder or shard that was read, and a sample of the files, has the times, the number and the
size it had: a name that comes, goes or changes alters its folder's times.
"""

import hashlib
import json
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.errors import DataError
from common.files import NO_DOWNLOADS, replacing, stamp
from datasets.bundle import PathTable, Samples
from datasets.sources.large.shards import Members
from datasets.sources.problems import Problem
from datasets.sources.reading import Reading

LARGE = 50_000
"""Images; what has fewer is listed at every start."""
LOOKED_AT = 20_000
"""Files, spread over the set, that are looked at themselves: one written over where it lies alters no folder."""
SETTLED = 2e9
"""Nanoseconds. What changed so shortly before it was listed may change again and keep its times."""


def indexed(read: Callable[[], Reading], data_root: Path, name: str, *key: object) -> Reading:
    """Return what `read()` gives, which `key` names; of a large set what it gave at an earlier start, if that still
    holds."""
    mark = hashlib.blake2b(repr(("4", *key)).encode(), digest_size=8).hexdigest()
    place, notes = data_root / "index" / f"{name}-{mark}.npz", []
    try:
        reading = _opened(place)
        if all(stamp(path) == then for path, then in reading.stamps.items()):
            return reading
    except FileNotFoundError:
        pass
    except Exception:  # BadZipFile, ValueError, NotImplementedError, zlib.error, ...: whatever a damaged archive raises
        notes = [f"{place} was damaged: the images were listed again"]
    before = time.time_ns()
    reading = read()
    if len(reading.samples) >= LARGE and not NO_DOWNLOADS.get():
        try:
            _keep(reading, place, before)
        except (OSError, DataError) as error:
            notes = [f"the list of images is not kept for the next start: {error}"]
    reading.samples = reading.samples.note(*notes)
    return reading


def _keep(reading: Reading, place: Path, before: int) -> None:
    """Write the index, unless something changed just now; the samples then know their sizes."""
    from datasets.identity import PATH_HASH, file_sizes, identified, kind_of
    from datasets.sampling import evenly  # torch, which check does without

    samples, members = reading.samples, reading.samples.members
    if members is None:
        files = map(samples.file, evenly(len(samples), LOOKED_AT).tolist())
        reading.stamps |= {str(file): stamp(file) for file in files}
    if max(max(times[:2], default=0) for times in reading.stamps.values()) > before - SETTLED:
        return
    rows = np.arange(len(samples))
    samples = samples.replace(sizes=(sizes := file_sizes(samples, rows)))
    if kind_of(samples, sizes) == PATH_HASH:
        samples = identified(samples)
    reading.samples = samples
    facts = {name: getattr(samples, name) for name in ("name", "class_names", "notes", "group_names", "grouped_by")}
    facts |= {name: getattr(reading, name) for name in ("source", "form", "classes", "problems", "stamps")}
    facts |= {"root": str(samples.root), "shards": members and members.shards, "hash_kind": samples.hash_kind}
    columns = {name: getattr(samples, name) for name in ("labels", "splits", "sizes", "digests", "groups")}
    columns = {name: column for name, column in columns.items() if column is not None}
    columns |= {name: getattr(members, name) for name in ("numbers", "offsets") if members is not None}
    columns |= {name: np.array(getattr(samples.paths, name)) for name in ("characters", "ends")}
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as aside:
        np.savez(aside, facts=np.array(json.dumps(facts, default=sorted).encode()), **columns)


def _opened(place: Path) -> Reading:
    with open(place, "rb") as opened, np.load(opened, allow_pickle=False) as file:
        columns = dict(file)
    facts = json.loads(columns.pop("facts").item())
    root, paths, members = Path(facts["root"]), PathTable(), None
    paths.characters, paths.ends = bytearray(columns.pop("characters")), array("q", columns.pop("ends").tobytes())
    if facts["shards"]:
        places = (columns.pop("numbers"), columns.pop("offsets"), columns["sizes"])
        members = Members(root, paths, facts["shards"], *places)
    names, notes, kind = tuple(facts["class_names"]), tuple(facts["notes"]), facts["hash_kind"]
    more = {"hash_kind": kind, "group_names": tuple(facts["group_names"]), "grouped_by": facts["grouped_by"]}
    samples = Samples(facts["name"], names, paths, **columns, root=root, members=members, notes=notes, **more)
    classes = {split: set(named) for split, named in facts["classes"].items()}
    reading = Reading(facts["source"], facts["form"], samples, classes, stamps=facts["stamps"])
    reading.problems = [Problem(*problem) for problem in facts["problems"]]
    return reading
