"""Samples that are drawn so many at a time."""

import pytest
import torch

from ditlab_models.contract import Samples
from ditlab_models.processes.draws import draw_samples


class Numbers:
    """Draws consecutive numbers under a condition of their own; says of each batch which one it
    was.
    """

    def __init__(self, max_batch_size):
        self.max_batch_size = max_batch_size
        self.sizes = []

    def sample(self, network, conditions, num, generator, trajectory):
        values = torch.randint(1000, (num,), generator=generator)
        self.sizes.append(num)
        frames = torch.stack([values, values + 1]) if trajectory else None
        return Samples(values, dict(conditions), frames, {"batch": len(self.sizes)})


@pytest.mark.parametrize(
    ("max_batch_size", "batch", "sizes"), [(None, 2, [2, 2, 1]), (3, 256, [3, 2]), (None, 256, [5])]
)
def test_as_many_as_fit_and_the_same_samples(max_batch_size, batch, sizes):
    sampler = Numbers(max_batch_size)
    generator = torch.Generator().manual_seed(0)
    expected = torch.randint(1000, (5,), generator=generator)
    generator.manual_seed(0)
    given = {"label": torch.arange(5)}
    drawn = draw_samples(sampler, None, given, 5, generator, batch, trajectory=True)
    assert sampler.sizes == sizes
    assert torch.equal(drawn.values, expected)
    assert torch.equal(drawn.conditions["label"], given["label"])
    assert torch.equal(drawn.trajectory, torch.stack([drawn.values, drawn.values + 1]))
    assert drawn.fields == {"batch": 1}  # that of the first samples
