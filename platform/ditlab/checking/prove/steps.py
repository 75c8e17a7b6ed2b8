"""All comparisons of observed steps, on one worker of a process group.

What the engine consumed and drew from is compared with what spec and order say, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.parameters import parameter_roles
from ditlab.checking.prove.findings import ProofComparison
from ditlab.checking.prove.gradients import compare_differences, compare_gradients, compare_losses, compare_norm
from ditlab.checking.prove.recording import WholeStep, join_steps, observe_steps, observed_experiment, observed_spans
from ditlab.checking.prove.reference import PRECISIONS, ReferenceGradient, ReferenceMicroBatch, ReferenceSteps
from ditlab.checking.prove.resume import DRAWS
from ditlab.checking.prove.updates import (
    ParameterKind,
    compare_averages,
    compare_clipping,
    compare_rates,
    compare_update,
    compare_weights,
)
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.engine import TrainingModule
from ditlab.inputs.noise import derived_seed
from ditlab.training.plan import TrainingRun

MOST_OF_AN_EPOCH = 2_000_000
"""Samples of an epoch that are compared with one another; a longer epoch is left to the order's own tests."""


def check_steps(run: TrainingRun, rank: Rank, folder: Path) -> list[ProofComparison]:
    """Train a few steps of a run by its own loop, and compare each with the reference; on every worker of its group.

    The first worker returns the comparisons, the others none. `folder`: an empty one that all workers see. Raises what
    training raises.
    """
    recorded = observe_steps(run, rank, folder)
    channel = ControlChannel(rank)
    parts: Any = channel.gather(recorded)
    channel.close()
    if not rank.is_first:
        return []
    steps = [join_steps(list(each)) for each in zip(*parts, strict=True)]
    checker = _StepChecker(run, rank)
    kinds = [(checker.compare, steps), (checker.compare_start, steps[:1]), (checker.compare_slope, steps[:2][-1:])]
    return [replace(each, step=whole.step + 1) for compare, some in kinds for whole in some for each in compare(whole)]


class _StepChecker:
    """Reference of a run's steps, and its comparison with the engine's."""

    def __init__(self, run: TrainingRun, rank: Rank) -> None:
        self._run, self._rank = run, rank
        self._experiment = observed_experiment(run.experiment)
        self._dtype = PRECISIONS[run.experiment.training.precision]
        self._reader = ReferenceSteps(run, rank)
        self._starts = {span.first for span in observed_spans(run.experiment, run.plan)}
        self._num_updates = 0
        """Updates before the step that is compared, counted here: a counter of the engine's may be off."""
        module = _fresh_module(run)
        roles = parameter_roles(module)
        self._kinds = {name: ParameterKind(roles[name], each.shape) for name, each in module.named_parameters()}
        self._fresh = {name: each.detach().reshape(-1) for name, each in module.named_parameters()}

    def compare(self, whole: WholeStep) -> Iterator[ProofComparison]:
        """Yield all comparisons of one step; those of a span come in its order."""
        experiment, plan = self._experiment, self._run.plan
        if whole.step in self._starts:
            self._num_updates = whole.step
        own = whole.first.scalars["adam_step"]
        detail = f"step {whole.step + 1}: {own:g} in place of {self._num_updates}"
        yield ProofComparison("moments", "updates so far", abs(own - self._num_updates), 0.0, detail)
        micro_batches = self._reader.micro_batches(whole.step)
        yield from compare_consumed(whole, micro_batches)
        if plan.epoch_steps and plan.epoch_steps * experiment.batch.size <= MOST_OF_AN_EPOCH:
            yield from compare_epoch(self._reader, whole.step)
        yield from compare_weights(whole)
        references = None
        if not whole.wrong_before:  # or what loss and gradient are of is not what the masters say
            references = self._references(whole, micro_batches)
            yield from compare_losses(whole, [micro.key for micro in micro_batches], *references, self._dtype)
        if not whole.gradients and self._dtype == torch.float16:
            return  # the scaled gradient overflowed, and the step was skipped as it should be
        if references:
            yield from compare_gradients(whole, *references, self._dtype)
        yield from compare_norm(whole)
        yield from compare_clipping(whole, experiment)
        yield from compare_rates(whole, experiment, plan, self._kinds)
        self._num_updates += 1
        on_gpu = self._rank.device.type == "cuda"
        yield from compare_update(whole, experiment, plan, self._kinds, self._num_updates, on_gpu)
        yield from compare_averages(whole, experiment)

    def _references(
        self, whole: WholeStep, micro_batches: list[ReferenceMicroBatch]
    ) -> tuple[ReferenceGradient, ReferenceGradient]:
        """Return loss and gradient of a step in float64 and in the run's own precision."""
        weights: dict[str, Tensor] = {**whole.before["master"], **whole.before.get("buffer", {})}
        scale = whole.first.scalars.get("loss_scale.cur_scale", 1.0)
        exact = self._reader.gradient(micro_batches, weights, torch.float64)
        return exact, self._reader.gradient(micro_batches, weights, self._dtype, scale)

    def compare_slope(self, whole: WholeStep) -> Iterator[ProofComparison]:
        """Yield the comparison of the plain gradient of one step with differences of the loss."""
        weights = {**whole.before["master"], **whole.before.get("buffer", {})}
        micro_batches = self._reader.micro_batches(whole.step)
        yield from compare_differences(self._reader, micro_batches, weights, self._experiment.seed)

    def compare_start(self, whole: WholeStep) -> Iterator[ProofComparison]:
        """Yield the comparison of the weights that training begins with and those that the seed gives."""
        held = whole.before["master"]
        wrong = [
            name
            for name, values in self._fresh.items()
            if not torch.equal(held[name], values.to(self._dtype).float())  # as the network computes with them
        ]
        detail = f"first {wrong[0]}" if wrong else ""
        yield ProofComparison("master weights", "those of the seed at the start", float(len(wrong)), 0.0, detail)


def _fresh_module(run: TrainingRun) -> nn.Module:
    """Build network and objective's modules with the weights of the experiment's seed."""
    experiment = run.experiment
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(experiment.seed, "objective"))
        objective = experiment.family.build_objective(experiment.objective, experiment.model, run.data.text)
        torch.manual_seed(derived_seed(experiment.seed, "weights"))
        network: Any = experiment.family.build_network(experiment.model)
    return TrainingModule(network, objective)


def compare_consumed(whole: WholeStep, expected: Sequence[ReferenceMicroBatch]) -> Iterator[ProofComparison]:
    """Yield the comparisons of a step's passes: their draw keys, then their samples."""
    step = f"step {whole.step + 1}"
    keys = [micro.key for micro in expected]
    found = [each.key for each in whole.passes]
    wrong = [key for key in keys if found.count(key) != 1] + [key for key in found if key not in keys]
    places = [f"{step}: micro-batch {key.micro_index} from sample {key.start}, step {key.step + 1}" for key in wrong]
    yield ProofComparison(DRAWS, "keys of random numbers", float(len(wrong)), 0.0, "".join(places[:1]))
    samples = {micro.key: micro.samples for micro in expected}
    num, first = 0, ""
    if not wrong:
        for each in whole.passes:
            for place, (one, two) in enumerate(zip(each.samples, samples[each.key], strict=True)):
                if one != two:
                    num += 1
                    first = first or f"{step}: sample {place} of micro-batch {each.key.micro_index}"
    else:
        consumed = sorted(digest for each in whole.passes for digest in each.samples)
        due = sorted(digest for micro in expected for digest in micro.samples)
        num = sum(one != two for one, two in zip(consumed, due, strict=False)) + abs(len(consumed) - len(due))
        first = step
    yield ProofComparison(DRAWS, "samples and their order", float(num), 0.0, first)


def compare_epoch(reader: ReferenceSteps, step: int) -> Iterator[ProofComparison]:
    """Yield the comparison of an epoch's samples with one another: none comes twice."""
    samples = reader.epoch(step)
    num = len(samples) - len(np.unique(samples))
    yield ProofComparison(DRAWS, "samples that come twice in an epoch", float(num), 0.0, f"{len(samples):,} samples")
