"""The images of a command are listed, identified and split once."""

import numpy as np
import pytest
from fake_sets import class_folders

import main
from common.errors import DataError
from datasets import open as images
from datasets.config import DataConfig
from datasets.open import LISTING, SPLITTING, OpenedImages, labelled_samples, split_samples


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
        monkeypatch.setattr(
            images, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1]
        )
    return calls


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"split_seed": 3},
        {"val_fraction": 0.3},
        {"folds": 3, "fold": 2},
        {"labels_per_class": 2},
    ],
)
def test_it_gives_what_opening_anew_gives(folder, tmp_path, changed):
    opened, config = OpenedImages(), DataConfig(source=str(folder), root=tmp_path)
    opened.split(config)
    config = DataConfig(source=str(folder), root=tmp_path, **changed)
    expected, found = split_samples(config), opened.split(config)
    np.testing.assert_array_equal(found.splits, expected.splits)
    assert list(found.paths) == list(expected.paths)


def test_what_only_feeds_opens_nothing_anew_and_another_split_lists_nothing_anew(folder, tmp_path, monkeypatch):
    calls, opened = counted(monkeypatch), OpenedImages()
    config = {"source": str(folder), "root": tmp_path}
    first = opened.split(DataConfig(**config))
    feeding = {"labels_per_class": 3, "balance": "loss", "augment": "none", "mirror": "no", "cache": "off"}
    feeding |= {"batch_size": 4, "workers": 0, "allow_seen": True}
    assert opened.split(DataConfig(**config, **feeding)) is first
    assert calls == ["open_samples", "split_set"]
    opened.split(DataConfig(**config, split_seed=1))
    assert calls == ["open_samples", "split_set", "split_set"]


def test_every_option_is_known_to_list_to_split_or_to_feed():
    """An option that is added and forgotten would give the table of other options."""
    feeding = {"labels_per_class", "fraction", "balance", "augment", "mirror", "allow_seen", "cache", "batch_size"}
    assert {*SPLITTING, *feeding, "workers"} == set(DataConfig.__dataclass_fields__)
    assert set(LISTING) < set(SPLITTING)


def test_one_class_whose_images_lie_in_folders_is_scored_next_to_an_empty_folder_of_another(tmp_path):
    class_folders(tmp_path / "set" / "cats", {"tom": 3, "kitty": 3})
    config = DataConfig(source=str(tmp_path / "set"), root=tmp_path / "data")
    with pytest.raises(DataError, match=r"set/cats is one class: put an empty folder of another class next to it"):
        labelled_samples(config, class_names=["dogs", "cats"])
    (tmp_path / "set" / "dogs").mkdir()
    assert labelled_samples(config, class_names=["dogs", "cats"]).labels.tolist() == [1] * 6


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["train", "--minutes", "0.05"], marks=pytest.mark.slow),
        ["train", "--model", "vit_micro_4", "--image-size", "32", "--epochs", "1"],
        ["train", "--seeds", "2", "--model", "vit_micro_4", "--image-size", "32", "--epochs", "1", "--jobs", "1"],
        ["compare", "--arms", "vit_micro_4", "vit_micro_4,pool=mean", "--image-size", "32", "--images-seen", "64",
         "--seeds", "1", "--tune-lr", "off"],
    ],
    ids=["minutes", "one run", "seeds", "comparison"],
)  # fmt: skip
def test_a_command_opens_its_images_once(folder, tmp_path, monkeypatch, words):
    calls = counted(monkeypatch)
    data = ["--data", str(folder), "--data-root", str(tmp_path / "data"), "--workers", "0", "--tb", "scalars"]
    assert main.main([*words, *data, "--device", "cpu", "--output-dir", str(tmp_path / "runs")]) == 0
    assert calls.count("open_samples") == 1
