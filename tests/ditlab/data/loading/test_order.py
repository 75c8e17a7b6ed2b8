"""Global order of samples: every epoch a permutation of its own, the same in every run."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ditlab.data.loading.order import FullOrder, epoch_order
from support.damage import refused

seeds = st.integers(0, 2**63)
epochs = st.integers(0, 10**6)


@given(seeds, epochs, st.integers(1, 3000))
def test_an_epoch_visits_every_sample_once(seed, epoch, length):
    order = epoch_order(seed, epoch, length)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(length))


@given(seeds, epochs)
def test_order_depends_on_seed_and_epoch_alone(seed, epoch):
    np.random.default_rng(0).random(7)
    order = epoch_order(seed, epoch, 200)
    assert np.array_equal(order, epoch_order(seed, epoch, 200))
    assert not np.array_equal(order, epoch_order(seed + 1, epoch, 200))
    assert not np.array_equal(order, epoch_order(seed, epoch + 1, 200))


def test_order_of_old_runs_is_unchanged():
    """A change of these numbers changes the next samples of every resumed run."""
    assert epoch_order(0, 0, 10).tolist() == [8, 2, 1, 4, 9, 6, 3, 5, 7, 0]
    assert epoch_order(7, 3, 10).tolist() == [1, 6, 5, 4, 0, 7, 9, 2, 8, 3]
    assert epoch_order(0, 0, 60_000)[:5].tolist() == [1253, 42955, 16872, 23346, 39693]


def test_first_places_are_uniform():
    """Over many epochs every sample is first about equally often (chi-squared, 9 degrees of
    freedom, p = 0.001).
    """
    firsts = np.bincount([epoch_order(0, epoch, 10)[0] for epoch in range(2000)], minlength=10)
    assert ((firsts - 200) ** 2 / 200).sum() < 27.9


@given(st.integers(1, 300), st.integers(1, 50), seeds)
def test_epochs_drop_their_partial_batch(length, batch_size, seed):
    if length < batch_size:
        with refused(rf"batch\.size={batch_size} is larger than the {length} training samples"):
            FullOrder(length, batch_size, seed)
        return
    order = FullOrder(length, batch_size, seed)
    num = order.batches_per_epoch
    assert num == length // batch_size
    for epoch in (0, 1):
        first = order.batch_number(epoch * num * batch_size)
        taken = np.concatenate(
            [order.batches(number, 1)[0] for number in range(first, first + num)]
        )
        assert np.array_equal(taken, epoch_order(seed, epoch, length)[: num * batch_size])
