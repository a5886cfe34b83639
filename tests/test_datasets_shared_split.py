"""The split that all runs of a comparison use, and what is wrong with it."""

import numpy as np
import pytest
from fake_sets import class_folders

from datasets import DataConfig
from datasets.shared_split import copies_of_training_images, have_seen, shared_split


def test_a_set_with_test_images_keeps_its_split():
    split = shared_split(DataConfig(source="digits"))
    assert not split.halved
    assert (split.size("train"), split.size("val"), split.size("test")) == (1258, 179, 360)


def test_half_of_val_is_held_out_where_there_is_no_test_and_each_class_keeps_its_share(tmp_path):
    data = class_folders(tmp_path, {"train/a": 6, "train/b": 6, "val/a": 8, "val/b": 4})
    split = shared_split(DataConfig(source=str(data)))
    assert split.halved
    counts = {part: np.bincount(split.samples.labels[split.samples.indices(part)]).tolist() for part in ("val", "test")}
    assert counts == {"val": [4, 2], "test": [4, 2]}
    again = shared_split(DataConfig(source=str(data)))
    assert np.array_equal(again.samples.splits, split.samples.splits)


@pytest.mark.parametrize("twin", ["train", "val"])
def test_a_test_image_that_is_also_a_training_image_is_named(tmp_path, twin):
    data = class_folders(tmp_path, {f"{split}/{name}": 4 for split in ("train", "val", "test") for name in "ab"})
    source = sorted((data / twin / "a").iterdir())[0]
    (data / "test" / "a" / "copy.png").write_bytes(source.read_bytes())
    found = copies_of_training_images(shared_split(DataConfig(source=str(data))).samples)
    assert found == (["test/a/copy.png"] if twin == "train" else [])


def test_weights_are_known_to_have_seen_what_they_were_trained_on():
    pairs = [("fashion_mnist", "fashion_mnist"), ("imagenet", "hymenoptera"), ("imagenet", "fashion_mnist"),
             ("fashion_mnist", "dog_breed"), ("imagenet", "digits"), ("tiny_imagenet", "/some/folder"),
             ("none", "hymenoptera"), (None, "hymenoptera"), ("tiny_imagenet", "fashion_mnist")]  # fmt: skip
    assert [have_seen(*pair) for pair in pairs] == [True, True, *5 * [False], True, False]
