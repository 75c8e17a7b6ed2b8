"""Samples of compared runs: drawn in batches, timed, and measured against the data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from denoisers.contract import Samples
from ditlab.analysis.opened_run import OpenedRun
from ditlab.analysis.saved_run import SavedRun
from ditlab.errors import UserError
from ditlab.inputs.conditions import SampleConditions, rows_for_samples, sample_conditions
from ditlab.inputs.noise import derived_seed
from ditlab.progress import Progress
from ditlab.quality.eligibility import quality_ineligibility
from ditlab.quality.evaluator import DrawnSamples, QualityEvaluator, draw_reported
from ditlab.quality.measurement import FLOAT
from ditlab.reports.comparison_records import ComparedRun, RunSamples
from ditlab.spec.experiment import Experiment
from ditlab.tracking.names import flatten


@dataclass(frozen=True)
class SampleSettings:
    """Settings of the samples that are drawn from every compared run."""

    samples: int
    """Number for quality metrics, where the family supports them; 0: none. A larger grid is measured as a whole."""
    grid: int
    """Number of samples that are shown."""
    seed: int
    batch: int
    """Samples drawn in one batch: it bounds the memory."""
    device: torch.device


def add_samples(
    opened: Sequence[OpenedRun], runs: Sequence[ComparedRun], settings: SampleSettings
) -> list[ComparedRun]:
    """`runs` with samples, or with the reason why there are none: no checkpoint, or one that cannot be read."""
    found = []
    for one, run in zip(opened, runs, strict=True):
        if settings.samples or settings.grid:
            one.progress(f"opening run {run.run_id} ({run.name})", 0, None, "")
            try:
                saved = one.saved_if_any()
                drawn = None if saved is None else draw(saved, settings)
                reason = "" if saved else "it has no checkpoint yet"
            except UserError as error:
                drawn, reason = None, _reason(error)
            run = replace(run, drawn=drawn, why_no_samples=reason)
        found.append(run)
    return found


def draw(saved: SavedRun, settings: SampleSettings) -> RunSamples | None:
    """Draw samples of a run under its own sampling settings; None where `settings` ask for none.

    Raises UserError where the weights cannot be read, or there are no rows to complete.
    """
    experiment = saved.experiment()
    evaluator, reason = _evaluator(saved, experiment, settings) if settings.samples else (None, "")
    num = max(settings.grid, settings.samples if evaluator else 0)
    if not num:
        return None
    network = saved.network(settings.device)
    if evaluator:
        sampler, conditions = evaluator.sampler, evaluator.conditions(num)
    else:
        sampler = saved.sampler(experiment)
        rows = saved.data() if sampler.takes_rows != "none" else None
        inputs = saved.inputs(rows, settings.device)
        conditions = sample_conditions(sampler, num, rows_for_samples(rows) if rows else None, inputs)
    num = conditions.num
    evaluated = _count_evaluations(network)
    begun = time.perf_counter()
    samples = _draw(sampler, network, conditions, settings, saved.progress)
    seconds = time.perf_counter() - begun
    metrics: Mapping[str, float] = {}
    measurement = None
    if evaluator:
        saved.progress("measuring the quality of samples", 0, None, "")
        try:
            metrics = evaluator.measure(DrawnSamples(samples.values, evaluator.expected(num)))
            measurement = evaluator.measurement(num, settings.batch, FLOAT, noise_seed(settings))
        except UserError as error:
            reason = _reason(error)
    return RunSamples(
        step=saved.step,
        settings=_settings(experiment),
        num=num,
        seconds=seconds / num,
        evaluations=evaluated[0] / num if evaluated[0] else None,
        grid=sampler.show(_first(samples, settings.grid)) if settings.grid else None,
        quality=metrics,
        why_no_quality=reason,
        measurement=measurement,
    )


def _evaluator(
    saved: SavedRun, experiment: Experiment, settings: SampleSettings
) -> tuple[QualityEvaluator | None, str]:
    """The evaluator of the run's samples; or None and the reason why there is none."""
    try:
        data = saved.data()
        if reason := quality_ineligibility(experiment, data):
            return None, reason
        inputs = saved.inputs(data, settings.device)
        evaluator = QualityEvaluator(experiment, data, saved.home, settings.device, saved.warn, inputs=inputs)
        evaluator.basis.check()
        return evaluator, ""
    except UserError as error:
        return None, _reason(error)


def _reason(error: UserError) -> str:
    return str(error).rstrip(".")


def _count_evaluations(network: nn.Module) -> list[int]:
    """Count the network's evaluations from now on: a list whose only number grows by the rows of every batch."""
    count = [0]

    def add(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim:
            count[0] += len(inputs[0])

    network.register_forward_pre_hook(add)
    return count


def _draw(
    sampler: Any, network: nn.Module, conditions: SampleConditions, settings: SampleSettings, progress: Progress
) -> Samples:
    """Draw samples in batches; the first ones are those of `ditlab sample` with the same seed."""
    generator = torch.Generator(settings.device).manual_seed(noise_seed(settings))
    tensors, num = conditions.tensors, conditions.num
    return draw_reported(progress, sampler, network, tensors, num, generator, settings.batch)


def noise_seed(settings: SampleSettings) -> int:
    """Return the seed of the generator that samples are drawn with."""
    return derived_seed(settings.seed, "samples")


def _first(samples: Samples, num: int) -> Samples:
    conditions = {name: values[:num] for name, values in samples.conditions.items()}
    return Samples(samples.values[:num], conditions, fields=samples.fields)


def _settings(experiment: Experiment) -> str:
    """The spec's sampling settings as text, such as `solver=heun, steps=25`."""
    return ", ".join(f"{name}={value}" for name, value in flatten(experiment.to_dict()["sampling"]).items())
