"""Draws of a mixture's parts against a short NumPy reference, and their shares."""

import hashlib

import numpy as np
import pytest

from ditlab.data.loading.order import FullOrder
from ditlab.data.mixture_order import MixtureOrder, PartDraws, PartOrder, part_seed

NAMES, WEIGHTS, LENGTHS = ("a", "b", "c"), (7.0, 2.5, 0.5), (301, 64, 9)
SHARES = [weight / sum(WEIGHTS) for weight in WEIGHTS]


def mixture(batch_size, seed=0, draw="sample", **options):
    size = 1 if draw == "sample" else batch_size
    firsts = np.cumsum(LENGTHS) - LENGTHS
    parts = [
        PartOrder(FullOrder(length, size, part_seed(seed, name)), int(first), 0)
        for name, length, first in zip(NAMES, LENGTHS, firsts, strict=True)
    ]
    return MixtureOrder(parts, PartDraws(seed, SHARES), batch_size, draw, **options)


def reference(seed, shares, num):
    """Counts of parts among the first `num` draws, in ten lines of NumPy."""
    key = np.frombuffer(
        hashlib.blake2b(f"ditlab.mixture/{seed}".encode(), digest_size=16).digest(), "<u8"
    )
    words = np.random.Philox(key=key).random_raw(num)
    uniform = (words >> np.uint64(11)) / 2**53
    parts = np.searchsorted(np.cumsum(shares), uniform, side="right")
    return np.bincount(np.minimum(parts, len(shares) - 1), minlength=len(shares))


@pytest.mark.parametrize(("draw", "batch_size"), [("sample", 12), ("batch", 9)])
@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_counts_of_10_000_batches_are_the_references_and_near_the_weights(draw, batch_size, seed):
    num = 10_000 * (batch_size if draw == "sample" else 1)
    counts = mixture(batch_size, seed, draw).counts(10_000)
    assert counts.tolist() == reference(seed, SHARES, num).tolist()
    spread = np.sqrt(num * np.array(SHARES) * (1 - np.array(SHARES)))
    assert (np.abs(counts - num * np.array(SHARES)) < 4 * spread).all()


def test_what_is_taken_is_what_is_counted():
    order = mixture(12)
    taken = np.searchsorted(np.cumsum(LENGTHS), order.batches(0, 10_000), side="right")
    assert np.bincount(taken.reshape(-1)).tolist() == reference(0, SHARES, 120_000).tolist()


def test_a_draw_is_a_function_of_its_number():
    draws = PartDraws(5, SHARES)
    whole = draws.parts(0, 200)
    for first in range(20):
        assert np.array_equal(draws.parts(first, 37), whole[first : first + 37])
    assert len(draws.parts(3, 0)) == 0
    assert PartDraws(5, [1.0]).parts(0, 9).tolist() == [0] * 9


def test_draws_stay_what_they_are():
    assert PartDraws(0, [0.7, 0.3]).parts(0, 9).tolist() == [0, 1, 1, 0, 1, 1, 0, 0, 0]
    assert (part_seed(0, "a"), part_seed(1, "a"), part_seed(0, "b")) == (
        8078780706725257,
        21147194105937477,
        1103610340154559,
    )
