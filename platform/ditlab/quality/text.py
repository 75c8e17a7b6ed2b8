"""Quality of drawn text: entropy and distinct n-grams by the family's own evaluator, and further
figures beside them.

Perplexity alone rewards text that repeats itself (Zheng et al. 2024, arXiv:2409.02908, section 5),
so a fall of the entropy is said.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.inputs.conditions import row_set
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import ignore
from ditlab.quality import eligibility
from ditlab.quality.figures import ComparedSamples, QualityFigures, find_figures
from ditlab.quality.sample_quality import DrawingEvaluator, QualityEvaluator
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import Samples, SamplesEvaluator

GROUP = "quality/"
"""Group of the metrics of samples, of families that measure their own too."""
FEWEST_HELD_OUT = 20
PROTOCOL = "text 1"
"""Version of how text is scored: numbers of two versions do not compare."""
ENTROPY = f"{GROUP}token_entropy"
"""Entropy of the tokens of drawn text, nats."""
ENTROPY_FALL = 0.05
"""Share of the held-out text's entropy that samples may lack before it is said."""
Measure = Callable[[Samples], dict[str, float]]


def entropy_fell(found: Mapping[str, float]) -> bool:
    """Return True where the entropy of samples lies below held-out text's: more than ENTROPY_FALL
    of it, with 95 % intervals that do not meet."""
    names = (ENTROPY, f"{ENTROPY}_high", f"{ENTROPY}_held_out", f"{ENTROPY}_held_out_low")
    entropy, high, real, real_low = (found.get(name, math.nan) for name in names)
    return bool(high < real_low and entropy < (1 - ENTROPY_FALL) * real)


def draws_text(experiment: Experiment) -> bool:
    """Return True for a model that draws tokens."""
    return any(field.name == "tokens" for field in experiment.batch_fields())


def check_quality(experiment: Experiment, data: DataSplits) -> None:
    """Raise UserError where `evaluation.quality` requests metrics that data, encoder or scorer
    cannot give.
    """
    if draws_text(experiment):
        reason = text_ineligibility(data)
        if reason:
            raise UserError(
                f"evaluation.quality={experiment.evaluation.quality} cannot be measured, as "
                f"{reason}; set evaluation.quality=0, or data.hold_out higher."
            )
        for figures in text_figures(experiment, data):
            figures.check()
    elif experiment.evaluation.scorer is not None:
        raise UserError(
            f"evaluation.scorer.model={experiment.evaluation.scorer.model} is used by nothing, "
            f"as model.family={experiment.model.family} draws no text; set evaluation.scorer "
            "to null."
        )
    else:
        eligibility.check_quality(experiment, data)


def text_ineligibility(data: DataSplits) -> str:
    """Return the reason why drawn text cannot be measured, a clause without a full stop; empty
    where it can.
    """
    num = len(data.held_out)
    few = (
        f"{data.train.origin} holds out {num} samples of text, and at least {FEWEST_HELD_OUT} "
        "are needed"
    )
    return few if num < FEWEST_HELD_OUT else ""


def quality_names(experiment: Experiment, data: DataSplits) -> tuple[str, ...]:
    """Return the names of the experiment's quality metrics; empty where quality cannot be
    measured.
    """
    if not draws_text(experiment):
        return eligibility.quality_names(experiment, data)
    if text_ineligibility(data):
        return ()
    return samples_names(text_figures(experiment, data), samples_evaluator(experiment, data))


def samples_evaluator(experiment: Experiment, data: DataSplits) -> Any:
    """Return the family's evaluator, a SamplesEvaluator where the family measures samples of its
    own.
    """
    return experiment.family.build_evaluator(experiment.objective, experiment.model, data.text)


def text_figures(
    experiment: Experiment, data: DataSplits, home: Home | None = None
) -> tuple[QualityFigures, ...]:
    """Return the further figures of drawn text; none of other samples. Raises UserError as
    `find_figures` does.
    """
    if draws_text(experiment):
        return find_figures(experiment, data, home)
    return ()


def samples_names(
    figures: Sequence[QualityFigures], evaluator: SamplesEvaluator
) -> tuple[str, ...]:
    """Return the names of what `samples_measure` gives."""
    further = [name for each in figures for name in each.names()]
    return (*further, *(f"{GROUP}{name}" for name in evaluator.sample_metrics))


def samples_measure(
    figures: Sequence[QualityFigures],
    experiment: Experiment,
    data: DataSplits,
    inputs: ModelInputs,
    batch_size: int,
    tick: Callable[[], None] = ignore,
    warn: Callable[[str], None] = ignore,
) -> Measure:
    """Return the measure of samples of a family that measures its own: its metrics, and further
    figures of text.
    """
    rows = row_set(data.train, inputs), row_set(data.held_out, inputs)
    of_family = samples_evaluator(experiment, data).measure_samples(*rows, batch_size)

    def compared(tokens: Tensor) -> ComparedSamples:
        num, length = tokens.shape
        held_out = data.held_out.first(num)

        def real() -> list[Tensor]:
            return [held_out.gather("tokens", np.arange(len(held_out)))[:, :length].long()]

        key = hashlib.sha256(
            f"{held_out.store.fingerprint}/{length}".encode() + held_out.rows_key
        ).hexdigest()
        return ComparedSamples([tokens], real, key, inputs.device, tick=tick, warn=warn)

    def measure(samples: Samples) -> dict[str, float]:
        found = dict[str, float]()
        for each in figures:
            found |= each.measure(compared(samples.values))
        return found | {f"{GROUP}{name}": value for name, value in of_family(samples).items()}

    return measure


@dataclass
class TextQuality(DrawingEvaluator):
    """Draws text and measures it."""

    batch_size: int = 256
    """Rows at once of what the samples are compared with."""
    _warned: bool = field(default=False, init=False)

    @cached_property
    def figures(self) -> tuple[QualityFigures, ...]:
        """Further figures of the text."""
        return text_figures(self.experiment, self.data, self.home)

    @cached_property
    def _measure(self) -> Measure:
        inputs = self.opened_inputs()
        return samples_measure(
            self.figures, self.experiment, self.data, inputs, self.batch_size, self.tick, self.warn
        )

    def measure(self, drawn: Samples) -> dict[str, float]:
        """Return the metrics of `samples_names`; the first fall of the entropy is a warning."""
        found = self._measure(drawn)
        if entropy_fell(found) and not self._warned:
            self._warned = True
            self.warn(
                f"the drawn text has an entropy of {found[ENTROPY]:.2f} nats, held-out text "
                f"one of {found[f'{ENTROPY}_held_out']:.2f}: it repeats itself, by which its "
                "perplexity is too good; compare perplexities at equal entropy, or raise "
                "sampling.temperature."
            )
        return found

    def features_digest(self) -> str:
        """Return the protocol, and digests of further figures."""
        return f"{PROTOCOL} {''.join(each.digest() for each in self.figures)}"


def open_quality(experiment: Experiment, data: DataSplits, *rest: Any, **options: Any) -> Any:
    """Return the evaluator of an experiment's samples: `TextQuality` of text, `QualityEvaluator` of
    images.
    """
    kind: Any = TextQuality if draws_text(experiment) else QualityEvaluator
    return kind(experiment, data, *rest, **options)
