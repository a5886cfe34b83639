"""Batches: every sample once, any position at once, the same over any number of processes."""

from itertools import chain

import numpy as np
import pytest

from datasets.sampling import EpochBatchSampler, OrderedBatchSampler, Share

LABELS = np.repeat([0, 1, 2], [40, 20, 10])


def flat(parts):
    return list(chain.from_iterable(parts))


def batches(sampler):
    return [key.draws.tolist() for key in sampler]


def test_epoch_holds_each_sample_once_in_its_own_order():
    sampler = EpochBatchSampler(LABELS, 16)
    first, second = batches(sampler), batches(sampler)
    assert [len(batch) for batch in first] == [16, 16, 16, 16, 6]
    assert len(sampler) == 5
    assert sorted(flat(first)) == list(range(70)) == sorted(flat(second))
    assert first != second


def test_iter_without_drawing_skips_no_epoch():
    sampler = EpochBatchSampler(LABELS, 16)
    iter(sampler)
    assert batches(sampler) == batches(EpochBatchSampler(LABELS, 16))


def test_a_position_outside_the_epoch_is_refused():
    with pytest.raises(ValueError, match="an epoch has batches 0 to 4"):
        EpochBatchSampler(LABELS, 16).set_position(0, 6)
    with pytest.raises(ValueError, match="epoch=-1"):
        EpochBatchSampler(LABELS, 16).set_position(-1)


def test_last_batch_too_small_for_all_is_left_out():
    samplers = [EpochBatchSampler(np.zeros(33), 16, share=Share(rank, 2)) for rank in range(2)]
    assert [len(sampler) for sampler in samplers] == [2, 2]
    assert [len(batches(sampler)) for sampler in samplers] == [2, 2]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_takes_each_sample_once(world):
    parts = [OrderedBatchSampler(13, 4, share=Share(rank, world)) for rank in range(world)]
    taken = [flat(batches(part)) for part in parts]
    assert sorted(flat(taken)) == list(range(13))
    alone = batches(OrderedBatchSampler(13, 4))
    for rank, part in enumerate(parts):
        assert batches(part) == alone[rank::world]
        assert len(part) == len(batches(part))
    assert batches(OrderedBatchSampler(3, 4, share=Share(1, 2))) == [[0, 1, 2]]  # none is its own: the first one, too


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_balanced_epoch_draws_classes_equally_often(extra):
    labels = np.repeat([0, 1, 2], [40 + extra, 20, 10])
    sampler = EpochBatchSampler(labels, 16, balanced=True)
    for _ in range(3):
        draws = np.array(flat(batches(sampler)))
        assert len(draws) == len(labels) == len(set(draws.tolist()))  # copies of a sample are different draws
        samples = draws % len(labels)
        classes = np.bincount(labels[samples])
        assert classes.max() - classes.min() <= 1
        for label in range(3):
            copies = np.bincount(samples[labels[samples] == label], minlength=len(labels))[labels == label]
            assert copies.max() - copies.min() <= 1


@pytest.mark.parametrize("rank", [0, 1])
def test_samplers_name_the_rows_of_the_coming_pass(rank):
    samplers = [
        EpochBatchSampler(LABELS, 16, share=Share(rank, 2)),
        EpochBatchSampler(LABELS, 16, balanced=True, share=Share(rank, 2)),
        OrderedBatchSampler(len(LABELS), 16, share=Share(rank, 2)),
    ]
    for sampler in samplers:
        for epoch in (0, 3):
            sampler.set_position(epoch)
            rows = sampler.indices.tolist()
            assert [draw % len(LABELS) for draw in flat(batches(sampler))] == rows
        assert sampler.length == len(LABELS)


def test_an_ordered_sampler_goes_to_any_batch_once():
    sampler = OrderedBatchSampler(13, 4)
    sampler.set_position(2, 1)
    assert batches(sampler)[0] == [4, 5, 6, 7]
    assert batches(sampler)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_sample_is_spread_over_table_and_processes(world):
    parts = [OrderedBatchSampler(1000, 4, share=Share(rank, world), sample=50) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    rows = np.sort(np.concatenate([part.indices for part in parts]))
    assert len(rows) == 50 // (4 * world) * 4 * world
    assert (rows[0], rows[-1]) == (0, 999)
    assert np.diff(rows).max() <= 2 * np.diff(rows).min()
    for length, sample in ((1000, 3), (40, 50)):  # less than a batch, more than there are: all of them
        assert len(OrderedBatchSampler(length, 4, sample=sample).indices) == length
