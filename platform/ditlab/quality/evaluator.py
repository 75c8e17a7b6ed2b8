"""Evaluator of an experiment's sample quality, with the same noise at every call; samples drawn in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.batched_sampling import draw_samples
from denoisers.contract import Samples
from denoisers.figures import Figure
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import SampleConditions, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.quality.eligibility import QualityBasis, quality_basis, quality_sampler
from ditlab.quality.measure import Classes, QualityReference, classes_of, confusion_figure
from ditlab.quality.measurement import SampleDrawing, quality_measurement
from ditlab.receipts.records import Measurement
from ditlab.spec.experiment import Experiment

FIRST_BATCH, BATCHES = "drawing the first batch of samples", "drawing samples"


def draw_reported(
    progress: Progress, sampler: Any, network: nn.Module, conditions: Mapping[str, Tensor], num: int, *rest: Any
) -> Samples:
    """Draw samples as `draw_samples` does with the same arguments, and report evaluations of the network and samples.

    How many evaluations the first batch takes is unknown until it is complete: solver and guidance decide that.
    """
    done = evaluations = 0

    def count_evaluation(*_: object) -> None:
        nonlocal evaluations
        evaluations += 1
        if not done:
            progress(FIRST_BATCH, evaluations, None, "network evaluations")

    def count_samples(size: int) -> None:
        nonlocal done
        done += size
        progress(BATCHES, done, num, "samples")

    hook = network.register_forward_pre_hook(count_evaluation)
    try:
        return draw_samples(_CountedSampler(sampler, count_samples), network, conditions, num, *rest)
    finally:
        hook.remove()


class _CountedSampler:
    """Sampler that reports the size of each batch that it has drawn."""

    def __init__(self, sampler: Any, on_batch: Callable[[int], None]) -> None:
        self._sampler, self._on_batch = sampler, on_batch
        self.max_batch_size = sampler.max_batch_size

    def sample(self, network: nn.Module, conditions: Any, num: int, *rest: Any, **more: Any) -> Samples:
        samples: Samples = self._sampler.sample(network, conditions, num, *rest, **more)
        self._on_batch(num)
        return samples


@dataclass(frozen=True)
class DrawnSamples:
    """Samples to be measured, in host memory."""

    images: Tensor
    """(num, channels, height, width) in [-1, 1]."""
    expected: Classes
    """Classes of the rows whose captions the samples were drawn from; empty without captions."""


@dataclass
class QualityEvaluator:
    """Draws samples and measures their quality; nothing is read or trained before the first measurement."""

    experiment: Experiment
    data: DataSplits
    home: Home
    device: torch.device
    warn: Callable[[str], None] = ignore
    tick: Callable[[], None] = ignore
    """Called all along a measurement: the first one trains a classifier, which takes a while."""
    progress: Progress = ignore_progress
    """Receives the number of samples drawn."""
    inputs: ModelInputs | None = None
    """Inputs that encode held-out captions for the sampler; None: opened at the first use."""
    _reference: QualityReference | None = field(default=None, init=False)

    @cached_property
    def basis(self) -> QualityBasis:
        """Basis of the metrics. Raises UserError where there is none."""
        basis = quality_basis(self.experiment, self.data)
        if isinstance(basis, str):
            raise UserError(f"sample quality cannot be measured, as {basis}; choose other data.")
        return basis

    @cached_property
    def sampler(self) -> Any:
        """Sampler of `quality_sampler`, which raises UserError."""
        return quality_sampler(self.experiment, self.data)

    def draw(self, network: nn.Module, num: int, batch_size: int) -> DrawnSamples:
        """Draw `num` samples under the experiment's sampling settings, `batch_size` at a time.

        Their noise is a function of the experiment's seed, and the first k do not depend on `num`. Raises UserError
        where they could not be measured.
        """
        self.basis.check()
        generator = torch.Generator(self.device).manual_seed(self.noise_seed)
        conditions = self.conditions(num)
        drawn = draw_reported(
            self.progress, self.sampler, network, conditions.tensors, conditions.num, generator, batch_size
        )
        return DrawnSamples(drawn.values.float(), self.expected(num))

    def conditions(self, num: int) -> SampleConditions:
        """Return the conditions of `num` samples; captions are those of the first held-out rows, over and over."""
        if self.inputs is None:
            columns = self.data.train.columns
            self.inputs = ModelInputs.from_experiment(self.experiment, columns, self.device, self.warn, self.home)
        return sample_conditions(self.sampler, num, self.basis.data.held_out, self.inputs)

    def expected(self, num: int) -> Classes:
        """Return the classes that the captions of `num` samples name; empty for samples without captions."""
        if self.sampler.takes_rows != "conditions":
            return {}
        held_out = self.basis.data.held_out
        return classes_of(held_out, self.basis.classes, np.arange(num) % len(held_out))

    def measure(self, drawn: DrawnSamples) -> dict[str, float]:
        """Return the metrics of `QualityBasis.metrics`. Raises UserError as `quality` does."""
        return self._open_reference(drawn).measure(drawn.images, drawn.expected)

    def measurement(self, num: int, batch_size: int, precision: str, noise_seed: int | None = None) -> Measurement:
        """Return what `measure` has measured `num` samples with, drawn `batch_size` at a time.

        `precision` is the network's. `noise_seed` None: that of `draw`.
        """
        assert self._reference is not None, "nothing was measured yet"
        drawing = SampleDrawing(num, batch_size, self.noise_seed if noise_seed is None else noise_seed, precision)
        features = self._reference.features
        return quality_measurement(self.experiment, self.basis.data, drawing, self.device.type, features)

    @property
    def noise_seed(self) -> int:
        """Seed of the generator that `draw` draws with."""
        return derived_seed(self.experiment.seed, "quality")

    def confusion(self, drawn: DrawnSamples) -> Figure | None:
        """Draw the confusion matrix of caption agreement; None without captions, or where a sample holds NaN."""
        if not drawn.expected or drawn.images.isnan().any():
            return None
        columns = self.basis.data.train.columns
        names = {
            name: columns[name].names or [str(number) for number in range(columns[name].num_classes or 0)]
            for name in drawn.expected
        }
        return confusion_figure(drawn.expected, self._open_reference(drawn).recognise(drawn.images), names)

    def _open_reference(self, drawn: DrawnSamples) -> QualityReference:
        if self._reference is None:
            self._reference = QualityReference.open(
                self.basis, self.home, self.device, self.warn, self.tick, from_captions=bool(drawn.expected)
            )
        return self._reference
