"""Quality figures of an experiment's network: the same noise at every call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.batched_sampling import draw_samples
from denoisers.figures import Figure
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import Conditions, conditions_of
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.quality.agreement import Classes, classes_of, confusion_figure
from ditlab.quality.basis import Basis
from ditlab.quality.eligibility import quality_basis, quality_sampler
from ditlab.quality.measure import Reference, ignore
from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class Drawn:
    """Samples to be measured, in the host's memory."""

    images: Tensor
    """(num, channels, height, width) in [-1, 1]."""
    asked: Classes
    """The classes of the rows whose captions they were drawn from; empty where they were drawn from none."""


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
    inputs: ModelInputs | None = None
    """What brings held-out captions to the sampler; None: made at the first use."""
    _reference: Reference | None = field(default=None, init=False)

    @cached_property
    def basis(self) -> Basis:
        """What the samples are measured by. Raises UserError where there is nothing."""
        basis = quality_basis(self.experiment, self.data)
        if isinstance(basis, str):
            raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
        return basis

    @cached_property
    def sampler(self) -> Any:
        """See `quality_sampler`, which raises UserError."""
        return quality_sampler(self.experiment, self.data)

    def draw(self, network: nn.Module, num: int, batch_size: int) -> Drawn:
        """`num` samples under the experiment's sampling settings, `batch_size` drawn at a time.

        Their noise is a function of the experiment's seed, and the first k do not depend on `num`. Raises UserError
        where they could not be measured.
        """
        self.basis.check()
        generator = torch.Generator(self.device).manual_seed(derived_seed(self.experiment.seed, "quality"))
        conditions = self.conditions(num)
        drawn = draw_samples(self.sampler, network, conditions.tensors, conditions.num, generator, batch_size)
        return Drawn(drawn.values.float(), self.asked(num))

    def conditions(self, num: int) -> Conditions:
        """Of `num` samples: where captions are taken from rows, those of the first held-out rows, over and over."""
        if self.inputs is None:
            columns = self.data.train.columns
            self.inputs = ModelInputs.of(self.experiment, columns, self.device, self.warn, self.home)
        return conditions_of(self.sampler, num, self.basis.data.held_out, self.inputs)

    def asked(self, num: int) -> Classes:
        """What `num` samples under these conditions are to show; empty where that is no matter of captions."""
        if self.sampler.takes_rows != "conditions":
            return {}
        held_out = self.basis.data.held_out
        return classes_of(held_out, self.basis.classes, np.arange(num) % len(held_out))

    def measure(self, drawn: Drawn) -> dict[str, float]:
        """The figures of `Basis.metrics`. Raises UserError as `quality` does."""
        return self._opened(drawn).measure(drawn.images, drawn.asked)

    def confusion(self, drawn: Drawn) -> Figure | None:
        """What samples show by what was asked of them; None where nothing was, or a sample holds NaN."""
        if not drawn.asked or drawn.images.isnan().any():
            return None
        columns = self.basis.data.train.columns
        names = {
            name: columns[name].names or [str(number) for number in range(columns[name].num_classes or 0)]
            for name in drawn.asked
        }
        return confusion_figure(drawn.asked, self._opened(drawn).recognise(drawn.images), names)

    def _opened(self, drawn: Drawn) -> Reference:
        if self._reference is None:
            self._reference = Reference.open(
                self.basis, self.home, self.device, self.warn, self.beat, from_captions=bool(drawn.asked)
            )
        return self._reference
