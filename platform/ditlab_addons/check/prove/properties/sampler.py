"""The sampler: times at which it evaluates the network, sizes of its steps, and guidance."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.watching import (
    first_numbers,
    replaced_output,
    watched_calls,
)
from ditlab_addons.check.prove.reference import Tensors
from ditlab_models.contract import Conditions, GuidedSampler, Sampler, SamplingSpec, SamplingTimes

TIME_ROUNDING = 1e-5
"""Distance of a time that float32 explains, relative to the largest one."""
SHIFT_ROUNDING = 1e-4
"""Distance of a sum of steps that float32 explains."""
SCALES = (0.0, 1.0, 2.0, 3.0)
"""Scales of guidance at which a prediction is made."""
LINEAR = 1e-9
"""Distance, relative to the predictions, that float64 rounding explains in guidance."""


@dataclass(frozen=True)
class ConditionedSampler:
    """A sampler with the conditions of its samples, and a generator as at the start."""

    sampler: Sampler
    conditions: Conditions
    num: int
    """Samples."""
    generator: torch.Generator

    @classmethod
    def build(cls, checked: CheckedRun, spec: SamplingSpec, num: int) -> ConditionedSampler:
        """Build the family's sampler under a spec, for `num` samples."""
        experiment = checked.experiment
        device = checked.inputs.device
        sampler: Sampler = experiment.family.build_sampler(
            spec, experiment.model, experiment.objective, checked.run.data.text
        )
        found = sample_conditions(sampler, num, rows_for_samples(checked.run.data), checked.inputs)
        conditions = {name: each.to(device) for name, each in found.tensors.items()}
        generator = torch.Generator(device).manual_seed(experiment.seed)
        return cls(sampler, conditions, found.num, generator)

    def draw(self, network: nn.Module) -> Tensor:
        """Draw the samples, (num, ...) on the host."""
        samples = self.sampler.sample(network, self.conditions, self.num, self.generator)
        return samples.values.detach().cpu()

    def first_input(self, network: nn.Module) -> Tensor:
        """Return the input of the network's first call, (num, ...) on the host."""
        with watched_calls(network, is_last=True) as seen:
            self.draw(network)
        return next(iter(seen[0].values()))[: self.num]


def compare_sampler(checked: CheckedRun) -> None:
    """Compare the times at which the network is evaluated for one sample with those of the spec,
    and the change that its outputs make of the sample."""
    experiment = checked.experiment
    findings = checked.findings
    due = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
    network = checked.model(torch.float32).network
    if due is None or due.argument not in inspect.signature(network.forward).parameters:
        findings.unchecked.append(
            "the sampler's evaluations, as its spec does not give their times (evaluation_times)"
        )
        return
    with torch.no_grad(), watched_calls(network) as seen:
        draw_one(checked, network)
    compare_times(due, seen, findings)
    if due.shift is None:
        findings.unchecked.append("the size of the sampler's steps, as its spec gives no `shift`")
        return
    with torch.no_grad():
        with replaced_output(network, torch.zeros_like):
            still = draw_one(checked, network)
        with replaced_output(network, torch.ones_like):
            moved = draw_one(checked, network)
    shift = moved - still
    away = float((shift - due.shift).abs().max())
    detail = f"mean {float(shift.mean()):.6g} in place of {due.shift:g}"
    findings.near("sampler", "sum of its steps, for outputs of 1", away, SHIFT_ROUNDING, detail)


def draw_one(checked: CheckedRun, network: nn.Module) -> Tensor:
    """Draw one sample as the spec says, (1, ...), from the same noise at every call."""
    return ConditionedSampler.build(checked, checked.experiment.sampling, 1).draw(network)


def compare_times(due: SamplingTimes, calls: Sequence[Tensors], findings: Findings) -> None:
    """Compare the times of the network's calls for one sample with those due."""
    times = [float(first_numbers(each[due.argument])[0]) for each in calls]
    if len(times) == 2 * len(due.values):
        times = times[::2]  # a guided sampler may call the network once for each condition
    away = math.inf
    detail = f"{len(times)} evaluations in place of {len(due.values)}"
    if len(times) == len(due.values):
        differences = [abs(one - two) for one, two in zip(times, due.values, strict=True)]
        away = max(differences)
        first = differences.index(away)
        detail = f"evaluation {first + 1} is at {times[first]:.6g}, not {due.values[first]:.6g}"
    bound = due.rounding + TIME_ROUNDING * max(1.0, *map(abs, due.values))
    if away <= bound:
        detail = f"{len(times)} evaluations, the last at {times[-1]:.6g}"
    findings.near("sampler", "times of the network's evaluations", away, bound, detail)


def compare_guidance(checked: CheckedRun) -> None:
    """Compare guided predictions of four scales: linear in the scale, at 0 the unconditional one,
    at 1 the conditional one."""
    experiment = checked.experiment
    findings = checked.findings
    specs = [experiment.sampling.guided_by(scale, experiment.model) for scale in SCALES]
    times = experiment.sampling.evaluation_times(experiment.model, experiment.objective)
    if specs[0] is None or times is None:
        findings.unchecked.append("guidance, as samples of this model are not guided")
        return
    network = checked.model(torch.float64).network
    at = times.values[len(times.values) // 2]
    found = []
    for spec, scale in zip(specs, SCALES, strict=True):
        assert spec is not None
        own = ConditionedSampler.build(checked, spec, 2)
        if not isinstance(own.sampler, GuidedSampler):
            findings.unchecked.append("guidance, as the sampler has no `guided`")
            return
        x = own.first_input(network).to(checked.inputs.device)
        with torch.no_grad():
            found.append(own.sampler.guided(network, own.conditions)(x, at))
            if scale == 1:
                without = own.sampler.unconditioned(own.conditions)
                plain = own.sampler.guided(network, without)(x, at)
    compare_guided(found, plain, findings)


def compare_guided(found: Sequence[Tensor], plain: Tensor, findings: Findings) -> None:
    """Compare predictions at SCALES with each other, and with that without conditions; (num, ...)
    each."""
    phase = "guidance"
    size = max(float(each.norm()) for each in found)
    if not size:
        findings.unchecked.append("guidance, as all predictions of the network are 0")
        return
    bends = [
        float((found[place] - 2 * found[place + 1] + found[place + 2]).norm()) / size
        for place in (0, 1)
    ]
    findings.near(phase, "linear in its scale", max(bends), LINEAR)
    is_guided = found[3] != found[2]  # a learned variance is not
    away = float((found[0] - plain)[is_guided].norm()) / size
    findings.near(phase, "scale 0 is without conditions", away, LINEAR)
    apart = float((found[1] - found[0]).norm()) / size
    wrong = []
    if not apart > LINEAR:
        wrong.append("predictions with and without conditions are alike")
    findings.same(phase, "conditions change a prediction", wrong)
