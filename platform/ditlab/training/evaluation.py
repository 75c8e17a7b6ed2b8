"""Evaluation of a network: held-out metrics on fixed times and noise, sample grids, sample quality."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from denoisers.contract import KnownOptimumObjective
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.home import RunFolder
from ditlab.inputs.conditions import rows_for_samples, sample_conditions
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed, fixed_noise
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.measurement import held_out_measurement
from ditlab.quality.text import open_quality
from ditlab.receipts.records import measurement_tags
from ditlab.spec.experiment import Experiment
from ditlab.storage.files import write_whole
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState

NUM = ""
"""Name of the number of samples among sums of metrics: no metric has it."""
REGRET = "regret"
"""Held-out loss above the least possible one, reported where the data's law has a closed form for the objective."""
BySample = dict[str, np.ndarray]
"""Values of metrics by name for each held-out sample, in order, (num,) float64."""


class RunEvaluation:
    """Evaluation of a run in training, on one worker."""

    def __init__(
        self, run: TrainingRun, rank: Rank, channel: ControlChannel, inputs: ModelInputs, reporter: Reporter
    ) -> None:
        self._run, self._rank, self._channel, self._inputs, self._reporter = run, rank, channel, inputs, reporter
        self._measurements: dict[str, str] = {}
        """Tags of the measurements that were recorded last."""
        self._quality = open_quality(
            run.experiment, run.data, run.home, rank.device, reporter.warn, reporter.marker.tick, inputs=inputs
        )

    def evaluate(self, state: TrainingState, batch_size: int) -> dict[str, float]:
        """Evaluate the averaged weights; return metrics under their MLflow names.

        The first worker reports the sample grid, and alone returns quality figures.
        """
        experiment, data, rank = self._run.experiment, self._run.data, self._rank
        evaluation, precision = experiment.evaluation, experiment.training.precision
        at_once = max(batch_size, evaluation.samples)  # both are known to fit
        by_sample: BySample = {}
        with state.engine.evaluating():
            found = metrics_by_part(
                state.network, state.objective, experiment, data, self._inputs, batch_size,
                evaluation.limit, rank, self._channel, by_sample=by_sample,
            )  # fmt: skip
            if rank.is_first:
                kept = experiment.objective.weights.model_dump()
                self._reporter.held_out(state.step, {name: each for name, each in by_sample.items() if name in kept})
            # Under ZeRO-3 every forward pass needs every worker; otherwise the first one draws alone.
            if evaluation.samples and (rank.is_first or state.engine.stage == 3):
                sampler, samples = draw_samples(state.network, experiment, data, evaluation.samples, self._inputs)
                if rank.is_first:
                    self._reporter.samples(state.step, sampler.show(samples))
            if evaluation.quality and (rank.is_first or state.engine.stage == 3):
                drawn = self._quality.draw(state.network, evaluation.quality, at_once)
        values = {f"eval/{name}": value for name, value in found.items()}
        if evaluation.quality:
            self._reporter.marker.begin(state.step, "measuring samples")
            values |= self._quality.measure(drawn) if rank.is_first else {}
        if rank.is_first:
            # Tag the run with what its figures are measured with, where that is new.
            place = rank.device.type, self._run.home
            measurements = {"eval": held_out_measurement(experiment, data, evaluation.limit, precision, *place)}
            if evaluation.quality:
                measurements["quality"] = self._quality.measurement(evaluation.quality, at_once, precision)
            tags = measurement_tags(measurements)
            if tags != self._measurements:
                self._reporter.tags(tags)
            self._measurements = tags
        return values


def metrics_by_part(
    network: nn.Module, objective: Any, experiment: Experiment, data: DataSplits, inputs: ModelInputs,
    batch_size: int, limit: int, rank: Rank, channel: ControlChannel, progress: Progress = ignore_progress,
    by_sample: BySample | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return `held_out_metrics` of the data; of a mixture those of all parts together, then `PART/...` of each.

    Parts are measured on equally many samples, as far as they have them. Together is the mean over these, whatever the
    parts' weights, so that runs of other weights compare.
    """
    if data.mixture is None:
        return held_out_metrics(
            network, objective, data.held_out, inputs, batch_size, limit, rank, channel, progress, by_sample,
            known_law(data, objective),
        )  # fmt: skip
    together: dict[str, float] = {}
    of_parts: dict[str, float] = {}
    for name, num in data.mixture.measured(limit).items():
        part, of_part = data.mixture.parts[name], objective
        sums = held_out_sums(
            network, objective, part.held_out, inputs, batch_size, num, rank, channel, progress, by_sample
        )
        for metric, value in sums.items():
            together[metric] = together.get(metric, 0.0) + value
        if part.text is not None:  # each part's tokens stand for bytes of its own
            with torch.random.fork_rng(devices=[]):
                of_part = experiment.family.build_objective(experiment.objective, experiment.model, part.text)
        of_parts |= {f"{name}/{metric}": value for metric, value in summary_of(sums, of_part).items()}
    return summary_of(together, objective) | of_parts


def known_law(data: DataSplits, objective: Any) -> Any:
    """Return the law of generated data whose optimum has a closed form for this objective; None for all others."""
    law = data.references.get("optimal")
    return law if isinstance(objective, KnownOptimumObjective) and objective.knows_optimum(law) else None


def held_out_metrics(
    network: nn.Module, objective: Any, view: View, inputs: ModelInputs, batch_size: int, limit: int, rank: Rank,
    channel: ControlChannel, progress: Progress = ignore_progress, by_sample: BySample | None = None, law: Any = None,
) -> dict[str, float]:  # fmt: skip
    """Return the objective's metrics by name, over the first `limit` held-out samples of a view; none without any."""
    sums = held_out_sums(network, objective, view, inputs, batch_size, limit, rank, channel, progress, by_sample, law)
    return summary_of(sums, objective)


def held_out_sums(
    network: nn.Module, objective: Any, view: View, inputs: ModelInputs, batch_size: int, limit: int, rank: Rank,
    channel: ControlChannel, progress: Progress, by_sample: BySample | None = None, law: Any = None,
) -> dict[str, float]:  # fmt: skip
    """Return the sum of each of the objective's metrics over the first `limit` held-out samples of a view, and NUM.

    Times and noise of a sample are the same at every call, in every experiment and whatever the batches, so numbers of
    two runs can be compared. Workers take batches in turn, equally many each: ZeRO-3 gathers on all at once. To
    `by_sample` are added the values of each sample, where the objective gives them. `law`: that of `known_law`, above
    whose optimum the regret is measured.
    """
    batches = list(view.batches(batch_size, limit))
    if not batches:
        return {}
    sums, own = {NUM: 0.0}, dict[tuple[int, int], BySample]()
    for turn in range(0, len(batches), rank.world_size):
        counts = turn + rank.rank < len(batches)
        rows = batches[turn + rank.rank if counts else 0]
        raw = {field.name: view.gather(field.name, rows.indices) for field in inputs.fields}
        size = len(rows.indices)
        noise = fixed_noise(rows.first, rank.device, rows.bucket)
        batch = inputs.prepare_batch(raw, view.columns, noise=noise)
        values = objective.metrics(network, batch, noise)
        if law is not None:
            values = values | {REGRET: objective.regret(network, law, batch, noise)}
        progress("measuring held-out samples", min(turn + rank.world_size, len(batches)), len(batches), "batches")
        if counts:
            sums[NUM] += size
            known = {name: value.double().cpu().numpy() for name, value in values.items() if value.ndim}
            own[rows.bucket, rows.first] = known
            for name, value in values.items():
                total = known[name].sum() if name in known else size * value
                sums[name] = sums.get(name, 0.0) + float(total)
    everyone: Any = channel.gather((list(sums), own if by_sample is not None else {}))
    names = sorted({name for found, _ in everyone for name in found})
    if by_sample is not None:
        merged: dict[tuple[int, int], BySample] = {place: part for _, each in everyone for place, part in each.items()}
        parts = [merged[place] for place in sorted(merged)]
        for name in parts[0]:
            before = [by_sample[name]] if name in by_sample else []
            by_sample[name] = np.concatenate([*before, *(part[name] for part in parts)])
    return dict(zip(names, channel.sum([sums.get(name, 0.0) for name in names]), strict=True))


def save_by_sample(folder: RunFolder, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Keep values by held-out sample of an evaluation in a run's folder, float32. Raises OSError as the disk does."""
    folder.evaluations.mkdir(exist_ok=True)
    write_whole(_by_sample_file(folder, step), save({name: each.astype(np.float32) for name, each in values.items()}))


def read_by_sample(folder: RunFolder, step: int) -> BySample:
    """Return what `save_by_sample` kept, float64; {} where there is nothing, or it is damaged."""
    try:
        found = load(_by_sample_file(folder, step).read_bytes())
    except (OSError, SafetensorError):
        return {}
    return {name: values.astype(np.float64) for name, values in found.items()}


def _by_sample_file(folder: RunFolder, step: int) -> Path:
    return folder.evaluations / f"{step:08d}.safetensors"


def summary_of(sums: Mapping[str, float], objective: Any) -> dict[str, float]:
    """Return the objective's metrics by name, from `held_out_sums`; none without samples."""
    means = {name: value / sums[NUM] for name, value in sums.items() if name != NUM}
    found: dict[str, float] = objective.summary(means) if means else {}
    return found


def draw_samples(
    network: nn.Module, experiment: Experiment, data: DataSplits, num: int, inputs: ModelInputs
) -> tuple[Any, Any]:
    """Draw `num` samples from the same noise at every call; return the sampler and what it drew.

    A sampler that completes rows completes held-out ones. Raises UserError where no sample can be drawn under the
    experiment's sampling settings.
    """
    sampler: Any = experiment.family.build_sampler(
        experiment.sampling, experiment.model, experiment.objective, data.text
    )
    sampler = inputs.decoding(sampler)
    generator = torch.Generator(inputs.device).manual_seed(derived_seed(experiment.seed, "samples"))
    conditions = sample_conditions(sampler, num, rows_for_samples(data), inputs)
    tensors = {name: value.to(inputs.device) for name, value in conditions.tensors.items()}
    return sampler, sampler.sample(network, tensors, conditions.num, generator)
