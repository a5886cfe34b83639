"""The images of a command: found by one walk, whatever lies among them, identified and split once."""

import csv
import os
import tarfile

import numpy as np
import pytest
from fake_sets import Spec, class_folders, save, write_table
from small_run import call, make_run

from commands.clean import Options as CleanOptions
from datasets import DataConfig, DataError, build_dataloaders, split_table
from datasets import open as images
from datasets.checking.check import check_source
from datasets.open import LISTING, SPLITTING, OpenedImages, labelled_samples, split_samples
from datasets.sources import walk as walking
from inference.labels.picks import read_pool


def train(folder, root, **_):
    return {row.path for row in split_table(build_dataloaders(DataConfig(str(folder), root, workers=0), Spec()))}


def check(folder, root, **_):
    return set(check_source(str(folder), data_root=root, near=False).reading.samples.paths)


def clean(folder, root, **_):
    return set(split_samples(CleanOptions(str(folder), data_root=root).images).paths)


def choose_next(folder, root, **_):
    return {os.path.relpath(path, folder) for path in read_pool(str(folder), root).samples.paths}


def pack(folder, root, capsys, **_):
    assert call(capsys, "pack", folder, root / "packed")[0] == 0
    names = set()
    for shard in (root / "packed").glob("*.tar"):
        with tarfile.open(shard) as file:
            names |= {name for name in file.getnames() if name.lower().endswith((".png", ".jpg"))}
    return names


def predict(folder, root, capsys, run):
    code, out, _ = call(capsys, "predict", run, folder)
    assert code == 0
    return {os.path.relpath(row["path"], folder) for row in csv.DictReader(out.splitlines())}


def evaluate(folder, root, capsys, run):
    assert call(capsys, "evaluate", run, "--data", folder, "--output", root / "scores")[0] == 0
    with next((root / "scores").rglob("*predictions*.csv")).open() as file:
        return {row["path"] for row in csv.DictReader(file)}


HIDDEN = (
    "a/._0.png", "__MACOSX/a/._0.png", "a/.ipynb_checkpoints/0-checkpoint.png", "@eaDir/0.png/THUMB.png", ".git/0.png",
    "a/.thumbnails/0.png", "$RECYCLE.BIN/$R1.png", "b/#recycle/0.png", ".Trash-1000/old.png", "b/.syncthing.0.png",
)  # fmt: skip


def left_by_others(folder):
    """Class folders, with pictures that are hidden, that lie deeper, and that a link leads to."""
    for number, path in enumerate(HIDDEN):
        save(folder / path, seed=100 + number)
    for number in range(6):
        save(folder / "b" / "left" / "deeper" / f"{number}.png", seed=200 + number)
        save(folder.parent / "elsewhere" / "more" / f"{number}.jpg", seed=300 + number)
    (folder / "a" / "linked").symlink_to(folder.parent / "elsewhere")
    (folder / "a" / "notes.txt").write_text("a note")
    return folder


@pytest.mark.parametrize("command", [train, check, clean, choose_next, pack, predict, evaluate])
def test_every_command_finds_the_same_pictures(tmp_path, capsys, command):
    folder = left_by_others(class_folders(tmp_path / "set", {"a": 8, "b": 8}))
    expected = {f"{label}/{number:03}.png" for label in "ab" for number in range(8)}
    expected |= {f"b/left/deeper/{number}.png" for number in range(6)}
    expected |= {f"a/linked/more/{number}.jpg" for number in range(6)}
    run = make_run(tmp_path / "run", classes=("a", "b"), name="vit_micro_2")
    assert command(folder, tmp_path, capsys=capsys, run=run) == expected


def test_predict_counts_hidden_and_reads_named_ones(tmp_path, capsys):
    folder = left_by_others(class_folders(tmp_path / "set", {"a": 2}))
    run = make_run(tmp_path / "run", name="vit_micro_2")
    _, out, err = call(capsys, "predict", run, folder)
    assert f"{len(HIDDEN) - 1} pictures" in err  # git's are its own
    assert not any(path in out for path in HIDDEN)
    code, out, err = call(capsys, "predict", run, folder / HIDDEN[0], folder / "a" / ".thumbnails")
    assert (code, out.count("png"), "left out" in err) == (0, 2, False)


def mutual(folder):
    for one in folder.iterdir():
        for other in ("a", "b", "c", "d"):
            if one.name != other:
                (one / f"to {other}").symlink_to(folder / other)


def everybody(folder):
    """Twelve folders with a link to each other one: paths without a repeat are more than a billion."""
    names = [f"n{number}" for number in range(12)]
    for name in names:
        (folder / "a" / name).mkdir()
    for name in names:
        for other in names:
            (folder / "a" / name / f"to {other}").symlink_to(folder / "a" / other)


def next_to_it(folder):
    (folder.parent / "extra").mkdir()
    (folder.parent / "extra" / "original").symlink_to(folder)
    for one in folder.iterdir():
        (one / "more").symlink_to(folder.parent / "extra")


def above(folder):
    (folder / "a" / "up").symlink_to(folder.parent)


def itself(folder):
    (folder / "a" / "loop").symlink_to(".")


@pytest.mark.parametrize("link", [mutual, everybody, next_to_it, above, itself])
def test_links_in_a_circle_are_named_and_end(tmp_path, capsys, link):
    folder = class_folders(tmp_path / "set", dict.fromkeys("abcd", 3))
    link(folder)
    found = check_source(str(folder), near=False).findings
    assert {finding.kind for finding in found if finding.severity == "error"} - {"duplicate_with_two_labels"} == {
        "broken_link"
    }
    assert max(finding.path.count("/") for finding in found) < 16
    with pytest.raises(DataError, match="circle"):
        train(folder, tmp_path)
    table = [(f"{label}/{number:03}", label) for label in "abcd" for number in range(3)]
    table = write_table(folder / "labels.csv", table)
    assert len(check_source(str(table), near=False).reading.samples) == 12
    assert len({os.path.realpath(folder / path) for path in choose_next(folder, tmp_path)}) == 12


@pytest.mark.parametrize("command", [train, choose_next, predict])
def test_a_folder_that_cannot_be_listed_is_named(tmp_path, capsys, monkeypatch, command):
    folder = class_folders(tmp_path / "set", {"a": 3, "b": 3})
    save(folder / "b" / "closed" / "1.png")
    listed, access = walking.list_entries, os.access

    def refuse(place):
        if os.path.basename(place) == "closed":
            raise PermissionError(13, "Permission denied", place)
        return listed(place)

    monkeypatch.setattr(walking, "list_entries", refuse)
    monkeypatch.setattr(os, "access", lambda path, *how: "closed" not in str(path) and access(path, *how))
    if command is predict:
        run = make_run(tmp_path / "run", classes=("a", "b"), name="vit_micro_2")
        code, out, err = call(capsys, "predict", run, folder)
        assert (code, out.count("png"), "closed" in err) == (3, 6, True)
        return
    with pytest.raises(DataError, match=r"closed.*cannot be listed"):
        command(folder, tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("opened") / "pets"
    class_folders(root, {"cats": 24, "dogs": 24})
    return root


def counted(monkeypatch):
    """The names of the functions that open and split, as they are called."""
    calls = []
    for name in ("open_samples", "split_set"):
        original = getattr(images, name)
        monkeypatch.setattr(images, name, lambda *args, name=name, its=original: calls.append(name) or its(*args))
    return calls


@pytest.mark.parametrize(
    "changed", [{}, {"split_seed": 3}, {"val_fraction": 0.3}, {"folds": 3, "fold": 2}, {"labels_per_class": 2}], ids=str
)
def test_opened_images_are_those_of_opening_anew(folder, tmp_path, changed):
    opened, config = OpenedImages(), DataConfig(source=str(folder), root=tmp_path)
    opened.split(config)
    config = DataConfig(source=str(folder), root=tmp_path, **changed)
    expected, found = split_samples(config), opened.split(config)
    np.testing.assert_array_equal(found.splits, expected.splits)
    assert list(found.paths) == list(expected.paths)


def test_only_what_an_option_changes_is_done_anew(folder, tmp_path, monkeypatch):
    calls, opened = counted(monkeypatch), OpenedImages()
    config = {"source": str(folder), "root": tmp_path}
    first = opened.split(DataConfig(**config))
    feeding = {"labels_per_class": 3, "balance": "loss", "augment": "none", "mirror": "no", "cache": "off"}
    feeding |= {"batch_size": 4, "workers": 0, "allow_seen": True}
    assert opened.split(DataConfig(**config, **feeding)) is first
    assert calls == ["open_samples", "split_set"]
    opened.split(DataConfig(**config, split_seed=1))
    assert calls == ["open_samples", "split_set", "split_set"]


def test_every_data_option_lists_splits_or_feeds():
    """An option that is added and forgotten would give the table of other options."""
    feeding = {"labels_per_class", "fraction", "balance", "augment", "mirror", "allow_seen", "cache", "batch_size"}
    assert {*SPLITTING, *feeding, "workers"} == set(DataConfig.__dataclass_fields__)
    assert set(LISTING) < set(SPLITTING)


def test_scoring_one_class_of_folders_takes_another(tmp_path):
    class_folders(tmp_path / "set" / "cats", {"tom": 3, "kitty": 3})
    config = DataConfig(source=str(tmp_path / "set"), root=tmp_path / "data")
    with pytest.raises(DataError, match=r"set/cats is one class: put an empty folder of another class next to it"):
        labelled_samples(config, class_names=["dogs", "cats"])
    (tmp_path / "set" / "dogs").mkdir()
    assert labelled_samples(config, class_names=["dogs", "cats"]).labels.tolist() == [1] * 6


def test_a_list_that_leaves_no_image_to_score_is_named(tmp_path):
    class_folders(tmp_path / "set", {"cats": 2, "dogs": 1})
    listed = write_table(tmp_path / "all.csv", [("cats/000.png",), ("cats/001.png",), ("dogs/000.png",)], ("path",))
    config = DataConfig(source=str(tmp_path / "set"), root=tmp_path / "data", exclude=listed)
    with pytest.raises(DataError, match=r"all.csv lists every image"):
        labelled_samples(config, class_names=["dogs", "cats"])


SMALL = ("--model", "vit_micro_2", "--image-size", "32", "--epochs", "1")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--minutes", "0.05"], marks=pytest.mark.slow, id="minutes"),
        pytest.param(SMALL, id="one run"),
        pytest.param([*SMALL, "--seeds", "2", "--jobs", "1"], id="seeds"),
    ],
)
def test_train_opens_its_images_once(folder, tmp_path, monkeypatch, capsys, words):
    """As `compare` does: test_datasets_groups.py, where one runs."""
    calls = counted(monkeypatch)
    data = ("--data", folder, "--data-root", tmp_path / "data", "--workers", "0", "--tb", "scalars", "--device", "cpu")
    assert call(capsys, "train", *words, *data, "--output-dir", tmp_path / "runs")[0] == 0
    assert calls.count("open_samples") == 1
