"""What it is worth to keep groups together: a network that knows the group again has more right in random folds."""

import numpy as np
from fake_sets import save

from datasets.bundle import LEFT_OUT, SPLITS
from datasets.config import DataConfig
from datasets.grouping.option import with_groups
from datasets.loaders import read_samples
from trainers.multirun import group_worth
from trainers.multirun.out_of_fold import fold_of_each


def frames(folder, groups=12, each=5):
    """Two classes, each group of one class, its images like each other and like nothing else."""
    for group in range(groups):
        for frame in range(each):
            save(folder / f"c{group % 2}" / f"film{group:02d}_{frame}.png", seed=group)
    return DataConfig(source=str(folder), workers=0)


def one_colour_a_group(samples, rows):
    """(n, D) features that say which group it is, and nothing of the class."""
    names = [samples.paths[row].split("/")[-1].split("_")[0] for row in rows]
    return np.eye(len(set(names)), dtype=np.float32)[np.unique(names, return_inverse=True)[1]]


def test_what_names_the_group_alone_is_right_in_random_folds_and_wrong_in_whole_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(group_worth, "frozen_features", one_colour_a_group)
    random, grouped, images = group_worth.accuracies(frames(tmp_path / "films"), r"/(film\d+)_")
    assert (random, images) == (1.0, 60)
    assert grouped <= 0.5


def test_accuracy_is_the_share_of_images_that_models_of_the_other_folds_name():
    labels = np.arange(60) % 3
    features, folds = np.eye(3, dtype=np.float32)[labels], np.arange(60) % 5
    assert group_worth.accuracy(features, labels, folds) == 1
    wrong = np.where(np.arange(60) < 6, (labels + 1) % 3, labels)  # the label of every tenth image
    assert group_worth.accuracy(features, wrong, folds) == 0.9


def test_groups_are_looked_at_whole_and_not_too_many_of_them(tmp_path, monkeypatch):
    samples = with_groups(read_samples(frames(tmp_path / "films")), r"/(film\d+)_")
    monkeypatch.setattr(group_worth, "MOST_IMAGES", 23)
    rows, groups = group_worth.whole_groups(samples)
    assert len(rows) == 20  # four groups of five; a fifth would be too many
    assert np.unique(groups, return_counts=True)[1].tolist() == [5] * 4
    monkeypatch.setattr(group_worth, "MOST_IMAGES", 2)
    assert len(group_worth.whole_groups(samples)[0]) == 5  # one at least
    left = samples.replace(splits=np.where(np.arange(60) < 30, LEFT_OUT, SPLITS.index("train")).astype(np.int8))
    assert (group_worth.whole_groups(left)[0] >= 30).all()


def test_no_class_with_two_groups_is_no_answer(tmp_path):
    assert group_worth.accuracies(frames(tmp_path / "films", groups=2), r"/(film\d+)_") is None
    assert fold_of_each(np.arange(8) % 2, np.arange(8), folds=2).max() == 1
