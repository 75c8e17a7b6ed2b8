"""Samples that are drawn so many at a time."""

import pytest
import torch

from ditlab_models.contract import Samples
from ditlab_models.processes.draws import draw_samples


class Numbers:
    """Draws consecutive numbers under a condition of their own; says of each batch which one it
    was.
    """

    def __init__(self, max_batch_size: int | None) -> None:
        self.max_batch_size, self.sizes = max_batch_size, []

    def sample(self, network, conditions, num, generator, trajectory):
        values = torch.randint(1000, (num,), generator=generator)
        self.sizes.append(num)
        frames = torch.stack([values, values + 1]) if trajectory else None
        return Samples(values, dict(conditions), frames, {"batch": len(self.sizes)})


@pytest.mark.parametrize(
    ("max_batch_size", "batch", "sizes"), [(None, 2, [2, 2, 1]), (3, 256, [3, 2]), (None, 256, [5])]
)
def test_as_many_as_fit_and_the_same_samples(max_batch_size, batch, sizes):
    sampler, given = Numbers(max_batch_size), {"label": torch.arange(5)}
    drawn = draw_samples(
        sampler, None, given, 5, torch.Generator().manual_seed(0), batch, trajectory=True
    )
    assert sampler.sizes == sizes
    assert (
        drawn.values.tolist()
        == torch.randint(1000, (5,), generator=torch.Generator().manual_seed(0)).tolist()
    )
    assert drawn.conditions["label"].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(drawn.trajectory, torch.stack([drawn.values, drawn.values + 1]))
    assert drawn.fields == {"batch": 1}  # that of the first samples
