"""Quality of drawn text: perplexity under a named scorer, always beside entropy and distinct n-grams.

A family's own evaluator measures the latter two; the scorer is a causal language model in a folder. Perplexity alone
rewards text that repeats itself (Zheng et al. 2024, arXiv:2409.02908, section 5), so a fall of the entropy is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from ditlab.data.splits import DataSplits
from ditlab.encoders.scorer import CausalScorer
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import row_set, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress, ignore_progress
from ditlab.quality import eligibility
from ditlab.quality.evaluator import QualityEvaluator, draw_reported
from ditlab.quality.measurement import quality_measurement
from ditlab.receipts.records import Measurement
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import Samples, SamplesEvaluator
from ditlab_models.intervals import Estimate, ratio_estimate

GROUP = "quality/"
"""Group of the metrics of samples, of families that measure their own too."""
FEWEST_HELD_OUT = 20
PROTOCOL = "text 1"
"""Version of how text is scored: numbers of two versions do not compare."""
Measure = Callable[[Samples], dict[str, float]]


def draws_text(experiment: Experiment) -> bool:
    """Return True for a model that draws tokens."""
    return any(field.name == "tokens" for field in experiment.batch_fields())


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raise UserError where `evaluation.quality` requests metrics that data, encoder or scorer cannot give."""
    if draws_text(experiment):
        if reason := text_ineligibility(data):
            raise UserError(
                f"evaluation.quality={experiment.evaluation.quality} cannot be measured, as {reason}; set "
                "evaluation.quality=0, or data.hold_out higher."
            )
        find_scorer(experiment, data)
    elif experiment.evaluation.scorer is not None:
        raise UserError(
            f"evaluation.scorer.model={experiment.evaluation.scorer.model} is used by nothing, as model.family="
            f"{experiment.model.family} draws no text; set evaluation.scorer to null."
        )
    else:
        eligibility.check_quality(experiment, data)


def text_ineligibility(data: DataSplits) -> str:
    """Return the reason why drawn text cannot be measured, a clause without a full stop; empty where it can."""
    num = len(data.held_out)
    few = f"{data.train.origin} holds out {num} samples of text, and at least {FEWEST_HELD_OUT} are needed"
    return few if num < FEWEST_HELD_OUT else ""


def quality_names(experiment: Experiment, data: DataSplits) -> tuple[str, ...]:
    """Return the names of the experiment's quality metrics; empty where quality cannot be measured."""
    if not draws_text(experiment):
        return eligibility.quality_names(experiment, data)
    return () if text_ineligibility(data) else samples_names(experiment, samples_evaluator(experiment, data))


def samples_evaluator(experiment: Experiment, data: DataSplits) -> Any:
    """Return the family's evaluator, a SamplesEvaluator where the family measures samples of its own."""
    return experiment.family.build_evaluator(experiment.objective, experiment.model, data.text)


def find_scorer(experiment: Experiment, data: DataSplits) -> CausalScorer | None:
    """Return the experiment's scorer; None where it names none. Raises UserError for one that does not fit."""
    model: Any = experiment.model
    spec = experiment.evaluation.scorer if draws_text(experiment) else None
    return None if spec is None else CausalScorer(spec, data.text, model.vocabulary)


def scored_names() -> tuple[str, str, str, str]:
    """Return the names of metrics under a scorer: of samples, the ends of the 95 % interval over them, and of as many
    held-out rows."""
    from ditlab.reports.sampling_report import PERPLEXITY  # imports matplotlib, for which no training waits

    return PERPLEXITY, f"{PERPLEXITY}_low", f"{PERPLEXITY}_high", f"{PERPLEXITY}_held_out"


def samples_names(experiment: Experiment, evaluator: SamplesEvaluator) -> tuple[str, ...]:
    """Return the names of what `samples_measure` gives: under a scorer also those of `scored_names`."""
    scored = scored_names() if draws_text(experiment) and experiment.evaluation.scorer else ()
    return (*scored, *(f"{GROUP}{name}" for name in evaluator.sample_metrics))


def samples_measure(
    experiment: Experiment,
    data: DataSplits,
    inputs: ModelInputs,
    batch_size: int,
    tick: Callable[[], None] = lambda: None,
) -> Measure:
    """Return the measure of samples of a family that measures its own: its metrics, and the scorer's of text."""
    rows = row_set(data.train, inputs), row_set(data.held_out, inputs)
    of_family = samples_evaluator(experiment, data).measure_samples(*rows, batch_size)
    scorer = find_scorer(experiment, data)

    def perplexity(tokens: np.ndarray) -> Estimate:
        assert scorer is not None
        nats, counts = scorer.score(tokens, inputs.device, tick)
        return ratio_estimate(nats, counts).exp() if counts.sum() else Estimate(np.nan, np.nan, np.nan)

    @cache
    def of_held_out(length: int, num: int) -> float:
        found = data.held_out.gather("tokens", np.arange(min(num, len(data.held_out))))
        return perplexity(found[:, :length].long().numpy()).value

    def measure(samples: Samples) -> dict[str, float]:
        found = {f"{GROUP}{name}": value for name, value in of_family(samples).items()}
        if scorer is None:
            return found
        num, length = samples.values.shape
        name, *_, of_real = scored_names()
        return {**perplexity(samples.values.numpy()).named(name), of_real: of_held_out(length, num), **found}

    return measure


@dataclass
class TextQuality:
    """Draws text and measures it; nothing is read before the first measurement. Stands in for `QualityEvaluator`."""

    experiment: Experiment
    data: DataSplits
    home: Home
    device: torch.device
    warn: Callable[[str], None] = lambda message: None
    tick: Callable[[], None] = lambda: None
    """Called all along a measurement."""
    progress: Progress = ignore_progress
    inputs: ModelInputs | None = None
    """None: opened at the first use."""
    batch_size: int = 256
    """Rows at once of what the samples are compared with."""
    _warned: bool = field(default=False, init=False)

    @cached_property
    def _inputs(self) -> ModelInputs:
        columns = self.data.train.columns
        return self.inputs or ModelInputs.from_experiment(self.experiment, columns, self.device, self.warn, self.home)

    @cached_property
    def _measure(self) -> Measure:
        return samples_measure(self.experiment, self.data, self._inputs, self.batch_size, self.tick)

    def draw(self, network: nn.Module, num: int, batch_size: int) -> Samples:
        """Draw `num` samples, of which the first k do not depend on `num`."""
        sampler = eligibility.quality_sampler(self.experiment, self.data)
        generator = torch.Generator(self.device).manual_seed(self._seed)
        conditions = sample_conditions(sampler, num, self.data.held_out, self._inputs)
        return draw_reported(self.progress, sampler, network, conditions.tensors, num, generator, batch_size)

    def measure(self, drawn: Samples) -> dict[str, float]:
        """Return the metrics of `samples_names`; the first fall of the entropy is a warning."""
        from ditlab.reports.sampling_report import ENTROPY, entropy_fell

        found = self._measure(drawn)
        if entropy_fell(found) and not self._warned:
            self._warned = True
            self.warn(
                f"the drawn text has an entropy of {found[ENTROPY]:.2f} nats, held-out text one of "
                f"{found[f'{ENTROPY}_held_out']:.2f}: it repeats itself, by which its perplexity is too good; compare "
                "perplexities at equal entropy, or raise sampling.temperature."
            )
        return found

    def confusion(self, drawn: Samples) -> None:
        """No picture: text has no classes."""

    def measurement(
        self, num: int, batch_size: int, precision: str, noise_seed: int | None = None,
        trained: tuple[Experiment, str, int] | None = None,
    ) -> Measurement:  # fmt: skip
        """Return what `measure` used, as `QualityEvaluator.measurement` does."""
        spec, kind, threads = trained or (self.experiment, self.device.type, torch.get_num_threads())
        seed = self._seed if noise_seed is None else noise_seed
        return quality_measurement(spec, self.data, num, batch_size, seed, precision, kind, self._features, threads)

    @cached_property
    def _features(self) -> str:
        """The protocol, and the hash of the scorer's files, which are read once."""
        scorer = find_scorer(self.experiment, self.data)
        return f"{PROTOCOL} {scorer.sha256 if scorer else ''}"

    @property
    def _seed(self) -> int:
        return derived_seed(self.experiment.seed, "quality")


def open_quality(experiment: Experiment, data: DataSplits, *rest: Any, **options: Any) -> Any:
    """Return the evaluator of an experiment's samples: `TextQuality` of text, `QualityEvaluator` of images."""
    kind: Any = TextQuality if draws_text(experiment) else QualityEvaluator
    return kind(experiment, data, *rest, **options)
