"""Splits into training, validation and test: stratified and seeded by what each image is, reused, or cut into folds.

The images of a class are put in an order that a hash of (seed, contents) gives; the first ones are the test, the next
ones validate, the rest trains. An image that is added, removed or renamed therefore leaves the others where they are,
but for the few that stand at a border; and none goes from training into the test without having been validation first.
What belongs together, copies and groups (`datasets.units`), moves as one.
"""

import hashlib
import math
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.errors import DataError, OptionError
from common.text import pluralise, shorten_list
from datasets.bundle import LEFT_OUT, SPLITS, TEST, TRAIN, UNSPLIT, VAL, Samples
from datasets.config import DataConfig
from datasets.identity import identified, keys_of
from datasets.seeding import SPLIT, SUBSET, hashes, mix
from datasets.units import COPIES, are_copies

if TYPE_CHECKING:
    from datasets.split_reading import Reused


def assign_splits(samples: Samples, config: DataConfig) -> Samples:
    """Give every sample its split: from `config.split`, from the set itself, or drawn by `config.split_seed`, first the
    test of a set without any split, then val: a share, or fold `config.fold` of `config.folds`."""
    if config.split is not None:
        return _from_table(samples, config.split, grow=config.grow, seed=config.split_seed)
    samples = identified(samples, config.root)
    usual = samples.val_fraction or (0.1 if (samples.splits == TEST).any() else 0.15)
    drawn = _test_count(samples, config)
    if drawn:
        samples = samples.with_splits(
            {TEST: _take(samples, samples.splits == UNSPLIT, drawn, config.split_seed, spare=2)}
        )
    if config.folds is None and (samples.splits == VAL).any():
        return samples
    pool = (samples.splits != TEST) & (samples.splits != LEFT_OUT)
    if config.folds is not None:
        chosen = _fold(samples, pool, config)
        return samples.with_splits({VAL: chosen, TRAIN: np.setdiff1d(np.flatnonzero(pool), chosen)})
    fraction = usual if config.val_fraction is None else config.val_fraction
    # A share of all images of an unsplit set, of the training images of one that brings a test split.
    of = samples.splits != LEFT_OUT if (samples.splits == UNSPLIT).any() else pool
    count = math.floor(fraction * of.sum())
    chosen = _take(samples, pool, count, config.split_seed)
    samples = samples.with_splits({VAL: chosen, TRAIN: np.setdiff1d(np.flatnonzero(pool), chosen)})
    return _evened(samples, [TRAIN, VAL] + [TEST] * (drawn > 0), {VAL: count, TEST: drawn}, config.split_seed)


def hold_out_half_of_val(samples: Samples, seed: int) -> Samples:
    """Make a test split of half of the validation images, each class in proportion."""
    pool = samples.splits == VAL
    return samples.with_splits({TEST: _take(identified(samples), pool, int(pool.sum()) // 2, seed)})


def subset_training(samples: Samples, config: DataConfig) -> Samples:
    """Keep `labels_per_class` images, or the share `fraction`, of each training class; val and test stay whole."""
    if config.labels_per_class is None and config.fraction is None:
        return samples
    order, place = _by_class(identified(samples), samples.indices("train"), mix(config.split_seed, SUBSET))
    labels, sizes = samples.labels[order], samples.counts("train")
    if config.fraction is not None:
        wanted = np.maximum(1, np.rint(sizes * config.fraction))
    else:
        wanted = np.full(len(sizes), config.labels_per_class)
    samples = samples.with_splits({LEFT_OUT: order[place >= wanted[labels]]})
    short = int((sizes < wanted).sum())
    if short and config.fraction is None:
        return samples.note(
            f"{short} of {len(sizes)} classes have fewer than {config.labels_per_class} training images"
        )
    return samples


def require_complete(samples: Samples) -> Samples:
    """Check that there is something to train on and to validate, and say which classes are too small to do both."""
    if len(samples.class_names) < 2:
        raise DataError(f"{samples.name} has one class, {samples.class_names[0]!r}; to tell classes apart takes two")
    sizes = np.bincount(samples.labels[samples.splits >= 0], minlength=len(samples.class_names))
    single = int((sizes == 1).sum())
    if single > len(sizes) / 2:
        raise DataError(
            f"{samples.name}: {single:,} of {len(sizes):,} classes have one image, which cannot be learnt and validated"
            " both; two or more of each class are needed, better 20"
        )
    for split in ("train", "val"):
        if not len(samples.indices(split)):
            raise DataError(
                f"{samples.name} has no {split} images, of {len(samples)} in all: more images help, a --split of your"
                " own, or --val-fraction 0.5 --test-fraction 0"
            )
    untrained = [samples.class_names[i] for i in np.flatnonzero(samples.counts("train") == 0)]
    if untrained:
        raise DataError(f"{samples.name}: no training image of class {shorten_list(untrained)}")
    unseen = [samples.class_names[i] for i in np.flatnonzero(samples.counts("val") == 0)]
    if unseen:
        return samples.note(
            f"{len(unseen)} of {len(samples.class_names)} classes have no val image: {shorten_list(unseen)}"
        )
    return samples


def _test_count(samples: Samples, config: DataConfig) -> int:
    """Number of test images to draw: none of a set that brings some split, and so decides about the test itself."""
    fraction = samples.test_fraction if config.test_fraction is None else config.test_fraction
    return 0 if (samples.splits >= 0).any() else math.ceil(fraction * (samples.splits == UNSPLIT).sum())


def _take(samples: Samples, pool: np.ndarray, count: int, seed: int, *, spare: int = 1) -> np.ndarray:
    """Choose about `count` images of the pool, each class in proportion (largest remainders), never all of a class.

    Units are not cut: a class gives the number of units that comes nearest to its quota, and one at least where it has
    that many and `spare` more.
    """
    sizes = np.bincount(samples.labels[pool], minlength=len(samples.class_names))
    exact = sizes * (count / max(1, int(pool.sum())))
    quota = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((_class_keys(samples, seed), quota - exact))
    quota[by_remainder[: count - quota.sum()]] += 1
    return _take_quota(samples, pool, np.minimum(quota, np.maximum(sizes - 1, 0)), seed, spare=spare)


def _take_quota(samples: Samples, pool: np.ndarray, quota: np.ndarray, seed: int, *, spare: int) -> np.ndarray:
    """The first units of each class, up to the unit in whose middle its quota (classes,) is reached."""
    units = _Units(samples, np.flatnonzero(pool), mix(seed, SPLIT))
    middle = units.ends - units.sizes / 2
    chosen = (middle < quota[units.labels]) & (units.places < units.siblings - 1)
    chosen |= (units.places == 0) & (quota[units.labels] >= 1) & (units.siblings > spare)
    return np.sort(units.images_of(chosen))


def _fold(samples: Samples, pool: np.ndarray, config: DataConfig) -> np.ndarray:
    """The images of one fold. Fold sizes, overall and per class, differ by at most one if units are single images."""
    if config.folds is None or config.fold is None:
        raise OptionError(f"folds={config.folds} needs fold, a number from 1 to {config.folds}")
    units = _Units(samples, np.flatnonzero(pool), mix(config.split_seed, SPLIT))
    if len(units.sizes) < config.folds:
        what = "images" if (units.sizes == 1).all() else "units of images that belong together"
        raise DataError(f"{samples.name} has {len(units.sizes)} {what} for {config.folds} folds; use fewer folds")
    # As many of each class as if its images were dealt like cards, class after class; which ones, their order says.
    sizes = np.bincount(units.labels, units.sizes, minlength=len(samples.class_names)).astype(np.int64)
    starts = np.concatenate([[0], sizes.cumsum()])
    dealt = [(starts[1:] - 1 - k) // config.folds - (starts[:-1] - 1 - k) // config.folds for k in range(config.folds)]
    ends = np.cumsum(dealt, axis=0)  # (folds, classes)
    middle = units.ends - units.sizes / 2
    folds = (middle >= ends[:-1, units.labels]).sum(axis=0)
    if (units.sizes > 1).any():
        from datasets.balance import MOST_CELLS, balanced

        if len(units.sizes) * units.classes <= MOST_CELLS:
            folds = balanced(units.counts(), folds, np.array(dealt, float))
    return np.sort(units.images_of(folds == config.fold - 1))


def _evened(samples: Samples, parts: list[int], drawn: dict[int, int], seed: int) -> Samples:
    """Even out what was drawn where whole units keep classes from their shares, and say where they still do.

    `drawn`: how many images val and test should have.
    """
    if samples.groups is None:
        return samples
    from datasets.balance import MOST_CELLS, balanced, shares_note

    pool = np.flatnonzero(np.isin(samples.splits, parts))
    units = _Units(samples, pool, mix(seed, SPLIT))
    if len(units.sizes) * units.classes > MOST_CELLS:
        return samples
    counts, now = units.counts(), samples.splits[units.first].astype(np.int64)
    shares = {TRAIN: len(pool) - sum(drawn.values()), **drawn}
    targets = np.stack([counts.sum(axis=0) * (shares[part] / max(1, len(pool))) for part in parts])
    now = balanced(counts, now, targets)
    samples = samples.with_splits({part: units.images_of(now == part) for part in parts})
    note = shares_note(counts, now, targets, samples.class_names)
    return samples.note(note) if note else samples


def _from_table(samples: Samples, path: Path, *, grow: bool, seed: int) -> Samples:
    from datasets.split_reading import reuse_split  # only where a table is given

    reused = reuse_split(samples, path)
    notes = [f"split from {path}"]
    missing, new = len(reused.missing), len(reused.new)
    if missing:
        are = "is" if missing == 1 else "are"
        notes.append(f"{pluralise(missing, 'image')} of it {are} gone, first {reused.missing[0]!r}")
    samples = reused.samples
    if new and grow:
        samples = _grown(reused, seed)
        parts = ", ".join(
            f"{(samples.splits[reused.new] == code).sum():,} {SPLITS[code]}" for code in (TRAIN, VAL, TEST)
        )
        notes.append(f"{pluralise(new, 'new image')} {'joins' if new == 1 else 'join'} it: {parts}")
    elif new:
        are, them = ("is", "it") if new == 1 else ("are", "them")
        notes.append(f"{pluralise(new, 'image')} {are} not in it and {are} left out; --grow lets {them} join")
    return samples.note("; ".join(notes))


def _grown(reused: "Reused", seed: int) -> Samples:
    """New images in the split of their unit, or where their class has too few; the others stay where they are."""
    samples, new = reused.samples, reused.new
    old = samples.splits >= 0
    if samples.groups is not None:
        of_group = np.full(len(samples.group_names), LEFT_OUT, np.int8)
        for code in (TEST, VAL, TRAIN):  # of a group that a table tears, new members train
            of_group[samples.groups[(samples.splits == code) & (samples.groups >= 0)]] = code
        known = new[samples.groups[new] >= 0]
        known = known[of_group[samples.groups[known]] != LEFT_OUT]
        samples = samples.with_splits({c: known[of_group[samples.groups[known]] == c] for c in (TRAIN, VAL, TEST)})
    count = len(samples.class_names)
    of_all = np.bincount(samples.labels[old], minlength=count) + np.bincount(samples.labels[new], minlength=count)
    for code in (TEST, VAL):
        share = (samples.splits[old] == code).sum() / old.sum()
        pool = np.zeros(len(samples), bool)
        pool[new] = samples.splits[new] == LEFT_OUT
        missing = np.rint(share * of_all).astype(np.int64) - samples.counts(SPLITS[code])
        chosen = _take_quota(samples, pool, np.maximum(missing, 0), seed, spare=0) if share else new[:0]
        samples = samples.with_splits({code: chosen})
    return samples.with_splits({TRAIN: new[samples.splits[new] == LEFT_OUT]})


class _Units:
    """Units of some images in the order of the draw: class after class, within one by a hash of (seed, what they are).

    A unit of images of several classes stands with the class that most of them have. U units.
    """

    def __init__(self, samples: Samples, rows: np.ndarray, seed: int) -> None:
        labels, keys = samples.labels[rows].astype(np.int64), _keys(samples, rows)
        groups = np.full(len(rows), -1, np.int64) if samples.groups is None else samples.groups[rows].astype(np.int64)
        numbers = np.where(groups >= 0, groups, len(samples.group_names) + np.arange(len(rows)))
        _, first, unit = np.unique(numbers, return_index=True, return_inverse=True)
        count = len(samples.class_names)
        if len(first) == len(rows):
            of_unit, sizes = labels[first], np.ones(len(first), np.int64)
        else:
            pairs, members = np.unique(unit * count + labels, return_counts=True)
            most = np.lexsort((-pairs, members, pairs // count))  # the last of each unit: its most frequent class
            last = np.flatnonzero(np.diff(pairs[most] // count, append=-1))
            of_unit, sizes = pairs[most][last] % count, np.bincount(unit)
        order = np.lexsort((rows[first], hashes(seed, keys[first]), of_unit))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.rows, self.unit_of_row, self.classes, self.row_labels = rows, rank[unit], count, labels
        self.labels, self.sizes, self.first = of_unit[order], sizes[order], rows[first[order]]
        starts = np.searchsorted(self.labels, np.arange(count + 1))
        self.places = np.arange(len(order)) - starts[self.labels]
        self.siblings = np.diff(starts)[self.labels]
        """Units of its class, itself among them."""
        whole = np.concatenate([[0], self.sizes.cumsum()])
        self.ends = whole[1:] - whole[starts[self.labels]]
        """Images of its class up to its own last."""

    def images_of(self, chosen: np.ndarray) -> np.ndarray:
        return self.rows[chosen[self.unit_of_row]]

    def counts(self) -> np.ndarray:
        """int64 (U, classes): images of each class in each unit."""
        cells = np.bincount(self.unit_of_row * self.classes + self.row_labels, minlength=len(self.sizes) * self.classes)
        return cells.reshape(-1, self.classes)


def _by_class(samples: Samples, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows class after class, within one in the order of their units; and their ranks within their class."""
    labels = samples.labels[rows]
    order = rows[np.lexsort((hashes(seed + 1, _own_keys(samples, rows)), hashes(seed, _keys(samples, rows)), labels))]
    return order, np.arange(len(order)) - np.searchsorted(samples.labels[order], samples.labels[order])


def _keys(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """uint64 (n,): what each image's unit is: the hash of its group's name, or of itself where it stands alone."""
    keys = _own_keys(samples, rows)
    if samples.groups is None:
        return keys
    of_groups = np.array([_group_key(name) for name in samples.group_names], np.uint64)
    groups = samples.groups[rows]
    return np.where(groups >= 0, of_groups[groups], keys)


def _group_key(name: str) -> int:
    """A number for a group's name; for copies the hash of the first of them, so that a new copy moves nothing."""
    return int(name.removeprefix(COPIES), 16) if are_copies(name) else _name_key(name)


def _own_keys(samples: Samples, rows: np.ndarray) -> np.ndarray:
    assert samples.digests is not None
    return keys_of(samples.digests[rows])


def _class_keys(samples: Samples, seed: int) -> np.ndarray:
    """uint64 (classes,): an order of the classes that their numbers have no part in."""
    keys = np.array([_name_key(name) for name in samples.class_names], np.uint64)
    return hashes(mix(seed, SPLIT, 1), keys)


def _name_key(name: str) -> int:
    name = unicodedata.normalize("NFC", name)
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
