"""Rows of a pass: one table of all batches, none of which is kept."""

import weakref

import torch

from trainers.engine.rows import Rows


def test_rows_are_the_batches_of_which_none_is_kept():
    rows, batches = Rows(8), [torch.rand(3, 2), torch.rand(3, 2), torch.rand(1, 2)]
    expected, kept = torch.cat(batches), [weakref.ref(batch) for batch in batches]
    while batches:
        rows.add(batches.pop(0))
    assert not any(batch() is not None for batch in kept)
    assert len(rows) == 7 < rows.images
    assert torch.equal(rows.table(), expected)


def test_rows_on_a_device_keep_no_more_than_themselves():
    rows, tokens = Rows(8), torch.rand(3, 50, 2, device="meta")
    rows.add(tokens[:, 0])
    assert [kept.untyped_storage().nbytes() for kept in rows.waiting] == [3 * 2 * 4]
