"""Splits: in proportion, seeded, saved and reused, cut into folds, shared by the runs of a comparison."""

import numpy as np
import pandas as pd
import pytest
from fake_sets import Spec, class_folders
from sklearn.model_selection import StratifiedKFold

from comparison.shared_split import copies_of_training_images, shared_split
from datasets import DataConfig, DataError, build_dataloaders, fingerprint, split_table, write_split
from datasets.built_in import have_learnt
from datasets.bundle import UNSPLIT, PathTable, Samples
from datasets.split import assign_splits, require_complete, subset_training


def made(counts, splits=None, **more):
    labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    codes = np.full(len(labels), UNSPLIT, np.int8) if splits is None else np.array(splits, np.int8)
    paths = PathTable([f"{label}/{i}" for i, label in enumerate(labels)])
    return Samples("made", tuple(f"c{i}" for i in range(len(counts))), paths, labels, codes, **more)


def opened(folder, **options):
    return build_dataloaders(DataConfig(source=str(folder), **options), Spec())


def sizes(samples, split):
    return np.bincount(samples.labels[samples.indices(split)], minlength=len(samples.class_names)).tolist()


@pytest.mark.parametrize("counts", [[7, 11, 13], [3] * 40, [1000, 9, 1], [5, 5]])
def test_totals_are_exact_and_classes_nearly(counts):
    samples = assign_splits(made(counts), DataConfig(val_fraction=0.2, test_fraction=0.2))
    expected = np.array(counts) * 0.2
    assert (np.abs(np.array(sizes(samples, "test")) - expected) < 1).all()
    if min(counts) > 2:
        assert sum(sizes(samples, "test")) == int(np.ceil(sum(counts) * 0.2 - 1e-9))


def test_the_split_depends_on_its_own_seed_only():
    first = assign_splits(made([50, 50]), DataConfig())
    assert np.array_equal(first.splits, assign_splits(made([50, 50]), DataConfig()).splits)
    assert not np.array_equal(first.splits, assign_splits(made([50, 50]), DataConfig(split_seed=1)).splits)
    one, two = (build_dataloaders(DataConfig(), Spec(image_size=8), seed=seed) for seed in (0, 5))
    assert fingerprint(one) == fingerprint(two)


def test_class_of_one_image_trains_with_a_note_of_val():
    samples = require_complete(assign_splits(made([30, 1, 2]), DataConfig()))
    assert sizes(samples, "train")[1] == 1
    assert min(sizes(samples, "train")) >= 1
    assert any("classes have no val image: 'c1'" in note for note in samples.notes)


def test_given_test_split_stays_and_val_leaves_train():
    samples = assign_splits(made([40, 40], splits=[0] * 60 + [2] * 20), DataConfig(val_fraction=0.1))
    assert sum(sizes(samples, "test")) == 20
    assert sum(sizes(samples, "val")) == 6


def test_folds_partition_the_images_like_scikit_learns():
    counts = [23, 17, 10]
    folds = [assign_splits(made(counts), DataConfig(folds=5, fold=k, test_fraction=0.2)) for k in range(1, 6)]
    test = folds[0].indices("test")
    assert all(np.array_equal(fold.indices("test"), test) for fold in folds)
    together = np.concatenate([fold.indices("val") for fold in folds])
    assert sorted([*together, *test]) == list(range(50))
    labels = folds[0].labels[np.setdiff1d(np.arange(50), test)]
    oracle = [np.bincount(labels[val], minlength=3) for _, val in StratifiedKFold(5).split(labels, labels)]
    for fold in folds:
        assert not set(fold.indices("val")) & set(fold.indices("train"))
        assert len(fold.indices("val")) in {len(labels) // 5, -(-len(labels) // 5)}
        assert (np.abs(np.array(sizes(fold, "val")) - np.mean(oracle, axis=0)) < 1).all()


def test_folds_need_a_fold_and_enough_images():
    with pytest.raises(ValueError, match="folds=4 needs fold"):
        assign_splits(made([10]), DataConfig(folds=4))
    with pytest.raises(DataError, match="3 images for 4 folds"):
        assign_splits(made([3]), DataConfig(folds=4, fold=1, test_fraction=0.0))
    with pytest.raises(ValueError, match="must lie in 1 to 4"):
        DataConfig(folds=4, fold=5)


def test_fraction_and_labels_thin_out_training_alone():
    samples = assign_splits(made([100, 40, 6]), DataConfig())
    few = subset_training(samples, DataConfig(labels_per_class=5))
    assert sizes(few, "train") == [5, 5, 4]
    assert any("1 of 3 classes have fewer than 5" in note for note in few.notes)
    part = subset_training(samples, DataConfig(fraction=0.1))
    assert sizes(part, "train") == [round(n * 0.1) or 1 for n in sizes(samples, "train")]
    for subset in (few, part):
        assert sizes(subset, "val") == sizes(samples, "val")
        assert sizes(subset, "test") == sizes(samples, "test")
        assert set(subset.indices("train")) < set(samples.indices("train"))
    more = subset_training(samples, DataConfig(labels_per_class=10))
    assert set(few.indices("train")) < set(more.indices("train"))  # growing subsets are nested: fair learning curves


def test_a_split_is_written_and_read_back(tmp_path):
    folder = class_folders(tmp_path / "set", {"a b": 12, 'quo"te, comma': 9, "größe 猫": 10})
    drawn = opened(folder, split_seed=4)
    write_split(tmp_path / "split.csv", drawn)
    oracle = pd.DataFrame(split_table(drawn)).rename(columns={"hash": "content_hash"}).drop(columns="kind")
    oracle = oracle.to_csv(index=False)
    assert (tmp_path / "split.csv").read_bytes() == oracle.encode()
    again = opened(folder, split=tmp_path / "split.csv")
    assert fingerprint(again) == fingerprint(drawn)
    assert split_table(again) == split_table(drawn)
    assert {row.label for row in split_table(drawn)} == {"a b", 'quo"te, comma', "größe 猫"}
    part = split_table(drawn)[2:]
    pd.DataFrame(part).to_csv(tmp_path / "part.csv", index=False)
    assert sum(opened(folder, split=tmp_path / "part.csv").dataset_sizes.values()) == 29


@pytest.mark.parametrize(("file", "folders", "sign"), [("000", "\\", ","), ("000", "\\", ";"), ("x\\y", "/", ",")])
def test_split_saved_by_another_program_is_read(tmp_path, file, folders, sign):
    """With the backslashes of Windows, or with one in a name of ours, which stays one."""
    folder = class_folders(tmp_path / "set", {"a": 8, "b,c": 8})
    (folder / "a" / "000.png").rename(folder / "a" / f"{file}.png")
    drawn = opened(folder, split_seed=4)
    table = pd.DataFrame(split_table(drawn))
    table["path"] = table["path"].str.replace("/", folders)
    table.to_csv(tmp_path / "split.csv", index=False, sep=sign)
    assert split_table(opened(folder, split=tmp_path / "split.csv")) == split_table(drawn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="split"), "a split needs split too"),
        (lambda t: t.assign(split="dev"), "split 'dev' is not one of train, val, test"),
        (
            lambda t: t.assign(path="x/" + t["path"]).drop(columns="content_hash"),
            "none of its 12 images is in set, first",
        ),
        (lambda t: t.assign(label=t["label"].map({"a": "b", "b": "a"})), "'a/000.png' has label 'b' there and 'a' in"),
        (lambda t: t.assign(content_hash="0" * 16), "12 images changed since that split was made"),
        (lambda t: t.assign(path="a/000.png"), "appears more than once"),
        (lambda t: t.assign(split="test"), "set has no train images"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(tmp_path, change, message):
    folder = class_folders(tmp_path / "set", {"a": 6, "b": 6})
    write_split(tmp_path / "split.csv", opened(folder))
    table = pd.read_csv(tmp_path / "split.csv")
    change(table).to_csv(tmp_path / "split.csv", index=False)
    with pytest.raises(DataError, match=message):
        opened(folder, split=tmp_path / "split.csv")


def test_fingerprint_changes_with_file_and_split(tmp_path):
    folder = class_folders(tmp_path / "set", {"a": 8, "b": 8})
    marks = [fingerprint(opened(folder, **options)) for options in ({}, {}, {"split_seed": 1}, {"fraction": 0.5})]
    (folder / "a" / "000.png").write_bytes((folder / "b" / "000.png").read_bytes())
    marks.append(fingerprint(opened(folder)))
    assert marks[0] == marks[1]
    assert len({*marks}) == 4


def test_a_set_of_one_class_is_refused_by_its_name():
    with pytest.raises(DataError, match="made has one class, 'c0'; to tell classes apart takes two"):
        require_complete(assign_splits(made([20]), DataConfig()))


def test_fingerprint_of_a_split_ignores_the_others():
    """Features of all images were computed again for an ensemble, where one test image was left out."""
    few, more = (build_dataloaders(DataConfig(labels_per_class=count), Spec()) for count in (4, 5))
    assert fingerprint(few) != fingerprint(more)
    same = {split: fingerprint(few, split) == fingerprint(more, split) for split in few.dataloaders}
    assert same == {"train": False, "val": True, "test": True}
    assert len({fingerprint(few, split) for split in few.dataloaders}) == 3


def test_half_of_val_is_held_out_where_no_test_is(tmp_path):
    data = class_folders(tmp_path, {"train/a": 6, "train/b": 6, "val/a": 8, "val/b": 4})
    split = shared_split(DataConfig(source=str(data)))
    assert split.halved
    counts = {part: np.bincount(split.samples.labels[split.samples.indices(part)]).tolist() for part in ("val", "test")}
    assert counts == {"val": [4, 2], "test": [4, 2]}
    again = shared_split(DataConfig(source=str(data)))
    assert np.array_equal(again.samples.splits, split.samples.splits)
    assert not shared_split(DataConfig(source="digits")).halved


@pytest.mark.parametrize("twin", ["train", "val"])
def test_copies_of_training_images_in_test_are_named(tmp_path, twin):
    data = class_folders(tmp_path, {f"{split}/{name}": 4 for split in ("train", "val", "test") for name in "ab"})
    source = sorted((data / twin / "a").iterdir())[0]
    (data / "test" / "a" / "copy.png").write_bytes(source.read_bytes())
    found = copies_of_training_images(shared_split(DataConfig(source=str(data))).samples)
    assert found == (["test/a/copy.png"] if twin == "train" else [])


def test_have_learnt_knows_the_sets_of_weights():
    pairs = [("fashion_mnist", "fashion_mnist"), ("imagenet", "hymenoptera"), ("imagenet", "fashion_mnist"),
             ("fashion_mnist", "dog_breed"), ("imagenet", "digits"), ("tiny_imagenet", "/some/folder"),
             ("none", "hymenoptera"), (None, "hymenoptera"), ("tiny_imagenet", "fashion_mnist")]  # fmt: skip
    assert [bool(have_learnt(*pair)) for pair in pairs] == [True, True, *5 * [False], True, False]
