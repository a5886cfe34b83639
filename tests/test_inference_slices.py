"""`evaluate` names the known slices in which a model is surely weaker, and none where there is none."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import ImageFilter
from planted_faults import photograph
from scipy.stats import fisher_exact

from datasets.checking.inspection import inspections
from datasets.sources.image_folder import read_image_folder
from inference.known_slices import weakness
from inference.slices.weak import Slice, chance, comparable, slices_of, weakest

IMAGES = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """500 photographs of five classes, a fifth of each class blurred."""
    root = tmp_path_factory.mktemp("photographs") / "set"
    for number in range(IMAGES):
        image = photograph(number, (48, 40))
        if number % 25 < 5:
            image = image.filter(ImageFilter.GaussianBlur(1.2))
        folder = root / f"class {number % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{number:03}.jpg", quality=92)
    samples = read_image_folder(root).samples
    return SimpleNamespace(samples=samples, indices=np.arange(IMAGES))


@pytest.fixture(scope="module")
def known(dataset):
    rows = dataset.indices
    return list(
        slices_of(dataset.samples, rows, inspections(dataset.samples, rows.tolist(), workers=0, with_facts=True))
    )


def blurred(dataset) -> np.ndarray:
    return np.array([int(path[-7:-4]) % 25 < 5 for path in dataset.samples.paths])


def test_of_one_class_the_chance_is_fishers():
    rng = np.random.default_rng(0)
    for _ in range(20):
        members, wrong = rng.random(60) < 0.3, rng.random(60) < 0.4
        table = [
            [(members & wrong).sum(), (members & ~wrong).sum()],
            [(~members & wrong).sum(), (~members & ~wrong).sum()],
        ]
        expected = fisher_exact(table, alternative="greater").pvalue
        assert chance(members, wrong, np.zeros(60, int)) == pytest.approx(expected)


def test_of_two_classes_the_chance_is_that_of_all_ways_to_deal_the_errors_within_them():
    labels, members = np.array([0, 0, 0, 0, 1, 1, 1]), np.array([1, 1, 0, 0, 1, 0, 0], bool)
    wrong = np.array([1, 1, 0, 0, 1, 0, 0], bool)
    ways = [
        np.array([*first, *second], bool)
        for first in set(itertools.permutations(wrong[:4]))
        for second in set(itertools.permutations(wrong[4:]))
    ]
    expected = np.mean([(way & members).sum() >= (wrong & members).sum() for way in ways])
    assert chance(members, wrong, labels) == pytest.approx(expected)


def test_a_class_that_is_hard_makes_no_slice_weak():
    labels = np.repeat([0, 1], 100)
    right = np.where(labels == 0, np.arange(200) % 2 == 0, np.arange(200) % 20 != 0)
    members = labels == 0
    assert not weakest([Slice("camera", "old", members)], right, labels).weak


def test_the_figures_beside_a_weak_slice_are_of_the_same_classes():
    """A slice of an easy class: right more often than all other images, and weak."""
    labels = np.repeat([0, 1], [120, 300])
    right = np.concatenate([np.arange(60) % 5 < 3, np.arange(60) % 20 > 0, np.arange(300) % 10 == 0])
    members = np.arange(420) < 60
    assert right[members].mean() > right[~members].mean()
    (one,) = weakest([Slice("camera", "old", members)], right, labels).weak
    assert (one.accuracy, one.others) == pytest.approx((0.6, 0.95))


def test_what_is_named_is_weaker_in_the_figures_shown():
    """Also where the slice holds more of the easy classes."""
    rng, named, misleading = np.random.default_rng(3), 0, 0
    for _ in range(300):
        labels = rng.integers(0, 4, 180)
        easy = rng.uniform(0.05, 0.95, 4)[labels]
        members = rng.random(180) < easy
        right = rng.random(180) < easy - 0.3 * members
        for one in weakest([Slice("brightness", "dark", members)], right, labels).weak:
            named, misleading = named + 1, misleading + (one.accuracy >= right[~members].mean())
            assert one.accuracy < one.others
    assert named > 100
    assert misleading > 5  # by the accuracy of all other images


def test_others_count_each_class_as_often_as_the_slice_has_it():
    """The oracle: one image after the other, and the mean of the others of its class, or its own class where there is
    no other."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        labels, members, right = rng.integers(0, 3, 40), rng.random(40) < 0.4, rng.random(40) < 0.5
        members |= labels == 2
        shares = []
        for image in np.flatnonzero(members):
            others = [k for k in range(40) if labels[k] == labels[image] and not members[k]]
            own = [k for k in range(40) if labels[k] == labels[image]]
            shares.append(right[others or own].mean())
        assert comparable(members, right, labels) == pytest.approx(np.mean(shares))


def test_a_blurred_fifth_is_found_in_nine_of_ten_at_500_images(dataset, known):
    rng, soft, labels = np.random.default_rng(0), blurred(dataset), dataset.samples.labels.astype(int)
    found = 0
    for _ in range(50):
        right = rng.random(IMAGES) < np.where(soft, 0.65, 0.85)
        found += any(one.fact in ("sharpness", "detail") for one in weakest(known, right, labels).weak)
    assert found >= 45


def test_none_is_found_in_95_of_100_runs_without(dataset, known):
    rng, labels = np.random.default_rng(1), dataset.samples.labels.astype(int)
    shares = rng.uniform(0.6, 0.98, 5)[labels]
    assert len(known) >= 6
    assert sum(bool(weakest(known, rng.random(IMAGES) < shares, labels).weak) for _ in range(100)) <= 5


def test_images_of_one_group_say_less(dataset, known):
    right = ~blurred(dataset) | (np.arange(IMAGES) % 3 > 0)
    labels = dataset.samples.labels.astype(int)
    assert weakest(known, right, labels).weak
    assert not weakest(known, right, labels, effect=60.0).weak


def test_the_files_are_looked_at_and_the_slice_is_named_in_words(dataset):
    found = weakness(dataset, ~blurred(dataset))
    assert found.weak[0].name in ("the least sharp fifth", "the fifth with the least detail")
    line = next(found.lines())
    assert line.strip().startswith("weak where")
    assert "% of others in the same mix of classes" in line
