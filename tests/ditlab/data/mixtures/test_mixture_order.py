"""Order of a mixture: each part in its own order, resumable anywhere, the same for any number of
workers.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ditlab.data.loading.order import FullOrder, epoch_order
from ditlab.data.mixture_order import MixtureOrder, PartDraws, PartOrder, part_seed

BATCH = 8
LENGTHS = {"a": 50, "b": 21}


def part(name, draw, first=0, first_number=0):
    order = FullOrder(LENGTHS[name], 1 if draw == "sample" else BATCH, part_seed(3, name))
    return PartOrder(order, first, first_number)


def mixture(draw, shares=(0.75, 0.25), **options):
    parts = [part("a", draw), part("b", draw, first=50)]
    return MixtureOrder(parts, PartDraws(3, shares), BATCH, draw, **options)


ORDERS = {"sample": partial(mixture, "sample"), "batch": partial(mixture, "batch")}


@pytest.mark.parametrize("kind", ORDERS)
@settings(max_examples=15, deadline=None)
@given(first=st.integers(0, 60), count=st.integers(0, 20))
def test_batches_do_not_depend_on_where_they_are_asked_for(kind, first, count):
    whole = ORDERS[kind]().batches(0, 80)
    order = ORDERS[kind]()
    assert np.array_equal(order.batches(first, count), whole[first : first + count])
    assert np.array_equal(order.batches(first // 2, count), whole[first // 2 : first // 2 + count])
    columns = np.array([1, 5, 6])
    assert np.array_equal(
        order.batches(first, count, columns), whole[first : first + count, columns]
    )


@pytest.mark.parametrize("kind", ORDERS)
def test_known_counts_spare_the_replay_and_change_nothing(kind):
    order = ORDERS[kind]()
    known = {40: order.counts(40).tolist()}
    again = ORDERS[kind](known=known)
    again._draws.parts = lambda first, count, parts=again._draws.parts: (
        pytest.fail("replayed")
        if first < 40 * (1 if kind == "batch" else BATCH)
        else parts(first, count)
    )
    assert np.array_equal(again.batches(45, 3), order.batches(45, 3))


def test_a_part_takes_its_own_order_from_its_own_position():
    taken = mixture("sample").batches(0, 60).reshape(-1)
    for name, first in (("a", 0), ("b", 50)):
        own = taken[(taken >= first) & (taken < first + LENGTHS[name])] - first
        epochs = [epoch_order(part_seed(3, name), epoch, LENGTHS[name]) for epoch in range(9)]
        assert len(own) > 2 * LENGTHS[name]
        assert np.array_equal(own, np.concatenate(epochs)[: len(own)])


def test_a_batch_of_draw_batch_is_of_one_part():
    parts = [part("a", "batch"), part("b", "batch", first=50, first_number=1)]
    order = MixtureOrder(parts, PartDraws(3, (0.75, 0.25)), BATCH, "batch", is_uniform=False)
    batches = order.batches(0, 50)
    of_b = batches >= 50
    assert (of_b.all(axis=1) | ~of_b.any(axis=1)).all() and 0 < of_b[:, 0].sum() < 50
    batch = 0
    while batch < 40:
        number, run = order.shape_run(batch, 5)
        assert 1 <= run <= 5 and (of_b[batch : batch + run, 0] == number).all()
        assert run == 5 or of_b[batch + run, 0] != number
        batch += run
    assert order.counts(50).tolist() == [50 - of_b[:, 0].sum(), of_b[:, 0].sum()]
