"""Progress of drawn samples: evaluations of the network until the first batch is complete, samples
after.
"""

import torch
from torch import nn

from ditlab.quality.sample_quality import BATCHES, FIRST_BATCH, draw_reported
from ditlab_models.contract import Samples
from support.models.draws import seeded


class Halving:
    """A sampler of three evaluations a batch."""

    max_batch_size = None

    def sample(self, network, conditions, num, generator, trajectory=False):
        values = torch.randn(num, 2, generator=generator)
        for _ in range(3):
            values = network(values)
        return Samples(values, dict(conditions))


def draw(network, reported):
    progress = lambda *report: reported.append(report)  # noqa: E731
    return draw_reported(progress, Halving(), network, {}, 5, seeded(), 2)


def test_evaluations_and_then_samples_are_reported():
    network, reported = nn.Linear(2, 2), []
    samples = draw(network, reported)
    assert samples.values.shape == (5, 2)
    assert reported == [
        *((FIRST_BATCH, number, None, "network evaluations") for number in (1, 2, 3)),
        (BATCHES, 2, 5, "samples"),
        (BATCHES, 4, 5, "samples"),
        (BATCHES, 5, 5, "samples"),
    ]
    reported.clear()
    network(torch.zeros(1, 2))
    assert not reported  # nothing is left at the network
