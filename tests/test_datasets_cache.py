"""Decoded images in memory: the same batches, in as much memory as there is, shared by loader processes."""

import pickle

import numpy as np
import pytest
from loaded import ants_and_bees, batches, build, same

from datasets.bundle import LEFT_OUT
from datasets.image_dataset import ImageCache
from datasets.loaders import with_table
from datasets.processes import available_memory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ants_and_bees(tmp_path_factory.mktemp("data") / "set")


@pytest.mark.parametrize("augment", ["light", "strong"])
def test_cache_changes_nothing(folder, augment):
    expected, cached = build(folder, cache="off", augment=augment), build(folder, cache="on", augment=augment)
    for _ in range(2):  # filled, then read
        assert same(batches(cached), batches(expected))
    assert same(batches(cached, "val"), batches(expected, "val"))


def test_loader_processes_fill_one_shared_cache(folder):
    bundle = build(folder, workers=2)
    batches(bundle)
    cache = bundle.dataloaders["train"].dataset.cache
    assert all(cache.get(i) is not None for i in range(21))


def test_a_pickled_cache_keeps_nothing():
    cache = ImageCache(2, 100)
    cache.put(0, np.ones((1, 2, 3), np.uint8))
    other = pickle.loads(pickle.dumps(cache))
    other.put(0, np.ones((1, 2, 3), np.uint8))
    assert (other.get(0), other.get(1)) == (None, None)


def test_a_full_cache_keeps_what_it_has():
    cache = ImageCache(4, 100)
    pictures = [np.full((1, 6, 7), i, np.uint8) for i in range(4)]
    for i, picture in enumerate(pictures):
        cache.put(i, picture)
    assert np.array_equal(cache.get(0), pictures[0])
    assert np.array_equal(cache.get(1), pictures[1])
    assert cache.get(2) is None


def test_auto_caches_what_fits_into_memory(folder, monkeypatch):
    assert available_memory() > 0
    assert build(folder).dataloaders["train"].dataset.cache is not None
    monkeypatch.setattr("datasets.loaders.available_memory", lambda: 10_000)
    assert build(folder).dataloaders["train"].dataset.cache is None


def test_caches_of_all_splits_share_the_free_memory(folder, monkeypatch):
    monkeypatch.setattr("datasets.loaders.available_memory", lambda: 10_000_000)
    caches = [loader.dataset.cache for loader in build(folder, cache="on").dataloaders.values()]
    assert len(caches) == 2
    assert 7_900_000 < sum(cache.capacity for cache in caches) <= 8_000_000


def test_a_table_with_fewer_images_is_cached_too(folder):
    bundle = build(folder, cache="on")
    samples = bundle.samples
    fewer = with_table(bundle, samples.with_splits({LEFT_OUT: samples.indices("val")[:2]}))
    first = batches(fewer, "val")
    assert all(fewer.dataloaders["val"].dataset.cache.get(row) is not None for row in range(7))
    assert same(first, batches(fewer, "val"))
    assert sum(len(labels) for _, labels in first) == 7
