"""Checks of a run's life on one worker of a group: a resume, evaluation, a sample, the rate, dropped conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.checking.prove.findings import ProofComparison
from ditlab.checking.prove.reference import PRECISIONS, ReferenceModel, build_reference, set_apart, whole_weights
from ditlab.checking.prove.resume import (
    RESUME,
    CopiedState,
    StepRecord,
    compare_draws,
    compare_fields,
    compare_resume,
    observe_training,
    stop_steps,
    train_resumed,
)
from ditlab.checking.prove.tolerances import FLOAT32, MARGIN, UNITS, equal_values, exact
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import KeyedNoise, derived_seed, fixed_noise
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import SteppedCosineRestartSchedule, WarmupCosineSchedule
from ditlab.training.evaluation import RunEvaluation, part_objectives
from ditlab.training.plan import RunPlan, TrainingRun, learning_rate, worker_share
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.state import TrainingState
from ditlab.training.trainer import Trainer

MOST_HELD_OUT = 16
"""Held-out samples that are evaluated."""
MOST_SAMPLING_STEPS = 4
"""Steps of the sampler for the one sample."""
EVALUATION = "evaluation"
"""Phase of the comparisons of held-out metrics and weights."""
SAMPLE = "sample"
"""Phase of the comparison of a sample."""
DROPOUT = "dropout of conditions"
"""Phase of these comparisons."""
ROWS, PASSES = 32, 16
"""Samples of a pass, and passes: 512 decisions."""
DEVIATIONS = 5.0
"""Standard deviations of a count by which chance may move it: one run in two million is further out."""
SCHEDULE = "learning rate"
"""Phase of these comparisons."""
MOST_STEPS = 100_000
"""Steps of a plan that are compared one by one; of a longer one, its ends, its turns and a spread."""
RATE_UNITS = 64
"""Roundings of double precision by which two ways of writing a schedule may differ, relative to its highest rate."""


def check_life(run: TrainingRun, rank: Rank, folder: Path) -> list[ProofComparison]:
    """Train a few steps of a run in an empty folder by its own loop, and compare; on every worker of its group.

    A comparison of one worker may fail where another's holds. `folder` is one that all workers see. Raises what
    training raises.
    """
    experiment = shortened(run.experiment)
    run = replace(run, experiment=experiment, checkpoints=CheckpointStore.at(folder / "whole"))
    channel = ControlChannel(rank)
    inputs = ModelInputs.from_experiment(experiment, run.data.train.columns, rank.device, home=run.home)
    reporter = Reporter(lambda: False, lambda message: None, ProgressMarker())
    memory = run.memory
    share = worker_share(experiment.num_micro, experiment.micro_size, rank.rank, rank.world_size, memory.halvings)
    evaluated: list[EvaluatedState] = []

    def evaluate(trainer: Trainer) -> None:
        evaluated.append(evaluate_engine(run, rank, channel, inputs, reporter, trainer.state, share.pass_size))

    stops = stop_steps(run.plan)
    whole = observe_training(run, rank, stops.last if stops else 1, at_end=evaluate)
    comparisons = [
        *compare_schedule(experiment, run.plan, whole.steps),
        exact(RESUME, "training without a stop", bool(whole.failure), 1, "trainings", whole.failure),
        compare_draws(whole.steps),
        saved := compare_fields(run, whole.ended),
    ]
    if stops:
        comparisons += compare_resume(train_resumed(run, rank, folder, whole, stops.middle))
    if saved.distance or not evaluated:
        channel.close()
        return comparisons  # what is missing cannot be evaluated either
    comparisons += compare_saved_weights(run, rank, channel, whole.ended)
    comparisons += compare_evaluation(run, rank, channel, inputs, evaluated[0], share.pass_size)
    if dropout_rate(run):
        # The weights of the average that was set apart: a fresh network's predictions may depend on no condition.
        kind = "ema" if experiment.training.ema else "master"
        model = build_reference(run, rank, whole_weights(evaluated[0].before, channel, kind), torch.float32)
        if rank.is_first:
            comparisons += compare_dropout(run, inputs, model)
    channel.close()
    return comparisons


def shortened(experiment: Experiment) -> Experiment:
    """Return the experiment with each step logged, few held-out samples, and a sampler of few steps."""
    changes = {
        "tracking.every": 1, "checkpoint.every": None, "evaluation.every": None, "evaluation.samples": 0,
        "evaluation.quality": 0, "evaluation.limit": min(MOST_HELD_OUT, experiment.evaluation.limit),
    }  # fmt: skip
    if "steps" in type(experiment.sampling).model_fields:
        steps = getattr(experiment.sampling, "steps", None) or MOST_SAMPLING_STEPS
        changes["sampling.steps"] = min(MOST_SAMPLING_STEPS, steps)
    return experiment.replace_all(changes)


@dataclass(frozen=True)
class EvaluatedState:
    """Metrics and sample of an engine under its averaged weights, and its training weights before and after."""

    metrics: dict[str, float]
    sample: Tensor
    """One sample, as the sampler returns it."""
    before: CopiedState
    after: CopiedState


@dataclass(frozen=True)
class ReferenceEvaluation:
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
) -> Iterator[ProofComparison]:
    """Yield the comparisons of an evaluation and a sample with plain networks. All workers call."""
    has_average = run.experiment.training.ema is not None
    precision = run.experiment.training.precision
    averaged = whole_weights(found.before, channel, "ema" if has_average else "master")
    trained = whole_weights(found.before, channel, "master")
    own, exact_one = (
        evaluate_reference(run, rank, inputs, averaged, dtype, pass_size)
        for dtype in (PRECISIONS[precision], torch.float64)
    )
    if rank.is_first:
        others = evaluate_reference(run, rank, inputs, trained, PRECISIONS[precision], pass_size, samples=False).metrics
        yield from _compare_metrics(found.metrics, own, exact_one, others if has_average else {}, precision)
        yield _compare_sample(found.sample, own, exact_one, PRECISIONS[precision])
    keys = found.before.tensors
    changed = [key for key, values in keys.items() if not equal_values(values, found.after.tensors[key])]
    where = f"first {changed[0][0]} of {changed[0][1]}" if changed else ""
    yield exact(EVALUATION, "weights, average and moments after it", len(changed), len(keys), "tensors", where)


def compare_saved_weights(
    run: TrainingRun, rank: Rank, channel: ControlChannel, ended: CopiedState
) -> Iterator[ProofComparison]:
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


def evaluate_reference(
    run: TrainingRun, rank: Rank, inputs: ModelInputs, weights: dict[str, Tensor], dtype: torch.dtype, pass_size: int,
    samples: bool = True,
) -> ReferenceEvaluation:  # fmt: skip
    """Compute held-out metrics, and one sample, with a plain network of these weights in a precision."""
    model = build_reference(run, rank, weights, dtype)
    metrics = held_out_means(run, inputs, model, pass_size)
    with torch.no_grad():
        return ReferenceEvaluation(metrics, draw_sample(run, inputs, model.network) if samples else None)


def held_out_means(run: TrainingRun, inputs: ModelInputs, model: ReferenceModel, pass_size: int) -> dict[str, float]:
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
    view: View, limit: int, inputs: ModelInputs, model: ReferenceModel, pass_size: int
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
    """Copy a state, with the weights that the network computes with; ZeRO-3 holds shards of them, skipped here."""
    copied = CopiedState.of(state)
    if state.engine.stage < 3:
        for name, parameter in state.module.named_parameters():
            copied.tensors["computed", name, 0] = parameter.detach().to("cpu", copy=True)
    return copied


def _compare_metrics(
    found: dict[str, float],
    own: ReferenceEvaluation,
    exact_one: ReferenceEvaluation,
    trained: dict[str, float],
    precision: str,
) -> Iterator[ProofComparison]:
    """Yield a comparison for each metric with that of plain networks of the same weights, in two precisions.

    `trained`: metrics of the weights in training, which an evaluation under an average must not give.
    """
    names, plain_ones = sorted({**own.metrics, **found}), exact_one.metrics
    relative = max((abs(own.metrics[name] / value - 1) for name, value in plain_ones.items() if value), default=0.0)
    for name in names:
        plain, reference = plain_ones.get(name, math.nan), own.metrics.get(name, math.nan)
        value, others = found.get(name, math.nan), trained.get(name, math.nan)
        # Two references of one figure may agree by chance; no more than a rounding is granted for that.
        bound = MARGIN * max(abs(reference - plain), min(relative, UNITS[PRECISIONS[precision]]) * abs(plain))
        away, note = abs(value - reference), ""
        if not away <= bound and abs(value - others) <= bound:
            note = "the figure is that of the weights in training, not of their average"
        elif abs(others - reference) <= 2 * bound:
            note = "average and weights differ too little in this figure to be told apart"
        yield ProofComparison(EVALUATION, name, away, bound, note)


def _compare_sample(
    found: Tensor, own: ReferenceEvaluation, exact_one: ReferenceEvaluation, dtype: torch.dtype
) -> ProofComparison:
    """Compare the engine's sample with the plain network's of its precision, by the distance of two precisions.

    A choice between two tokens that are nearly as likely turns with a rounding, and later ones with it. In float32 such
    a choice is rare; in half precision one is granted where the two references chose alike.
    """
    assert own.sample is not None and exact_one.sample is not None
    if not found.is_floating_point():
        differing, by_chance = (float((one != own.sample).sum()) for one in (found, exact_one.sample))
        if dtype != torch.float32:
            by_chance = MARGIN * max(by_chance, 1)
        return ProofComparison(SAMPLE, "tokens of one sample", differing, min(by_chance, found.numel() / 2))
    scale = exact_one.sample.double().norm()
    away, between = (float((one.double() - own.sample.double()).norm() / scale) for one in (found, exact_one.sample))
    return ProofComparison(SAMPLE, "one sample", away, MARGIN * max(between, FLOAT32))


def dropout_rate(run: TrainingRun) -> float:
    """Return the share of samples that lose their condition; 0 for a model that drops none."""
    spec = run.experiment.model
    has_condition = len(spec.batch_fields()) > 1
    rates = [float(getattr(spec, name)) for name in type(spec).model_fields if name.endswith("_dropout")]
    return max(rates, default=0.0) if has_condition else 0.0


def compare_dropout(run: TrainingRun, inputs: ModelInputs, model: ReferenceModel) -> Iterator[ProofComparison]:
    """Yield the comparisons of who lost its condition, in passes of training's own loss under fresh draws."""
    rate = dropout_rate(run)
    if not rate:
        return
    dropped = torch.stack([_dropped(run, inputs, model, number) for number in range(PASSES)]).float()
    yield from compare_decisions(dropped, rate)


def compare_decisions(dropped: Tensor, rate: float) -> Iterator[ProofComparison]:
    """Yield the comparisons of decisions (passes, samples) float, 1 where a sample lost its condition, with a rate.

    Decided sample by sample, the number dropped is binomial, and so is the number of passes whose samples all agree.
    """
    passes, samples = dropped.shape
    num = passes * samples
    spread = DEVIATIONS * math.sqrt(rate * (1 - rate) / num) + 1 / num
    share = float(dropped.mean())
    yield ProofComparison(
        DROPOUT, f"share of {num} samples", abs(share - rate), spread, f"{share:.3f}, the model's {rate:g}"
    )
    agreeing = float((dropped == dropped[:, :1]).all(1).sum())
    chance = rate**samples + (1 - rate) ** samples
    expected = passes * chance
    bound = DEVIATIONS * math.sqrt(expected * (1 - chance)) + 1
    note = f"{agreeing:.0f} of {passes} passes of {samples} samples; {expected:.1f} by chance"
    yield ProofComparison(DROPOUT, "passes alike on all samples", max(0.0, agreeing - expected), bound, note)


def _dropped(run: TrainingRun, inputs: ModelInputs, model: ReferenceModel, number: int) -> Tensor:
    """Return which samples (ROWS,) bool of a pass lost their condition."""
    view = run.data.train
    raw = {field.name: view.gather(field.name, np.arange(ROWS) % len(view)) for field in inputs.fields}
    batch = inputs.prepare_batch(raw, view.columns)
    noise = KeyedNoise(run.experiment.seed, "train", number, 0, ROWS, inputs.device)
    conditions = {field.name: field for field in run.experiment.model.batch_fields()}
    one, other = (_predictions(model, each, noise) for each in (batch, _other_conditions(batch, conditions)))
    return torch.stack([(a == b).flatten(1).all(1) for a, b in zip(one, other, strict=True)]).all(0).cpu()


def _other_conditions(batch: dict[str, Tensor], fields: dict[str, Any]) -> dict[str, Tensor]:
    """Return a batch with other conditions: the next class or byte, features of the other sign."""
    changed = dict(batch)
    for name, values in batch.items():
        classes = fields[name].num_classes if name in fields else None
        if name == "image" or name not in fields or values.dtype == torch.bool:
            continue
        if classes:
            changed[name] = torch.where(values > 0, values % (classes - 1) + 1, values) if values.ndim > 1 else (
                values + 1
            ) % classes  # fmt: skip
        elif values.is_floating_point():
            changed[name] = 1 - values
    return changed


def _predictions(model: ReferenceModel, batch: dict[str, Tensor], noise: KeyedNoise) -> list[Tensor]:
    """Return what the network predicts in the loss's passes, (ROWS, ...) each."""
    kept: list[Tensor] = []
    hook = model.network.register_forward_hook(  # a prediction may come with further tensors
        lambda _, inputs, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    try:
        with torch.no_grad():
            model.objective.loss(model.network, batch, noise)
    finally:
        hook.remove()
    return kept


def closed_form(experiment: Experiment, plan: RunPlan, steps: np.ndarray) -> np.ndarray:
    """Return the learning rate of each step (from 0), written as the schedule's formula over all steps at once."""
    spec, base, n = experiment.schedule, experiment.optimizer.lr, steps.astype(np.float64)
    if isinstance(spec, SteppedCosineRestartSchedule):
        cycle = spec.cycle or plan.epoch_steps
        number = np.floor_divide(steps, cycle)
        phase = np.pi * (steps - number * cycle) / cycle
        high = np.maximum(spec.floor, np.power(spec.decay, number.astype(np.float64)))
        low = np.maximum(spec.floor, spec.valley * np.power(spec.decay, number.astype(np.float64)))
        # peak at phase 0, valley at phase pi
        return base * (high * np.cos(phase / 2) ** 2 + low * np.sin(phase / 2) ** 2)
    warmup = spec.warmup
    if spec.warmup_epochs:
        warmup = round(spec.warmup_epochs * plan.epoch_steps)
    rise = (n + 1) / warmup if warmup else np.ones_like(n)
    if not isinstance(spec, WarmupCosineSchedule):
        return base * np.minimum(1.0, rise)
    falling = plan.total_steps - 1 - warmup
    phase = np.pi * np.clip((n - warmup) / max(1, falling), 0, 1)
    fall = spec.final * np.sin(phase / 2) ** 2 + np.cos(phase / 2) ** 2
    return base * np.where(steps < warmup, rise, fall)


def compare_schedule(
    experiment: Experiment, plan: RunPlan, used: Mapping[int, StepRecord]
) -> Iterator[ProofComparison]:
    """Yield the comparison of the loop's own function over the plan, and that of the rates it stepped with.

    `used`: records of a training by step (from 1).
    """
    steps = compared_steps(experiment, plan)
    forms = closed_form(experiment, plan, steps)
    own = [
        learning_rate(experiment.schedule, experiment.optimizer.lr, int(step), plan.total_steps, plan.epoch_steps)
        for step in steps
    ]
    name = f"{len(steps):,} of {plan.total_steps:,} steps of the plan"
    yield _compare_rates(name, steps, np.array(own), forms)
    pairs = [(number - 1, rate) for number, record in sorted(used.items()) for rate in record.rates]
    places = np.array([step for step, _ in pairs], dtype=np.int64)
    rates = np.array([rate for _, rate in pairs], dtype=np.float64)
    yield _compare_rates("rates that steps used", places, rates, closed_form(experiment, plan, places))


def compared_steps(experiment: Experiment, plan: RunPlan) -> np.ndarray:
    """Return the steps (from 0) of a plan whose rates are compared: all, or the ends and a spread of a long plan."""
    total = plan.total_steps
    if total <= MOST_STEPS:
        return np.arange(total)
    spread = np.linspace(0, total - 1, MOST_STEPS // 2).astype(np.int64)
    ends = np.concatenate([np.arange(1000), np.arange(total - 1000, total)])
    spec = experiment.schedule
    length = (spec.cycle or plan.epoch_steps) if isinstance(spec, SteppedCosineRestartSchedule) else 0
    warmup = 0 if isinstance(spec, SteppedCosineRestartSchedule) else spec.warmup_steps(plan.epoch_steps)
    around = np.concatenate([np.arange(-3, 4) + turn * length for turn in range(1, 1000)]) if length else np.arange(0)
    steps = np.unique(np.concatenate([spread, ends, warmup + np.arange(-1000, 1000), around]))
    return steps[(steps >= 0) & (steps < total)]


def _compare_rates(what: str, steps: np.ndarray, rates: np.ndarray, forms: np.ndarray) -> ProofComparison:
    """Compare rates with their closed form; the distance is the largest, relative to the largest rate."""
    largest = max(float(np.abs(forms).max(initial=0.0)), float(np.finfo(np.float64).tiny))
    away = np.abs(rates - forms) / largest
    worst = int(away.argmax()) if len(away) else -1
    bound = RATE_UNITS * float(np.finfo(np.float64).eps)
    note = ""
    if len(away) and not away[worst] <= bound:
        note = f"first at step {int(steps[(~(away <= bound)).argmax()]) + 1}; step {int(steps[worst]) + 1} has "
        note += f"{rates[worst]:.6g} in place of {forms[worst]:.6g}"
    return ProofComparison(SCHEDULE, what, float(away[worst]) if len(away) else 0.0, bound, note)
