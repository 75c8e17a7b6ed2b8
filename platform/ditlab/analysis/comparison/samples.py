"""Samples of the runs that `ditlab compare` compares: drawn in chunks, timed, and measured against the data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from denoisers.batched_sampling import draw_samples
from denoisers.contract import Samples
from ditlab.analysis.comparison import OpenedRun
from ditlab.analysis.saved_run import SavedRun
from ditlab.cli.common import say
from ditlab.errors import UserError
from ditlab.inputs.conditions import Conditions, conditions_of, shown_rows
from ditlab.inputs.noise import derived_seed
from ditlab.quality.eligibility import quality_applies
from ditlab.quality.evaluator import Drawn, QualityMeter
from ditlab.reports.comparison.records import ComparedRun, Drawing
from ditlab.spec.experiment import Experiment
from ditlab.tracking.parameters import flatten


@dataclass(frozen=True)
class Wish:
    """What shall be drawn of every run."""

    samples: int
    """For quality metrics, where the family supports them; 0 for none. A larger grid is measured as a whole."""
    grid: int
    """To look at, the first ones."""
    seed: int
    batch: int
    """Drawn at once: what bounds the memory."""
    device: torch.device


def draw_all(opened: Sequence[OpenedRun], runs: Sequence[ComparedRun], wish: Wish) -> list[ComparedRun]:
    """`runs` with samples, or with the reason why there are none: no checkpoint, or one that cannot be read."""
    drawn = []
    for one, run in zip(opened, runs, strict=True):
        if wish.samples or wish.grid:
            say(f"{run.name} ({run.run_id}): drawing samples")
            try:
                saved = one.saved()
                drawing = None if saved is None else draw(saved, wish)
                reason = "" if saved else "it has no checkpoint yet"
            except UserError as error:
                drawing, reason = None, _reason(error)
            run = replace(run, drawing=drawing, no_drawing=reason)
        drawn.append(run)
    return drawn


def draw(saved: SavedRun, wish: Wish) -> Drawing | None:
    """Samples of a run with its own sampling settings; None where none are wished for.

    Raises UserError where the weights cannot be read, or there are no rows to complete.
    """
    experiment = saved.experiment()
    meter, reason = _meter(saved, experiment, wish) if wish.samples else (None, "")
    num = max(wish.grid, wish.samples if meter else 0)
    if not num:
        return None
    network = saved.network(wish.device)
    if meter:
        sampler, conditions = meter.sampler, meter.conditions(num)
    else:
        sampler = experiment.sampling.build(experiment.model, experiment.objective, saved.text())
        rows = saved.data() if sampler.takes_rows != "none" else None
        inputs = saved.inputs(rows, wish.device)
        conditions = conditions_of(sampler, num, shown_rows(rows) if rows else None, inputs)
    num = conditions.num
    evaluated = _count_evaluations(network)
    begun = time.perf_counter()
    samples = _draw(sampler, network, conditions, wish)
    seconds = time.perf_counter() - begun
    metrics: Mapping[str, float] = {}
    if meter:
        try:
            metrics = meter.measure(Drawn(samples.values, meter.asked(num)))
        except UserError as error:
            reason = _reason(error)
    return Drawing(
        step=saved.step,
        settings=_settings(experiment),
        num=num,
        seconds=seconds / num,
        evaluations=evaluated[0] / num if evaluated[0] else None,
        grid=sampler.show(_first(samples, wish.grid)) if wish.grid else None,
        quality=metrics,
        no_quality=reason,
    )


def _meter(saved: SavedRun, experiment: Experiment, wish: Wish) -> tuple[QualityMeter | None, str]:
    """What measures the run's samples; or None, and why there is nothing."""
    try:
        data = saved.data()
        if reason := quality_applies(experiment, data):
            return None, reason
        inputs = saved.inputs(data, wish.device)
        meter = QualityMeter(experiment, data, saved.home, wish.device, say, inputs=inputs)
        meter.basis.check()
        return meter, ""
    except UserError as error:
        return None, _reason(error)


def _reason(error: UserError) -> str:
    return str(error).rstrip(".")


def _count_evaluations(network: nn.Module) -> list[int]:
    """A list whose only number grows by the rows of every batch that the network is given as a whole."""
    count = [0]

    def add(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim:
            count[0] += len(inputs[0])

    network.register_forward_pre_hook(add)
    return count


def _draw(sampler: Any, network: nn.Module, conditions: Conditions, wish: Wish) -> Samples:
    """Samples on the CPU, `wish.batch` at a time; the first ones are those of `ditlab sample` with this seed."""
    generator = torch.Generator(wish.device).manual_seed(derived_seed(wish.seed, "samples"))
    return draw_samples(sampler, network, conditions.tensors, conditions.num, generator, wish.batch)


def _first(samples: Samples, num: int) -> Samples:
    conditions = {name: values[:num] for name, values in samples.conditions.items()}
    return Samples(samples.values[:num], conditions, fields=samples.fields)


def _settings(experiment: Experiment) -> str:
    """`solver=heun, steps=25`: the sampling settings, as the spec has them."""
    return ", ".join(f"{name}={value}" for name, value in flatten(experiment.to_dict()["sampling"]).items())
