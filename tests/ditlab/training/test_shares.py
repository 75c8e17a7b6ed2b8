"""Whoever shares a batch out, and however it is cut, it stays the same batch."""

from collections import Counter

import pytest

from ditlab.training.plan import worker_share


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("microbatch_splits", [0, 1, 2])
def test_every_sample_counts_once_and_equally(world, microbatch_splits):
    seen = Counter()
    shares = [worker_share(8, 8, rank, world, microbatch_splits) for rank in range(world)]
    for share in shares:
        passes = len(share.passes)
        for part in share.passes:
            if part.counts:
                first = share.micro_indices[part.number] * 8
                for row in range(first + part.start, first + part.stop):
                    # DeepSpeed takes the mean over passes and workers, the loss is the mean over a
                    # pass's rows.
                    seen[row] += share.weight / (passes * world * share.pass_size)
    assert sorted(seen) == list(range(64))
    assert all(weight == pytest.approx(1 / 64) for weight in seen.values())
    # or the workers would fall out of step
    assert len({len(share.passes) for share in shares}) == 1
    assert (
        sum(sum(part.counts for part in share.passes) for share in shares) == shares[0].total_passes
    )
