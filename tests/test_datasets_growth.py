"""A split survives a change of the folder: what comes, goes or is renamed leaves the other images where they are."""

import os
import shutil
import unicodedata

import numpy as np
import pandas as pd
import pytest
from fake_sets import Spec, class_folders, save

from datasets import DataConfig, DataError, build_dataloaders, known, split_table, write_split
from datasets.bundle import SPLITS


def split_of(folder, **options):
    """Split by hash of the contents."""
    bundle = build_dataloaders(DataConfig(source=str(folder), root=folder.parent / "data", **options), Spec())
    return {row.hash: row.split for row in split_table(bundle)}


def moved(before, after):
    """Images in both that changed sides, and those of them that went from training straight into the test."""
    changed = [name for name in before if name in after and before[name] != after[name]]
    return len(changed), [name for name in changed if (before[name], after[name]) == ("train", "test")]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """80 images in four classes, and the table of their split."""
    root = class_folders(tmp_path_factory.mktemp("made") / "set", {f"c{label}": 20 for label in range(4)})
    write_split(root.parent / "split.csv", build_dataloaders(DataConfig(source=str(root), root=root.parent), Spec()))
    return root, root.parent / "split.csv"


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original[0], tmp_path / "set")


@pytest.fixture
def table(original, tmp_path):
    return shutil.copy(original[1], tmp_path / "split.csv")


def add_first(folder):
    save(folder / "c0" / "!.png", seed=99)


def add_ten(folder):
    for number in range(10):
        save(folder / "c0" / f"z{number}.png", seed=100 + number)


def add_a_class(folder):
    for number in range(20):
        save(folder / "a" / f"{number}.png", seed=200 + number)


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (add_first, 2),
        (add_ten, 4),
        (lambda folder: (folder / "c0" / "000.png").unlink(), 2),
        (lambda folder: (folder / "c0" / "005.png").rename(folder / "c0" / "!.png"), 0),
        (lambda folder: (folder / "c0").rename(folder / "zebra"), 2),  # the order of the classes settles who rounds up
        (add_a_class, 2),
        (lambda folder: [os.utime(file, (1, 1)) for file in folder.rglob("*.png")], 0),
    ],
    ids=["one first", "ten", "without the first", "renamed file", "renamed class", "class", "times"],
)
def test_change_of_the_folder_moves_only_border_images(folder, table, change, most):
    change(folder)
    before = pd.read_csv(table)
    count, into_the_test = moved(dict(zip(before["content_hash"], before["split"], strict=True)), split_of(folder))
    assert count <= most
    assert not into_the_test


def test_split_ignores_order_root_and_form_of_names(folder, tmp_path):
    (folder / "c0").rename(folder / "größe")
    before = split_of(folder)
    elsewhere = tmp_path / "elsewhere" / "other"
    for file in sorted(folder.rglob("*.png"), reverse=True):
        target = elsewhere / unicodedata.normalize("NFD", str(file.relative_to(folder)))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    assert split_of(elsewhere) == before


def test_split_of_a_large_set_follows_from_paths(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(known, "READ_UP_TO_FILES", 10)
    (folder / "c0").rename(folder / "größe")
    before = split_of(folder)
    shutil.copytree(folder, tmp_path / "elsewhere" / "other")
    (tmp_path / "elsewhere/other/größe").rename(tmp_path / "elsewhere/other" / unicodedata.normalize("NFD", "größe"))
    assert split_of(tmp_path / "elsewhere" / "other") == before
    (folder / "c1" / "000.png").unlink()
    assert moved(before, split_of(folder))[0] <= 2


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_growing_set_moves_no_image_and_keeps_shares(tmp_path, seed):
    folder, table = class_folders(tmp_path / "set", {"a": 60, "b": 30}), tmp_path / "split.csv"
    config = DataConfig(source=str(folder), root=tmp_path, split_seed=seed)
    write_split(table, build_dataloaders(config, Spec()))
    grown = DataConfig(source=str(folder), root=tmp_path, split=table, grow=True)
    for step in range(5):
        before = pd.read_csv(table, index_col="path")
        for number in range(len(before) // 5):
            save(folder / "ab"[number % 3 == 0] / f"{step}_{number}.png", seed=1000 * (step + 1) + number)
        write_split(table, build_dataloaders(grown, Spec()))
        after = pd.read_csv(table, index_col="path")
        assert after.loc[before.index, "split"].equals(before["split"])
    assert len(after) > 200
    for _, rows in after.groupby("label"):
        shares = rows["split"].value_counts(normalize=True)
        assert np.abs(shares[["val", "test"]] - 0.15).max() < 0.02


def test_new_images_join_the_group_that_they_belong_to(folder, table, tmp_path):
    before = pd.read_csv(table)
    old = before.groupby("split")["path"].first()
    copies = old.str.replace(".png", "_copy.png")
    for path, copy in zip(old, copies, strict=True):
        shutil.copyfile(folder / path, folder / copy)
    options = DataConfig(source=str(folder), root=tmp_path, split=table, grow=True)
    after = {row.path: row for row in split_table(build_dataloaders(options, Spec()))}
    assert {split: after[copy].split for split, copy in copies.items()} == {split: split for split in SPLITS}
    assert all(after[copy].group == after[path].group != "" for path, copy in zip(old, copies, strict=True))


def notes_of(config):
    bundle = build_dataloaders(config, Spec())
    return " ".join(bundle.dataloaders["train"].dataset.samples.notes), bundle


def test_new_and_missing_images_of_a_table_are_noted(folder, table, tmp_path):
    (folder / "c0" / "003.png").unlink()
    save(folder / "c1" / "new.png", seed=77)
    notes, bundle = notes_of(DataConfig(source=str(folder), root=tmp_path, split=table))
    assert "without 1 image that it names, first 'c0/003.png'" in notes
    assert "without 1 new image, for which --grow is needed" in notes
    assert sum(bundle.dataset_sizes.values()) == 79
    notes, bundle = notes_of(DataConfig(source=str(folder), root=tmp_path, split=table, grow=True))
    assert "with 1 new image: 1 train, 0 val, 0 test" in notes
    assert sum(bundle.dataset_sizes.values()) == 80


def test_renamed_images_and_copies_keep_their_rows(folder, tmp_path):
    table = tmp_path / "split.csv"
    for name in ("twin.png", "triplet.png"):
        shutil.copyfile(folder / "c1" / "000.png", folder / "c1" / name)
    drawn = build_dataloaders(DataConfig(source=str(folder), root=tmp_path), Spec())
    write_split(table, drawn)
    for name in ("000.png", "twin.png", "triplet.png"):
        (folder / "c1" / name).rename(folder / "c1" / f"renamed_{name}")
    notes, bundle = notes_of(DataConfig(source=str(folder), root=tmp_path, split=table))
    assert "without" not in notes
    assert sum(bundle.dataset_sizes.values()) == 82
    before, after = ({row.hash: row.split for row in split_table(each)} for each in (drawn, bundle))
    assert after == before


def test_split_table_refuses_changed_contents(folder, table):
    rows = pd.read_csv(table)
    expected = dict(zip(rows["content_hash"], rows["split"], strict=True))
    for written in (rows.drop(columns="group"), rows[["path", "label", "split"]]):
        written.to_csv(table, index=False)
        assert split_of(folder, split=table) == expected
    rows.assign(content_hash=["0" * 16, *rows["content_hash"][1:]]).to_csv(table, index=False)
    with pytest.raises(DataError, match="1 image changed since that split was made"):
        split_of(folder, split=table)
