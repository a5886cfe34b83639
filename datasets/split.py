"""Splits into training, validation and test: stratified and seeded by what each image is, reused, or cut into folds.

The images of a class are put in an order that a hash of (seed, contents) gives; the first ones are the test, the next
ones validate, the rest trains. An image that is added, removed or renamed therefore leaves the others where they are,
but for the few that stand at a border; and none goes from training into the test without having been validation first.
What belongs together, copies and groups (`datasets.copies`), moves as one.
"""

import hashlib
import math
import unicodedata
from functools import cached_property
from pathlib import Path

import numpy as np

from common.errors import DataError, OptionError
from common.text import pluralise, shorten_list
from datasets.bundle import LEFT_OUT, SPLITS, TEST, TRAIN, UNSPLIT, VAL, Samples
from datasets.config import DataConfig
from datasets.copies import COPIES, are_copies, units_of, with_copies
from datasets.evening import ClassCounts, evened_out
from datasets.groups import about_groups, parts_drawn
from datasets.known import identified, keys_of
from datasets.seeding import SPLIT, SUBSET, hashes, mix
from datasets.split_csv import Reused, reuse_split


def split_set(samples: Samples, config: DataConfig) -> Samples:
    """Give every image a split that its copies and its group share; note what is unfair.

    Raises DataError: there are fewer units than folds, or groups so large or so few that a part has no image.
    """
    samples = with_copies(samples, config.root)
    parts = parts_drawn(samples, config)
    return about_groups(assign_splits(samples, config), parts).without_empty_classes()


def assign_splits(samples: Samples, config: DataConfig) -> Samples:
    """Assign train, val and test: by `config.split`, by the set itself, or drawn by `config.split_seed`.

    The test of a set without any split is drawn first, then val: a share, or fold `config.fold` of `config.folds`.
    """
    if config.split is not None:
        return _from_table(samples, config.split, grow=config.grow, seed=config.split_seed)
    samples = identified(samples, config.root)
    usual = samples.val_fraction or (0.1 if (samples.splits == TEST).any() else 0.15)
    fraction = samples.test_fraction if config.test_fraction is None else config.test_fraction
    # No test is drawn of a set that brings some split, and so decides about the test itself.
    unsplit = samples.splits == UNSPLIT
    drawn = 0 if (samples.splits >= 0).any() else math.ceil(fraction * unsplit.sum())
    if drawn:
        samples = samples.with_splits({TEST: _take(samples, unsplit, drawn, config.split_seed, spare=2)})
    if config.folds is None and (samples.splits == VAL).any():
        return samples
    pool = (samples.splits != TEST) & (samples.splits != LEFT_OUT)
    if config.folds is not None:
        return samples.with_splits({TRAIN: np.flatnonzero(pool), VAL: _fold(samples, pool, config)})
    fraction = usual if config.val_fraction is None else config.val_fraction
    # A share of all images of an unsplit set, of the training images of one that brings a test split.
    of = samples.splits != LEFT_OUT if (samples.splits == UNSPLIT).any() else pool
    count = math.floor(fraction * of.sum())
    chosen = _take(samples, pool, count, config.split_seed)
    samples = samples.with_splits({TRAIN: np.flatnonzero(pool), VAL: chosen})
    return _even_out(samples, [TRAIN, VAL] + [TEST] * (drawn > 0), {VAL: count, TEST: drawn}, config.split_seed)


def hold_out_half_of_val(samples: Samples, seed: int) -> Samples:
    """Make a test split of half of the validation images, each class in proportion."""
    pool = samples.splits == VAL
    return samples.with_splits({TEST: _take(identified(samples), pool, int(pool.sum()) // 2, seed)})


def subset_training(samples: Samples, config: DataConfig) -> Samples:
    """Keep `labels_per_class` images, or the share `fraction`, of each training class; val and test stay whole."""
    if config.labels_per_class is None and config.fraction is None:
        return samples
    samples, seed = identified(samples, config.root), mix(config.split_seed, SUBSET)
    rows, sizes = samples.indices("train"), samples.counts("train")
    # Class after class, within one in the order of its units: images of one unit stand side by side.
    of_images, of_units = hashes(seed + 1, _own_keys(samples, rows)), hashes(seed, _keys(samples, rows))
    order = rows[np.lexsort((of_images, of_units, samples.labels[rows]))]
    labels = samples.labels[order]
    place = np.arange(len(order)) - np.searchsorted(labels, labels)
    if config.fraction is not None:
        wanted = np.maximum(1, np.rint(sizes * config.fraction))
    else:
        wanted = np.full(len(sizes), config.labels_per_class)
        if short := int((sizes < wanted).sum()):
            few = f"fewer than {config.labels_per_class} training images"
            samples = samples.note(f"{short} of {len(sizes)} classes have {few}")
    return samples.with_splits({LEFT_OUT: order[place >= wanted[labels]]})


def require_complete(samples: Samples) -> Samples:
    """Check that each class can be learnt and validated, and note which are too small."""
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
    note = f"{len(unseen)} of {len(samples.class_names)} classes have no val image: {shorten_list(unseen)}"
    return samples.note(note) if unseen else samples


def _take(samples: Samples, pool: np.ndarray, count: int, seed: int, *, spare: int = 1) -> np.ndarray:
    """Choose about `count` images of the pool, each class in proportion (largest remainders).

    Never all of a class."""
    units = _Units(samples, np.flatnonzero(pool), seed)
    sizes = np.bincount(samples.labels[pool], minlength=len(samples.class_names))
    exact = sizes * (count / max(1, int(pool.sum())))
    quota = np.floor(exact).astype(np.int64)
    names = np.array([_name_key(name) for name in samples.class_names], np.uint64)  # their numbers have no part in it
    by_remainder = np.lexsort((hashes(mix(seed, SPLIT, 1), names), quota - exact))
    quota[by_remainder[: count - quota.sum()]] += 1
    return units.first_of_each_class(np.minimum(quota, np.maximum(sizes - 1, 0)), spare=spare)


def _fold(samples: Samples, pool: np.ndarray, config: DataConfig) -> np.ndarray:
    """Choose the images of one fold. Sizes, overall and per class, differ by at most one if units are single images."""
    if config.folds is None or config.fold is None:
        raise OptionError(f"folds={config.folds} needs fold, a number from 1 to {config.folds}")
    units = _Units(samples, np.flatnonzero(pool), config.split_seed)
    if len(units.sizes) < config.folds:
        what = "images" if (units.sizes == 1).all() else "units of images that belong together"
        raise DataError(f"{samples.name} has {len(units.sizes)} {what} for {config.folds} folds; use fewer folds")
    # As many of each class as if its images were dealt like cards, class after class; which ones, their order says.
    starts = np.concatenate([[0], units.class_sizes.cumsum()])
    dealt = [(starts[1:] - 1 - k) // config.folds - (starts[:-1] - 1 - k) // config.folds for k in range(config.folds)]
    ends = np.cumsum(dealt, axis=0)  # (folds, classes)
    folds = (units.middles >= ends[:-1, units.labels]).sum(axis=0)
    if (units.sizes > 1).any():
        folds = evened_out(units.counts, folds, np.array(dealt, float))
    return np.sort(units.images_of(folds == config.fold - 1))


def _even_out(samples: Samples, parts: list[int], drawn: dict[int, int], seed: int) -> Samples:
    """Even out a draw where whole groups keep classes from their shares; note the rest.

    `drawn`: how many images val and test should have.
    """
    if samples.groups is None:
        return samples
    pool = np.flatnonzero(np.isin(samples.splits, parts))
    units = _Units(samples, pool, seed)
    shares = {TRAIN: len(pool) - sum(drawn.values()), **drawn}
    totals = np.bincount(samples.labels[pool], minlength=len(samples.class_names))
    targets = np.stack([totals * (shares[part] / max(1, len(pool))) for part in parts])
    now = evened_out(units.counts, samples.splits[units.first].astype(np.int64), targets)
    samples = samples.with_splits({part: units.images_of(now == part) for part in parts})
    note = _shares_note(units.counts.shares(now, len(parts)), targets, samples.class_names)
    return samples.note(note) if note else samples


def _shares_note(has: np.ndarray, targets: np.ndarray, class_names: tuple[str, ...]) -> str:
    """Describe the class that is farthest from its share, if by over five points."""
    totals = targets.sum(axis=0)
    off = np.abs(has - targets) / np.maximum(totals, 1)
    part, label = np.unravel_index(int(off.argmax()), off.shape)
    if off[part, label] <= 0.05 or off[part, label] * totals[label] <= 1:
        return ""
    share, wanted = has[part, label] / totals[label], targets[part, label] / totals[label]
    return (
        f"groups are too large for even shares: {SPLITS[part]} has {share:.0%} of {class_names[label]!r},"
        f" {wanted:.0%} asked"
    )


def _from_table(samples: Samples, path: Path, *, grow: bool, seed: int) -> Samples:
    reused = reuse_split(samples, path)
    notes, samples, new = [f"split from {path}"], reused.samples, reused.new
    if reused.missing:
        notes.append(f"without {pluralise(len(reused.missing), 'image')} that it names, first {reused.missing[0]!r}")
    if len(new) and grow:
        samples = _grown(reused, seed)
        parts = ", ".join(f"{(samples.splits[new] == code).sum():,} {name}" for code, name in enumerate(SPLITS))
        notes.append(f"with {pluralise(len(new), 'new image')}: {parts}")
    elif len(new):
        notes.append(f"without {pluralise(len(new), 'new image')}, for which --grow is needed")
    return samples.note("; ".join(notes))


def _grown(reused: Reused, seed: int) -> Samples:
    """Put new images into the split of their unit, or where their class lacks images."""
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
        if share:
            units = _Units(samples, np.flatnonzero(pool), seed)
            samples = samples.with_splits({code: units.first_of_each_class(np.maximum(missing, 0), spare=0)})
    return samples.with_splits({TRAIN: new[samples.splits[new] == LEFT_OUT]})


class _Units:
    """Units of some images in the order of the draw: class after class, within one by a hash of (seed, what they are).

    A unit of images of several classes stands with the class that most of them have. U units.
    """

    def __init__(self, samples: Samples, rows: np.ndarray, seed: int) -> None:
        labels, count = samples.labels[rows].astype(np.int64), len(samples.class_names)
        _, first, unit = np.unique(units_of(samples, rows), return_index=True, return_inverse=True)
        pairs, members = np.unique(unit * count + labels, return_counts=True)
        most = np.lexsort((-pairs, members, pairs // count))  # the last of each unit: its most frequent class
        last = np.flatnonzero(np.diff(pairs[most] // count, append=-1))
        of_unit, sizes = pairs[most][last] % count, np.bincount(unit)
        order = np.lexsort((rows[first], hashes(mix(seed, SPLIT), _keys(samples, rows[first])), of_unit))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.rows, self.row_labels, self.unit_of_row = rows, labels, rank[unit]
        self.labels, self.sizes, self.first = of_unit[order], sizes[order], rows[first[order]]
        self.class_sizes = np.bincount(self.labels, self.sizes, minlength=count).astype(np.int64)
        """Images of the units that stand with each class."""
        starts = np.searchsorted(self.labels, np.arange(count + 1))
        self.places = np.arange(len(order)) - starts[self.labels]
        self.siblings = np.diff(starts)[self.labels]
        """Units of its class, itself among them."""
        before = self.class_sizes.cumsum() - self.class_sizes
        self.middles = self.sizes.cumsum() - before[self.labels] - self.sizes / 2
        """Images of its class up to its own middle."""

    def images_of(self, chosen: np.ndarray) -> np.ndarray:
        return self.rows[chosen[self.unit_of_row]]

    def first_of_each_class(self, quota: np.ndarray, *, spare: int) -> np.ndarray:
        """Choose the first units of each class, up to that in whose middle lies its quota.

        Never all units of a class, and one at least where it has `spare` more.
        """
        wanted = quota[self.labels]
        chosen = (self.middles < wanted) & (self.places < self.siblings - 1)
        chosen |= (self.places == 0) & (wanted >= 1) & (self.siblings > spare)
        return np.sort(self.images_of(chosen))

    @cached_property
    def counts(self) -> ClassCounts:
        """Count the images of each class in each unit."""
        count = len(self.class_sizes)
        pairs, images = np.unique(self.unit_of_row * count + self.row_labels, return_counts=True)
        return ClassCounts(pairs // count, pairs % count, images, count)


def _keys(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """Return the hash of each image's group, or of itself where it stands alone: uint64 (n,)."""
    keys = _own_keys(samples, rows)
    if samples.groups is None:
        return keys
    # Copies go by the hash of the first of them, so that a new copy moves nothing.
    known = samples.group_names
    names = [int(name.removeprefix(COPIES), 16) if are_copies(name) else _name_key(name) for name in known]
    groups = samples.groups[rows]
    return np.where(groups >= 0, np.array(names, np.uint64)[groups], keys)


def _own_keys(samples: Samples, rows: np.ndarray) -> np.ndarray:
    assert samples.digests is not None
    return keys_of(samples.digests[rows])


def _name_key(name: str) -> int:
    name = unicodedata.normalize("NFC", name)
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
