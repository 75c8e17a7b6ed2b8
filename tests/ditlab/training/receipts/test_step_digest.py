"""Digest of a step at once: the sum of its passes' digests, whatever lies otherwise than in the step before."""

import numpy as np
import pytest

from ditlab.receipts.records import draw_places, joined_digest, samples_digest
from ditlab.training.hooks import ConsumedPass
from ditlab.training.receipts import StepDigester

UNIT = 8


def fed(first: int, stop: int, step: int = 3, seed: int = 1, redrawn: int = 0, rows: int = 100) -> ConsumedPass:
    """Rows `rows` + place of the places `first` to `stop`; their draws are `redrawn` micro-batches further on."""
    places = np.arange(first, stop)
    return ConsumedPass(rows + places, first, first // UNIT + redrawn, first % UNIT, step, seed)


def by_hand(passes: list[ConsumedPass]) -> int:
    return joined_digest([
        samples_digest(
            each.row_ids, np.arange(each.place, each.place + len(each.row_ids)),
            draw_places(each.micro_index, each.start, len(each.row_ids)), each.step, each.seed,
        )
        for each in passes
    ])  # fmt: skip


@pytest.fixture(scope="module")
def digester() -> StepDigester:
    """One for all steps, as in training."""
    return StepDigester()


def test_it_is_the_sum_over_passes(digester):
    whole = [fed(0, 8), fed(8, 16)]
    for passes in (whole, [fed(0, 8, rows=7)], whole, [fed(0, 8), fed(8, 16, step=4)], [fed(8, 12), fed(12, 16)]):
        assert digester.digest(passes) == by_hand(passes)
    assert digester.digest([]) == 0


def test_cuts_and_order_of_passes_change_nothing(digester):
    whole = digester.digest([fed(0, 8), fed(8, 16)])
    quarters = [fed(first, first + 4) for first in range(0, 16, 4)]
    assert digester.digest(quarters) == digester.digest(quarters[::-1]) == whole
    workers = [digester.digest([each]) for each in quarters]
    assert joined_digest(workers) == whole


def test_what_goes_wrong_changes_it(digester):
    """A sample dropped, repeated, moved, or trained with another one's or another step's noise."""
    passes = [fed(0, 8), fed(8, 16)]
    repeated = ConsumedPass(np.append(passes[0].row_ids[:7], 100), 0, 0, 0, 3, 1)
    moved = ConsumedPass(passes[0].row_ids[::-1].copy(), 0, 0, 0, 3, 1)
    wrong = [
        [fed(0, 7), fed(8, 16)],
        [repeated, passes[1]],
        [moved, passes[1]],
        [fed(0, 8), fed(8, 16, redrawn=-1)],
        [fed(0, 8), fed(8, 16, step=2)],
        [fed(0, 8), fed(8, 16, seed=2)],
    ]
    assert len({digester.digest(each) for each in [passes, *wrong]}) == 7
