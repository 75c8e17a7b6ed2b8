"""Quality figures of an experiment's network: the same noise at every call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.data.sources import DataSplits
from ditlab.home import Home
from ditlab.spec.experiment import Experiment
from ditlab.training.drawing import draw_samples
from ditlab.training.noise import derived_seed
from ditlab.training.quality.measure import Reference, ignore
from ditlab.training.rows import conditions_of, shown_rows


@dataclass
class QualityMeter:
    """Draws samples and measures them, as often as wanted. Nothing is read or trained before the first measurement."""

    experiment: Experiment
    data: DataSplits
    home: Home
    device: torch.device
    warn: Callable[[str], None] = ignore
    beat: Callable[[], None] = ignore
    """Called all along a measurement: the first one trains a classifier, which takes a while."""
    _reference: Reference | None = field(default=None, init=False)

    def draw(self, network: nn.Module, num: int, batch_size: int) -> Tensor:
        """`num` samples under the experiment's sampling settings, in the host's memory, `batch_size` drawn at a time.

        Their noise is a function of the experiment's seed, and the first k do not depend on `num`.
        """
        spec = self.experiment
        sampler: Any = spec.sampling.build(spec.model, spec.objective, self.data.text)
        generator = torch.Generator(self.device).manual_seed(derived_seed(self.experiment.seed, "quality"))
        conditions = conditions_of(sampler, num, shown_rows(self.data), self.experiment.batch_fields())
        drawn = draw_samples(sampler, network, conditions.tensors, conditions.num, generator, batch_size)
        return drawn.values.float()

    def measure(self, samples: Tensor) -> dict[str, float]:
        """`Reference.measure` of them. Raises UserError as `quality` does."""
        if self._reference is None:
            shape = tuple(samples.shape[1:])
            self._reference = Reference.open(self.data, shape, self.home, self.device, self.warn, self.beat)
        return self._reference.measure(samples)
