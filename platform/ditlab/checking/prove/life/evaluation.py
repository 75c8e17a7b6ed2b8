"""Evaluation and a sample under the average, by the engine and by plain networks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.life.comparing import bounded, equal_values, exact
from ditlab.checking.prove.life.observed_steps import CopiedState
from ditlab.checking.prove.life.plain_model import PRECISIONS, PlainModel, build_plain, set_apart, whole_weights
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed, fixed_noise
from ditlab.training.evaluation import RunEvaluation, part_objectives
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState

EVALUATION = "evaluation"
"""Phase of the comparisons of held-out metrics and weights."""
SAMPLE = "sample"
"""Phase of the comparison of a sample."""


@dataclass(frozen=True)
class EvaluatedState:
    """Metrics and sample of an engine under its averaged weights, and its training weights before and after."""

    metrics: dict[str, float]
    sample: Tensor
    """One sample, as the sampler returns it."""
    before: CopiedState
    after: CopiedState


@dataclass(frozen=True)
class PlainReading:
    """Metrics and sample of a network without an engine."""

    metrics: dict[str, float]
    sample: Tensor | None


def evaluate_engine(
    run: TrainingRun, rank: Rank, channel: ControlChannel, inputs: ModelInputs, reporter: Reporter,
    state: TrainingState, pass_size: int,
) -> EvaluatedState:  # fmt: skip
    """Evaluate and sample with a state's engine, its average first set apart from its weights. All workers call."""
    apart = set_apart(CopiedState.of(state), run.experiment.seed)
    state.engine.load_state(
        lambda field, name, start, stop: apart.tensors[field, name, start], apart.scalars, has_ema=True
    )
    before = _with_own_weights(state)
    metrics = RunEvaluation(run, rank, channel, inputs, reporter).evaluate(state, pass_size)
    after = _with_own_weights(state)
    with state.engine.evaluating():
        sample = draw_sample(run, inputs, state.network)
    return EvaluatedState(metrics, sample, before, after)


def compare_evaluation(
    run: TrainingRun, rank: Rank, channel: ControlChannel, inputs: ModelInputs, found: EvaluatedState, pass_size: int
) -> Iterator[Compared]:
    """Yield the comparisons of an evaluation and a sample with plain networks. All workers call."""
    has_average = run.experiment.training.ema is not None
    precision = run.experiment.training.precision
    averaged = whole_weights(found.before, channel, "ema" if has_average else "master")
    trained = whole_weights(found.before, channel, "master")
    own, exact_one = (
        read_plain(run, rank, inputs, averaged, dtype, pass_size) for dtype in (PRECISIONS[precision], torch.float64)
    )
    if rank.is_first:
        others = read_plain(run, rank, inputs, trained, PRECISIONS[precision], pass_size, samples=False).metrics
        yield from _compare_metrics(found.metrics, own, exact_one, others if has_average else {}, precision)
        yield _compare_sample(found.sample, own, exact_one, PRECISIONS[precision])
    keys = found.before.tensors
    changed = [key for key, values in keys.items() if not equal_values(values, found.after.tensors[key])]
    where = f"first {changed[0][0]} of {changed[0][1]}" if changed else ""
    yield exact(EVALUATION, "weights, average and moments after it", len(changed), len(keys), "tensors", where)


def compare_saved_weights(
    run: TrainingRun, rank: Rank, channel: ControlChannel, ended: CopiedState
) -> Iterator[Compared]:
    """Yield the comparison of the weights that sampling opens with those of the state's average. All workers call."""
    kind = "ema" if run.experiment.training.ema is not None else "master"
    weights = whole_weights(ended, channel, kind)
    if not rank.is_first:
        return
    with run.checkpoints.open(ended.step) as reader:
        opened = reader.weights()
    names = [name for name in weights if name.startswith("network.")]
    wrong = [name for name in names if not equal_values(weights[name], opened[name.partition(".")[2]].view(-1))]
    where = [f"first {name}" for name in wrong[:1]]
    yield exact(SAMPLE, "weights that sampling opens", len(wrong), len(names), "tensors", *where)


def read_plain(
    run: TrainingRun, rank: Rank, inputs: ModelInputs, weights: dict[str, Tensor], dtype: torch.dtype, pass_size: int,
    samples: bool = True,
) -> PlainReading:  # fmt: skip
    """Compute held-out metrics, and one sample, with a plain network of these weights in a precision."""
    model = build_plain(run, rank, weights, dtype)
    metrics = held_out_means(run, inputs, model, pass_size)
    with torch.no_grad():
        return PlainReading(metrics, draw_sample(run, inputs, model.network) if samples else None)


def held_out_means(run: TrainingRun, inputs: ModelInputs, model: PlainModel, pass_size: int) -> dict[str, float]:
    """Compute the held-out metrics that an evaluation reports, batch after batch, under their MLflow names."""
    limit, data = run.experiment.evaluation.limit, run.data
    if data.mixture is None:
        sums, num = _held_out_sums(data.held_out, limit, inputs, model, pass_size)
        return {f"eval/{name}": value for name, value in _summary(sums, num, model.objective).items()}
    objectives = part_objectives(run.experiment, data)
    found: dict[str, float] = {}
    whole: dict[str, float] = {}
    total = 0.0
    for part, count in data.mixture.measured(limit).items():
        sums, num = _held_out_sums(data.mixture.parts[part].held_out, count, inputs, model, pass_size)
        own = _summary(sums, num, objectives.get(part, model.objective))
        found |= {f"eval/{part}/{name}": value for name, value in own.items()}
        whole = {name: whole.get(name, 0.0) + sums.get(name, 0.0) for name in {**whole, **sums}}
        total += num
    return {f"eval/{name}": value for name, value in _summary(whole, total, model.objective).items()} | found


def _held_out_sums(
    view: View, limit: int, inputs: ModelInputs, model: PlainModel, pass_size: int
) -> tuple[dict[str, float], float]:
    sums: dict[str, float] = {}
    num = 0.0
    for rows in view.batches(pass_size, limit):
        raw = {field.name: view.gather(field.name, rows.indices) for field in inputs.fields}
        batch = inputs.prepare_batch(raw, view.columns)
        values = model.objective.metrics(model.network, batch, fixed_noise(rows.first, inputs.device, rows.bucket))
        num += len(rows.indices)
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + len(rows.indices) * float(value)
    return sums, num


def _summary(sums: dict[str, float], num: float, objective: Any) -> dict[str, float]:
    found: dict[str, float] = objective.summary({name: value / num for name, value in sums.items()}) if num else {}
    return found


def draw_sample(run: TrainingRun, inputs: ModelInputs, network: Callable[..., Tensor]) -> Tensor:
    """Draw one sample as an evaluation's grid does, from the same noise at every call."""
    experiment = run.experiment
    sampler: Any = experiment.family.build_sampler(
        experiment.sampling, experiment.model, experiment.objective, run.data.text
    )
    generator = torch.Generator(inputs.device).manual_seed(derived_seed(experiment.seed, "samples"))
    conditions = sample_conditions(sampler, 1, rows_for_samples(run.data), inputs)
    tensors = {name: value.to(inputs.device) for name, value in conditions.tensors.items()}
    values: Tensor = sampler.sample(network, tensors, conditions.num, generator).values
    return values.detach().cpu()


def _with_own_weights(state: TrainingState) -> CopiedState:
    """Copy a state, with the weights that the network computes with; ZeRO-3 holds shards of them, left out here."""
    copied = CopiedState.of(state)
    if state.engine.stage < 3:
        for name, parameter in state.module.named_parameters():
            copied.tensors["computed", name, 0] = parameter.detach().to("cpu", copy=True)
    return copied


def _compare_metrics(
    found: dict[str, float], own: PlainReading, exact_one: PlainReading, trained: dict[str, float], precision: str
) -> Iterator[Compared]:
    """Yield a comparison for each metric with that of plain networks of the same weights, in two precisions.

    `trained`: metrics of the weights in training, which an evaluation under an average must not give.
    """
    names, plain_ones = sorted({**own.metrics, **found}), exact_one.metrics
    relative = max((abs(own.metrics[name] / value - 1) for name, value in plain_ones.items() if value), default=0.0)
    for name in names:
        plain, reading = plain_ones.get(name, math.nan), own.metrics.get(name, math.nan)
        value, others = found.get(name, math.nan), trained.get(name, math.nan)
        # Two readings of one figure may agree by chance; no more than a rounding is granted for that.
        bound = MARGIN * max(abs(reading - plain), min(relative, UNITS[PRECISIONS[precision]]) * abs(plain))
        away, note = abs(value - reading), ""
        if not away <= bound and abs(value - others) <= bound:
            note = "the figure is that of the weights in training, not of their average"
        elif abs(others - reading) <= 2 * bound:
            note = "average and weights differ too little in this figure to be told apart"
        yield bounded(EVALUATION, name, away, bound, note)


def _compare_sample(found: Tensor, own: PlainReading, exact_one: PlainReading, dtype: torch.dtype) -> Compared:
    """Compare the engine's sample with the plain network's of its precision, by the distance of two precisions.

    A choice between two tokens that are nearly as likely turns with a rounding, and later ones with it. In float32 such
    a choice is rare; in half precision one is granted where the two readings chose alike.
    """
    assert own.sample is not None and exact_one.sample is not None
    if not found.is_floating_point():
        differing, by_chance = (float((one != own.sample).sum()) for one in (found, exact_one.sample))
        if dtype != torch.float32:
            by_chance = MARGIN * max(by_chance, 1)
        return bounded(SAMPLE, "tokens of one sample", differing, min(by_chance, found.numel() / 2))
    scale = exact_one.sample.double().norm()
    away, between = (float((one.double() - own.sample.double()).norm() / scale) for one in (found, exact_one.sample))
    return bounded(SAMPLE, "one sample", away, MARGIN * max(between, FLOAT32))
