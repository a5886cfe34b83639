"""What belongs together stays together: copies and groups are one unit in every drawn split and fold."""

import numpy as np
import pytest
from fake_sets import Spec, class_folders
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold

from datasets import DataConfig, build_dataloaders, copies, known, split_table
from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.copies import with_copies, with_more_groups
from datasets.evening import TOLERANCE, ClassCounts, evened_out
from datasets.known import CONTENT_HASH
from datasets.open import split_samples
from datasets.remembered import remembered
from datasets.split import assign_splits, subset_training


def made(labels, groups=None, *, classes=None, seed=0):
    """Samples with random contents; `groups`: the name of the group of each image."""
    labels = np.asarray(labels, np.int32)
    names = tuple(f"c{i}" for i in range(classes or labels.max() + 1))
    digests = np.random.default_rng(seed).integers(0, 256, (len(labels), 8), np.uint8)
    paths = PathTable([f"{i:06d}" for i in range(len(labels))])
    splits = np.full(len(labels), UNSPLIT, np.int8)
    samples = Samples("made", names, paths, labels, splits, digests=digests, hash_kind=CONTENT_HASH)
    return samples if groups is None else with_more_groups(samples, groups)


def parts_of_groups(samples):
    """How many splits each group stands in."""
    pairs = {(group, split) for group, split in zip(samples.groups, samples.splits, strict=True) if group >= 0}
    return np.bincount([group for group, _ in pairs])


def shares(samples, split):
    return samples.counts(split) / np.bincount(samples.labels)


@pytest.mark.parametrize("sizes", [(1, 3), (2, 6), (8, 8), (1, 12)])
def test_split_keeps_groups_whole_and_shares_close(sizes):
    random = np.random.default_rng(0)
    for seed in range(6):
        labels, groups = [], []
        for label in range(4):
            while labels.count(label) < 400:
                size = int(random.integers(sizes[0], sizes[1] + 1))
                labels += [label] * size
                groups += [f"{label}/{len(groups)}"] * size
        config = DataConfig(split_seed=seed)
        grouped, plain = (assign_splits(made(labels, g), config) for g in (groups, None))
        assert (parts_of_groups(grouped) == 1).all()
        for split in ("train", "val", "test"):
            assert np.abs(shares(grouped, split) - shares(plain, split)).max() <= 0.03 + 1e-9


def mixed(seed, *, groups=60, classes=4, sizes=(5, 30)):
    """Labels of groups that have several classes each, and the number of the group of each image."""
    random = np.random.default_rng(seed)
    counts = random.integers(*sizes, groups)
    labels = [random.choice(classes, size, p=random.dirichlet([0.5] * classes)) for size in counts]
    return np.concatenate(labels), np.repeat(np.arange(groups), counts)


def drawn_groups(seed=0, *, classes=60, units=600):
    """Groups of one class each, drawn into three parts at random, and what each class should have in each part."""
    random = np.random.default_rng(seed)
    own, images = np.arange(units) % classes, random.integers(1, 9, units)
    targets = np.bincount(own, images) * np.array([[0.7], [0.15], [0.15]])
    return own, images, random.choice(3, units, p=[0.7, 0.15, 0.15]), targets


def test_evening_out_treats_each_class_alone():
    own, images, parts, targets = drawn_groups()
    together = evened_out(ClassCounts(np.arange(len(own)), own, images, len(targets[0])), parts, targets)
    for label, rows in ((label, np.flatnonzero(own == label)) for label in range(len(targets[0]))):
        counts = ClassCounts(np.arange(len(rows)), own[rows] * 0, images[rows], 1)
        assert np.array_equal(together[rows], evened_out(counts, parts[rows], targets[:, [label]]))
        has = np.bincount(together[rows], images[rows], 3)
        assert np.abs(has - targets[:, label]).max() <= max(TOLERANCE * has.sum(), images[rows].max() / 2)


def test_evening_out_computes_few_shares(monkeypatch):
    """10,000 groups of 1,000 classes took 83 s without a word, at every start."""
    own, images, parts, targets = drawn_groups()
    looks, shares = [], ClassCounts.shares
    monkeypatch.setattr(ClassCounts, "shares", lambda *given: looks.append(1) or shares(*given))
    evened_out(ClassCounts(np.arange(len(own)), own, images, len(targets[0])), parts, targets)
    assert len(looks) < 20


def test_folds_of_groups_are_as_even_as_scikit_learns():
    ours, theirs = [], []
    for seed in range(8):
        labels, groups = mixed(seed)
        whole = np.bincount(labels) / 5
        samples = made(labels, [f"g{group}" for group in groups])
        for fold in range(1, 6):
            drawn = assign_splits(samples, DataConfig(folds=5, fold=fold, test_fraction=0.0, split_seed=seed))
            assert (parts_of_groups(drawn) == 1).all()
            ours.append(np.abs(drawn.counts("val") / whole - 1).max())
        oracle = StratifiedGroupKFold(5, shuffle=True, random_state=seed)
        theirs += [
            np.abs(np.bincount(labels[val]) / whole - 1).max() for _, val in oracle.split(labels, labels, groups)
        ]
    assert np.mean(ours) <= 1.1 * np.mean(theirs)


@pytest.mark.parametrize("options", [{}, {"folds": 3, "fold": 1, "test_fraction": 0.0}])
def test_each_part_has_each_class_of_enough_groups(options):
    """Of 20 patients with several classes each, the hash alone leaves some part without one in every other draw."""
    for seed in range(40):
        labels, groups = mixed(seed, groups=20, classes=5, sizes=(10, 50))
        samples = made(labels, [f"g{group}" for group in groups], classes=5)
        drawn = assign_splits(samples, DataConfig(split_seed=seed, **options))
        assert (parts_of_groups(drawn) == 1).all()
        for split in ("train", "val") if options else SPLITS:
            assert (drawn.counts(split) > 0).all()


def variants(folder, *, groups=16, near, seed=0):
    """Groups of 12 variants of one picture, a label drawn per group: byte copies, or crops and re-encodings."""
    random = np.random.default_rng(seed)
    for _ in range(groups):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).resize((96, 96))
        fine = random.normal(0, 12, (96, 96, 3))
        picture = Image.fromarray((np.asarray(coarse) + fine).clip(0, 255).astype(np.uint8))
        label = folder / "ab"[int(random.integers(2))]
        label.mkdir(parents=True, exist_ok=True)
        for number in range(12):
            cut = int(random.integers(0, 5)) if near else 0
            small = picture.crop((cut, cut, 96 - cut, 96 - cut)).resize((96, 96))
            suffix = ("jpg", "png", "bmp")[number % 3] if near else "png"
            options = {"quality": int(random.integers(60, 96))} if suffix == "jpg" else {}
            small.save(label / f"{random.integers(10**9):09d}.{suffix}", **options)
    return folder


@pytest.mark.parametrize("near", [False, True])
def test_all_variants_of_a_picture_are_one_group(tmp_path, near):
    samples = split_samples(DataConfig(source=str(variants(tmp_path / "set", near=near)), root=tmp_path))
    assert (parts_of_groups(samples) == 1).all()
    assert np.bincount(samples.groups).tolist() == [12] * 16


def test_copies_are_counted_and_stay_in_one_split(tmp_path):
    folder = class_folders(tmp_path / "set", {"a": 20, "b": 20})
    for name in ("a/003", "b/007"):
        (folder / f"{name}_again.png").write_bytes((folder / f"{name}.png").read_bytes())
    bundle = build_dataloaders(DataConfig(source=str(folder), root=tmp_path), Spec())
    assert "4 images are duplicates, of 2 pictures; each stays in one split" in bundle.samples.notes
    rows = {row.path: row for row in split_table(bundle)}
    for name in ("a/003", "b/007"):
        first, second = rows[f"{name}.png"], rows[f"{name}_again.png"]
        assert first.group == second.group == f"copies-{first.hash}"
        assert first.split == second.split
    assert rows["a/000.png"].group == ""


def test_picture_in_two_splits_or_labels_is_noted(tmp_path):
    folder = class_folders(tmp_path / "set", {f"{split}/{name}": 6 for split in ("train", "test") for name in "ab"})
    (folder / "test/a/copy.png").write_bytes((folder / "train/a/000.png").read_bytes())
    (folder / "train/b/copy.png").write_bytes((folder / "train/a/001.png").read_bytes())
    notes = split_samples(DataConfig(source=str(folder), root=tmp_path)).notes
    assert "1 picture in two splits, first 'train/a/000.png' (train) and 'test/a/copy.png' (test)" in " ".join(notes)
    assert "1 picture in two labels, first 'train/a/001.png' (a) and 'train/b/copy.png' (b)" in " ".join(notes)


def test_copies_of_two_groups_make_them_one():
    samples = made([0, 0, 1, 1, 0, 1], ["p1", "p1", "p2", "p2", "", ""])
    digests = samples.digests.copy()
    digests[1] = digests[2]
    samples = with_copies(samples.replace(digests=digests, pixels=np.zeros((6, 8, 8, 1), np.uint8)))
    assert samples.groups.tolist() == [0, 0, 0, 0, -1, -1]
    assert samples.group_names == ("p1",)


def test_large_sets_note_that_copies_were_not_sought(tmp_path, monkeypatch):
    folder = class_folders(tmp_path / "set", {"a": 10, "b": 10})
    for module in (copies, known):
        monkeypatch.setattr(module, "SEARCHED_UP_TO", 5)
    notes = split_samples(DataConfig(source=str(folder), root=tmp_path)).notes
    assert "near duplicates were not looked for among 20 images; `check` finds them" in notes
    monkeypatch.setattr(known, "READ_UP_TO_FILES", 5)
    samples = split_samples(DataConfig(source=str(folder), root=tmp_path))
    assert samples.hash_kind == "path_hash"
    assert any(note.startswith("duplicates were not looked for: the set is too large") for note in samples.notes)


def test_remembered_is_computed_once_for_equal_stamps(tmp_path):
    calls = []

    def ask(stamps=b"1", key="k", root=tmp_path):
        return remembered("kind", key, stamps, lambda: calls.append(1) or {"a": np.arange(3)}, data_root=root)["a"]

    for words in ({}, {}, {"stamps": b"2"}, {"stamps": b"2"}, {"key": "other"}):
        assert ask(**words).tolist() == [0, 1, 2]
    assert len(calls) == 3
    for file in (tmp_path / "index").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert (ask(b"2").tolist(), len(calls)) == ([0, 1, 2], 4)
    assert (ask(b"2", root=None).tolist(), len(calls)) == ([0, 1, 2], 5)
    (tmp_path / "file").touch()
    assert ask(root=tmp_path / "file").tolist() == [0, 1, 2]  # where nothing can be written


def test_subset_of_labels_keeps_copies_together():
    samples = made([0] * 60 + [1] * 60, [f"g{i // 3}" for i in range(120)])
    drawn = assign_splits(samples, DataConfig())
    few = subset_training(drawn, DataConfig(labels_per_class=6))
    assert few.counts("train").tolist() == [6, 6]
    assert len(set(few.groups[few.indices("train")].tolist())) == 4
