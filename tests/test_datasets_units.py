"""What belongs together stays together: copies and groups are one unit in every drawn split and fold."""

import numpy as np
import pytest
from fake_sets import Spec, class_folders
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.neighbors import KNeighborsClassifier

from datasets import DataConfig, build_dataloaders, identity, split_table, units
from datasets.bundle import UNSPLIT, PathTable, Samples
from datasets.identity import CONTENT_HASH, identified
from datasets.loaders import split_samples
from datasets.splits import assign_splits, subset_training
from datasets.units import joined, with_copies


def made(labels, groups=None, *, classes=None, seed=0):
    """Samples with random contents; `groups`: the name of the group of each image."""
    labels = np.asarray(labels, np.int32)
    names = tuple(f"c{i}" for i in range(classes or labels.max() + 1))
    digests = np.random.default_rng(seed).integers(0, 256, (len(labels), 8), np.uint8)
    paths = PathTable([f"{i:06d}" for i in range(len(labels))])
    splits = np.full(len(labels), UNSPLIT, np.int8)
    samples = Samples("made", names, paths, labels, splits, digests=digests, hash_kind=CONTENT_HASH)
    return samples if groups is None else joined(samples, groups)


def parts_of_groups(samples):
    """How many splits each group stands in."""
    pairs = {(group, split) for group, split in zip(samples.groups, samples.splits, strict=True) if group >= 0}
    return np.bincount([group for group, _ in pairs])


def shares(samples, split):
    return samples.counts(split) / np.bincount(samples.labels)


@pytest.mark.parametrize("sizes", [(1, 3), (2, 6), (8, 8), (1, 12)])
def test_no_group_is_torn_and_small_ones_change_no_share_by_two_points(sizes):
    random = np.random.default_rng(0)
    for seed in range(25):
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
            assert np.abs(shares(grouped, split) - shares(plain, split)).max() <= 0.02 + 1e-9


def test_groups_of_several_classes_are_balanced_as_well_as_scikit_learn_does_it():
    random, ours, theirs = np.random.default_rng(0), [], []
    for seed in range(10):
        profiles = random.dirichlet([0.5] * 4, 60)
        sizes = random.integers(5, 30, 60)
        groups = np.repeat(np.arange(60), sizes)
        labels = np.concatenate([random.choice(4, size, p=p) for size, p in zip(sizes, profiles, strict=True)])
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
    assert np.mean(ours) <= np.mean(theirs)


def test_folds_of_groups_partition_the_images():
    groups = [f"g{i // 7}" for i in range(420)]
    labels = [i // 7 % 3 for i in range(420)]
    samples = made(labels, groups)
    folds = [assign_splits(samples, DataConfig(folds=4, fold=k, test_fraction=0.2)) for k in range(1, 5)]
    together = np.concatenate([fold.indices("val") for fold in folds] + [folds[0].indices("test")])
    assert sorted(together) == list(range(420))
    assert all((parts_of_groups(fold) == 1).all() for fold in folds)


def test_groups_that_are_too_large_for_their_shares_are_said():
    labels, groups = [0] * 120 + [1] * 120, [f"a{i // 40}" for i in range(120)] + [f"b{i}" for i in range(120)]
    samples = assign_splits(made(labels, groups), DataConfig())
    assert (parts_of_groups(samples) == 1).all()
    assert any("groups are too large for even shares" in note for note in samples.notes)
    assert samples.counts("val")[0] == samples.counts("test")[0] == 40  # one of three groups each, not none


def variants(folder, *, groups=40, near, seed=0):
    """Groups of 12 variants of one picture, a label drawn per group: byte copies, or crops and re-encodings."""
    random = np.random.default_rng(seed)
    for _ in range(groups):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).resize(
            (96, 96), Image.Resampling.BICUBIC
        )
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


def seen_small(samples):
    """float (N, 768): every picture at 16 x 16 pixels."""
    pictures = (Image.open(samples.file(row)).convert("RGB").resize((16, 16)) for row in range(len(samples)))
    return np.stack([np.asarray(picture, float).ravel() for picture in pictures])


def accuracy_by_heart(samples, pixels):
    """Share of val and test images whose nearest training image has their label: what learning by heart gives."""
    train = samples.indices("train")
    held_out = np.concatenate([samples.indices("val"), samples.indices("test")])
    model = KNeighborsClassifier(1).fit(pixels[train], samples.labels[train])
    return model.score(pixels[held_out], samples.labels[held_out])


@pytest.mark.parametrize("near", [False, True])
def test_random_labels_of_copied_pictures_are_guessed_at_chance(tmp_path, near):
    folder = variants(tmp_path / "set", near=near)
    samples = split_samples(DataConfig(source=str(folder), root=tmp_path))
    assert (parts_of_groups(samples) == 1).all()
    assert len(samples.group_names) == 40  # every variant is found, and no two pictures are taken for one
    pixels, scores = seen_small(samples), []
    for seed in range(20):
        drawn = assign_splits(samples.replace(splits=np.full(480, UNSPLIT, np.int8)), DataConfig(split_seed=seed))
        scores.append(accuracy_by_heart(drawn, pixels))
    # 12 of 40 groups are held out, each with a label of its own: over 20 draws the standard error is under 8 points.
    assert 0.34 < np.mean(scores) < 0.66
    by_place = np.random.default_rng(0).permutation(np.repeat(np.array([0, 1, 2], np.int8), [336, 72, 72]))
    assert accuracy_by_heart(samples.replace(splits=by_place), pixels) > 0.95  # so the test has teeth


def test_copies_are_counted_in_one_line_and_stay_in_one_split(tmp_path):
    folder = class_folders(tmp_path / "set", {"a": 20, "b": 20})
    for name in ("a/003", "b/007"):
        (folder / f"{name}_again.png").write_bytes((folder / f"{name}.png").read_bytes())
    bundle = build_dataloaders(DataConfig(source=str(folder), root=tmp_path), Spec())
    assert "4 images are copies of one another, 2 pictures; each picture stays in one split with its copies" in (
        bundle.samples.notes
    )
    rows = {row.path: row for row in split_table(bundle)}
    for name in ("a/003", "b/007"):
        first, second = rows[f"{name}.png"], rows[f"{name}_again.png"]
        assert first.group == second.group == f"copies-{first.hash}"
        assert first.split == second.split
    assert rows["a/000.png"].group == ""


def test_one_picture_in_two_given_splits_or_under_two_labels_is_said_before_training(tmp_path):
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


def test_sets_that_are_too_large_to_read_say_that_copies_were_not_looked_for(tmp_path, monkeypatch):
    folder = class_folders(tmp_path / "set", {"a": 10, "b": 10})
    monkeypatch.setattr(units, "SEARCHED_UP_TO", 5)
    notes = split_samples(DataConfig(source=str(folder), root=tmp_path)).notes
    assert "near copies were not looked for among 20 images; `check` finds them" in notes
    monkeypatch.setattr(identity, "READ_UP_TO_FILES", 5)
    samples = split_samples(DataConfig(source=str(folder), root=tmp_path))
    assert samples.hash_kind == "path_hash"
    assert any(note.startswith("copies were not looked for: the set is too large") for note in samples.notes)


def test_near_copies_are_looked_for_once(tmp_path, monkeypatch):
    folder = variants(tmp_path / "set", groups=4, near=True)
    monkeypatch.setattr(units, "KEPT_FROM", 1)
    config = DataConfig(source=str(folder), root=tmp_path)
    before = split_samples(config)
    monkeypatch.setattr("datasets.checking.inspection.inspect_file", lambda *_, **__: pytest.fail("looked again"))
    assert np.array_equal(split_samples(config).groups, before.groups)
    (kept,) = (tmp_path / "index").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(pytest.fail.Exception, match="looked again"):
        split_samples(config)


def test_a_file_is_hashed_again_only_if_it_changed(tmp_path, monkeypatch):
    folder = class_folders(tmp_path / "set", {"a": 6, "b": 6})
    monkeypatch.setattr(identity, "KEPT_FROM", 1)
    monkeypatch.setattr(identity, "SETTLED", -1e15)
    samples = split_samples(DataConfig(source=str(folder), root=tmp_path)).replace(digests=None)
    read = []
    monkeypatch.setattr(
        identity, "content_digest", lambda _, row, true=identity.content_digest: read.append(row) or true(_, row)
    )
    for forget in (lambda: None, identity._READ.clear):
        forget()
        assert np.array_equal(identified(samples, tmp_path).digests, identified(samples, tmp_path).digests)
        assert not read
    (folder / "a" / "002.png").write_bytes((folder / "b" / "002.png").read_bytes())
    now = identified(samples, tmp_path)
    assert [samples.paths[row] for row in read] == ["a/002.png"]
    assert np.array_equal(*(now.digests[list(samples.paths).index(f"{name}/002.png")] for name in "ab"))


def test_a_subset_of_the_labels_keeps_copies_side_by_side():
    samples = made([0] * 60 + [1] * 60, [f"g{i // 3}" for i in range(120)])
    drawn = assign_splits(samples, DataConfig())
    few = subset_training(drawn, DataConfig(labels_per_class=6))
    assert few.counts("train").tolist() == [6, 6]
    assert len(set(few.groups[few.indices("train")].tolist())) == 4
