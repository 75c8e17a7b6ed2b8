"""Evaluation of a network by the run's protocol: held-out metrics on fixed times and noise, sample
grids, quality.

One evaluator serves a run in training, a saved run, and another process: on one kind of device,
with the same threads and batches, all three give the same bits, whatever the number of workers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import BatchRows, View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.engine import TrainingModule, lay_out_as_trained
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.inputs.conditions import name_classes, rows_for_samples, sample_conditions
from ditlab.inputs.meta_step import DTYPES
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed, fixed_noise
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.quality.measurement import held_out_measurement
from ditlab.quality.sample_quality import DrawnSamples
from ditlab.quality.text import open_quality
from ditlab.receipts.reading import read_attempts
from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.spec.experiment import Experiment
from ditlab.storage.files import write_whole
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter
from ditlab.training.state import TrainingState
from ditlab_models.contract import KnownOptimumObjective, Samples, TextCodec
from ditlab_models.figures import Figure
from ditlab_models.finetuning import fine_tune
from ditlab_models.intervals import Estimate, mean_estimate

ASKED_SAMPLES = 16
"""Samples of a grid that is asked for, where evaluations draw none."""
NUM = ""
"""Name of the number of samples among sums of metrics: no metric has it."""
EXCESS_LOSS = "excess_loss"
"""Held-out loss above the least possible one, reported where the data's law has a closed form for
the objective.
"""
NUDGE = 0.1
"""Standard errors by which a mean is moved to see what depends on it."""
BySample = dict[str, np.ndarray]
"""Values of metrics by name for each held-out sample, in order, (num,) float64."""


@dataclass(frozen=True)
class Protocol:
    """Batch, threads and kind of device by which a run's figures are computed: they decide the last
    bits.
    """

    batch_size: int
    """Held-out samples of a pass."""
    threads: int | None
    """Threads of each worker's CPU; None where no receipt tells."""
    device_type: str
    """`cpu` or `cuda`."""
    workers: int
    """Workers, whose number decides where parameters lie in memory."""

    @classmethod
    def of_run(cls, experiment: Experiment, folder: RunFolder, step: int) -> "Protocol":
        """Return the protocol of the attempt that evaluated a step, by the run's receipts."""
        kind = "cuda" if experiment.resources.gpus_per_worker else "cpu"
        attempts = [each for _, each in sorted(read_attempts(folder).items())]
        if not attempts:
            return cls(experiment.micro_size, None, kind, experiment.resources.max_workers)
        own = next((each for each in reversed(attempts) if each.step < step), attempts[0])
        on_gpu = own.device != "cpu"
        threads = own.threads or None
        if experiment.evaluation.mode == "async":
            resources = experiment.evaluation.resources
            on_gpu = resources.gpus > 0
            threads = resources.cpus or threads
        kind = "cuda" if on_gpu else "cpu"
        return cls(experiment.micro_size >> own.microbatch_splits, threads, kind, own.workers)

    @contextmanager
    def computing(self, device: torch.device) -> Iterator[None]:
        """Compute inside as a worker does: with its threads, on a GPU by deterministic
        convolutions.
        """
        threads = torch.get_num_threads()
        deterministic = torch.backends.cudnn.deterministic
        torch.set_num_threads(self.threads or threads)
        torch.backends.cudnn.deterministic = deterministic or device.type == "cuda"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic = deterministic


def evaluated_modules(
    experiment: Experiment,
    weights: Callable[[str], Mapping[str, Tensor]],
    text: TextCodec | None,
    device: torch.device,
    precision: str,
    workers: int,
) -> tuple[nn.Module, Any]:
    """Build the network and the objective that a training by so many workers evaluates, adapters
    beside their bases.

    `weights` returns whole tensors by name, unmerged, of a prefix: `network.`, `objective.`.
    """
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, text)
    network: Any = experiment.family.build_network(experiment.model)
    fine_tune(network, objective.modules, experiment.training)
    for prefix, module in (("network.", network), ("objective.", objective.modules)):
        if module is not None:
            module.load_state_dict(dict(weights(prefix)))
            module.to(device, DTYPES[precision]).eval()
    lay_out_as_trained(TrainingModule(network, objective), experiment, device, workers)
    return network, objective


@dataclass
class Evaluated:
    """Figures of a network; on a worker beside the first those of held-out samples alone."""

    values: dict[str, float] = field(default_factory=dict)
    """Metrics by MLflow name: `eval/...`, `quality/...`."""
    measurements: dict[str, Measurement] = field(default_factory=dict)
    """Measurements behind them by group: `eval`, `quality`."""
    by_sample: dict[str, BySample] = field(default_factory=dict)
    """Values of each held-out sample by group."""
    intervals: dict[str, Estimate] = field(default_factory=dict)
    """95 % intervals of means over held-out samples, by MLflow name."""
    grid: Figure | None = None
    """Samples as the family shows them."""
    drawn: DrawnSamples | Samples | None = None
    """Samples whose quality was measured."""


@dataclass
class StateEvaluator:
    """Evaluator of states of an experiment's network, on one worker."""

    experiment: Experiment
    data: DataSplits
    home: Home
    inputs: ModelInputs
    rank: Rank
    channel: ControlChannel
    warn: Callable[[str], None] = ignore
    tick: Callable[[], None] = ignore
    """Called all along a measurement of quality."""
    progress: Progress = ignore_progress

    @cached_property
    def quality(self) -> Any:
        """Evaluator of the quality of samples, images or text."""
        return open_quality(
            self.experiment,
            self.data,
            self.home,
            self.rank.device,
            self.warn,
            self.tick,
            self.progress,
            self.inputs,
        )

    def evaluate(
        self,
        network: nn.Module,
        objective: Any,
        batch_size: int,
        *,
        precision: str | None = None,
        groups: Mapping[str, int | None] | None = None,
        num_shown: int | None = None,
        quality: int | None = None,
        at_once: int | None = None,
        draws: bool | None = None,
        with_intervals: bool = False,
        inside: AbstractContextManager[None],
        measuring: Callable[[], None] = ignore,
    ) -> Evaluated:
        """Evaluate a network with averaged weights, by default as the spec's `evaluation` says.

        `groups` are numbers of first held-out samples (None: all) by the name of their figures.
        `num_shown` samples are drawn for the grid and `quality` for figures, `at_once`, by the
        first worker or where it `draws`; 0 for none. All that calls the network happens `inside`;
        `measuring` is called before drawn samples are measured. `precision` is that of the network.
        """
        spec = self.experiment.evaluation
        rank = self.rank
        if groups is None:
            groups = {"eval": spec.limit}
        if num_shown is None:
            num_shown = spec.samples
        if quality is None:
            quality = spec.quality
        if draws is None:
            draws = rank.is_first
        at_once = at_once or max(batch_size, spec.samples)
        found = Evaluated()
        with inside:
            self._add_held_out(found, groups, network, objective, batch_size, with_intervals)
            if num_shown and draws:
                sampler, samples = draw_samples(
                    network, self.experiment, self.data, num_shown, self.inputs
                )
                if rank.is_first:
                    found.grid = sampler.show(samples)
            if quality and draws:
                found.drawn = self.quality.draw(network, quality, at_once)
        if quality:
            measuring()
        if not rank.is_first:
            return found
        precision = precision or self.experiment.training.precision
        found.measurements = self._held_out_measurements(groups, precision, batch_size)
        if found.drawn is not None:
            found.values.update(self.quality.measure(found.drawn))
            found.measurements["quality"] = self.quality.measurement(quality, at_once, precision)
        return found

    def _held_out_measurements(
        self, groups: Mapping[str, int | None], precision: str, batch_size: int
    ) -> dict[str, Measurement]:
        return {
            group: held_out_measurement(
                self.experiment,
                self.data,
                limit,
                precision,
                self.rank.device.type,
                self.home,
                batch_size,
                torch.get_num_threads(),
            )
            for group, limit in groups.items()
        }

    def _add_held_out(
        self,
        found: Evaluated,
        groups: Mapping[str, int | None],
        network: nn.Module,
        objective: Any,
        batch_size: int,
        with_intervals: bool,
    ) -> None:
        """Add the metrics over each group's number of first held-out samples."""
        for group, limit in groups.items():
            by_sample = BySample()
            intervals = dict[str, Estimate]()
            values = metrics_by_part(
                network,
                objective,
                self.experiment,
                self.data,
                self.inputs,
                batch_size,
                len(self.data.held_out) if limit is None else limit,
                self.rank,
                self.channel,
                self.progress,
                by_sample,
                intervals if with_intervals else None,
            )
            found.values.update({f"{group}/{name}": value for name, value in values.items()})
            found.intervals.update({f"{group}/{name}": ends for name, ends in intervals.items()})
            found.by_sample[group] = by_sample


class RunEvaluation:
    """Evaluation of a run in training, on one worker."""

    def __init__(
        self,
        run: TrainingRun,
        rank: Rank,
        channel: ControlChannel,
        inputs: ModelInputs,
        reporter: Reporter,
    ) -> None:
        self._run = run
        self._rank = rank
        self._inputs = inputs
        self._reporter = reporter
        self._measurements: dict[str, str] = {}
        """Tags of the measurements that were recorded last."""
        self._evaluator = StateEvaluator(
            run.experiment,
            run.data,
            run.home,
            inputs,
            rank,
            channel,
            reporter.warn,
            reporter.marker.tick,
        )

    def evaluate(
        self, state: TrainingState, batch_size: int, is_recorded: bool = True
    ) -> dict[str, float]:
        """Evaluate the averaged weights; return metrics under their MLflow names.

        The run keeps samples, tags and values by sample only of an evaluation that `is_recorded`.
        The first worker reports the sample grid, and alone returns quality figures.
        """
        # Under ZeRO-3 every forward pass needs every worker; otherwise the first one draws alone.
        found = self._evaluator.evaluate(
            state.network,
            state.objective,
            batch_size,
            inside=state.engine.evaluating(),
            draws=self._rank.is_first or state.engine.stage == 3,
            measuring=lambda: self._reporter.marker.begin(state.step, "measuring samples"),
        )
        if not (self._rank.is_first and is_recorded):
            return found.values
        kept = self._run.experiment.objective.weights.model_dump()
        by_sample = found.by_sample["eval"]
        self._reporter.held_out(
            state.step, {name: each for name, each in by_sample.items() if name in kept}
        )
        if found.grid is not None:
            self._reporter.samples(state.step, found.grid)
        # Tag the run with what its figures are measured with, where that is new.
        tags = measurement_tags(found.measurements)
        if tags != self._measurements:
            self._reporter.tags(tags)
        self._measurements = tags
        return found.values

    def sample(self, state: TrainingState) -> str:
        """Draw a sample grid from the averaged weights, as evaluations do; return why none can be
        drawn, or nothing.
        """
        experiment = self._run.experiment
        rank = self._rank
        problem = ""
        draws = rank.is_first or state.engine.stage == 3
        with state.engine.evaluating():
            try:
                if draws:
                    sampler, samples = draw_samples(
                        state.network,
                        experiment,
                        self._run.data,
                        experiment.evaluation.samples or ASKED_SAMPLES,
                        self._inputs,
                    )
                    if rank.is_first:
                        self._reporter.requests.sampled(state.step, sampler.show(samples))
            except UserError as error:  # raised before anything is drawn, on every worker
                problem = str(error)
        return problem


def metrics_by_part(
    network: nn.Module,
    objective: Any,
    experiment: Experiment,
    data: DataSplits,
    inputs: ModelInputs,
    batch_size: int,
    limit: int,
    rank: Rank,
    channel: ControlChannel,
    progress: Progress = ignore_progress,
    by_sample: BySample | None = None,
    intervals: dict[str, Estimate] | None = None,
) -> dict[str, float]:
    """Return the objective's held-out metrics; of a mixture those of all parts together, then
    `PART/...` of each.

    Parts are measured on equally many samples, as far as they have them. The metrics of all parts
    are means over these samples, whatever the parts' weights, so that runs of other weights
    compare. `intervals` receives those of `held_out_intervals`.
    """
    values = BySample() if by_sample is None else by_sample
    if data.mixture is None:
        sums = held_out_sums(
            network,
            objective,
            data.held_out,
            inputs,
            batch_size,
            limit,
            rank,
            channel,
            progress,
            values,
            analytic_target(data, objective),
        )
        if intervals is not None:
            intervals |= held_out_intervals(values, sums, objective)
        return summary_of(sums, objective)
    together: dict[str, float] = {}
    of_parts: dict[str, float] = {}
    for name, num in data.mixture.measured(limit).items():
        part = data.mixture.parts[name]
        of_part = objective
        own = BySample()
        sums = held_out_sums(
            network, objective, part.held_out, inputs, batch_size, num, rank, channel, progress, own
        )
        for metric, each in own.items():
            if metric in values:
                each = np.concatenate([values[metric], each])
            values[metric] = each
        for metric, value in sums.items():
            together[metric] = together.get(metric, 0.0) + value
        if part.text is not None:  # each part's tokens stand for bytes of its own
            with torch.random.fork_rng(devices=[]):
                of_part = experiment.family.build_objective(
                    experiment.objective, experiment.model, part.text
                )
        of_parts |= {
            f"{name}/{metric}": value for metric, value in summary_of(sums, of_part).items()
        }
        if intervals is not None:
            found = held_out_intervals(own, sums, of_part)
            intervals |= {f"{name}/{metric}": ends for metric, ends in found.items()}
    if intervals is not None:
        intervals |= held_out_intervals(values, together, objective)
    return summary_of(together, objective) | of_parts


def analytic_target(data: DataSplits, objective: Any) -> Any:
    """Return the law of generated data whose optimum has a closed form for this objective; None for
    all others.
    """
    law = data.references.get("optimal")
    if isinstance(objective, KnownOptimumObjective) and objective.knows_optimum(law):
        return law
    return None


def held_out_sums(
    network: nn.Module,
    objective: Any,
    view: View,
    inputs: ModelInputs,
    batch_size: int,
    limit: int,
    rank: Rank,
    channel: ControlChannel,
    progress: Progress,
    by_sample: BySample,
    law: Any = None,
) -> dict[str, float]:
    """Return the sum of each of the objective's metrics over the first `limit` held-out samples of
    a view, and NUM.

    Times and noise of a sample are the same at every call, in every experiment and whatever the
    batches, so numbers of two runs can be compared. Workers take batches in turn, equally many
    each: ZeRO-3 gathers on all at once. Sums are over batches in their order, so that any number of
    workers gives the bits of one. `by_sample` receives the values of each sample, where the
    objective gives them. `law`: that of `analytic_target`, above whose optimum the excess loss is
    measured.
    """
    batches = list(view.batches(batch_size, limit))
    if not batches:
        return {}
    own: dict[int, BatchSums] = {}
    for turn in range(0, len(batches), rank.world_size):
        number = turn + rank.rank
        is_own = number < len(batches)
        rows = batches[number if is_own else 0]
        values = _batch_metrics(network, objective, view, inputs, rows, rank.device, law)
        progress(
            "measuring held-out samples",
            min(turn + rank.world_size, len(batches)),
            len(batches),
            "batches",
        )
        if is_own:
            own[number] = _batch_sums(values, len(rows.indices))
    everyone: Any = channel.gather(own)
    found: dict[int, BatchSums] = {}
    for part in everyone:
        found |= part
    sums: dict[str, float] = {}
    for number in sorted(found):
        for name, total in found[number].totals.items():
            sums[name] = sums.get(name, 0.0) + total
    places = sorted(found, key=lambda number: (batches[number].bucket, batches[number].first))
    for name in found[0].by_sample:
        by_sample[name] = np.concatenate([found[number].by_sample[name] for number in places])
    return {name: sums[name] for name in sorted(sums)}


class BatchSums(NamedTuple):
    """Metrics of a batch of held-out samples."""

    totals: dict[str, float]
    """Sums over its samples by metric, and NUM."""
    by_sample: BySample


def _batch_metrics(
    network: nn.Module,
    objective: Any,
    view: View,
    inputs: ModelInputs,
    rows: BatchRows,
    device: torch.device,
    law: Any,
) -> dict[str, Tensor]:
    """Return the objective's metrics of a batch by name: by sample, (samples,), or their mean."""
    raw = {field.name: view.gather(field.name, rows.indices) for field in inputs.fields}
    noise = fixed_noise(rows.first, device, rows.bucket)
    batch = inputs.prepare_batch(raw, view.columns, noise=noise)
    values: dict[str, Tensor] = objective.metrics(network, batch, noise)
    if law is None:
        return values
    return values | {EXCESS_LOSS: objective.excess_loss(network, law, batch, noise)}


def _batch_sums(values: Mapping[str, Tensor], size: int) -> BatchSums:
    """Sum the metrics of a batch of so many samples."""
    totals = {NUM: float(size)}
    by_sample = BySample()
    for name, value in values.items():
        if value.ndim:
            by_sample[name] = value.double().cpu().numpy()
            totals[name] = float(by_sample[name].sum())
        else:
            totals[name] = float(size * value)
    return BatchSums(totals, by_sample)


def held_out_intervals(
    values: BySample, sums: Mapping[str, float], objective: Any
) -> dict[str, Estimate]:
    """Return 95 % intervals of the objective's metrics by name, of `held_out_sums` and its values
    by sample.

    `mean_estimate` gives a mean's. A metric of one mean (a perplexity) has the mean's ends, mapped;
    one of several (an R^2) that of its linear approximation, the delta method (van der Vaart 1998,
    Asymptotic Statistics, ch. 3).
    """
    means = _means(sums)
    known = {
        name: each for name, each in values.items() if len(each) > 1 and np.isfinite(each).all()
    }
    summary = summary_of(sums, objective)

    def moved(name: str, to: float) -> dict[str, float]:
        found: dict[str, float] = objective.summary({**means, name: to})
        return found

    found: dict[str, Estimate] = {}
    for metric, slopes in _slopes(summary, means, known, moved).items():
        value = summary[metric]
        if len(slopes) == 1:
            (name,) = slopes
            mean = mean_estimate(known[name])
            low, high = sorted(moved(name, end)[metric] for end in (mean.low, mean.high))
        else:
            parts = [slope * (known[name] - known[name].mean()) for name, slope in slopes.items()]
            mean = mean_estimate(value + np.sum(parts, axis=0))
            low = mean.low
            high = mean.high
        if math.isfinite(low) and math.isfinite(high):
            found[metric] = Estimate(value, low, high, mean.df)
    return found


def _slopes(
    summary: Iterable[str],
    means: Mapping[str, float],
    known: BySample,
    moved: Callable[[str, float], Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """Return the slope of each metric of a summary along each mean that changes it, of means of
    `known` values; `moved` gives the metrics with a mean at another value.
    """
    slopes: dict[str, dict[str, float]] = {}
    for name, values in known.items():
        nudge = NUDGE * float(values.std(ddof=1)) / math.sqrt(len(values))
        if not nudge:
            continue
        up = moved(name, means[name] + nudge)
        down = moved(name, means[name] - nudge)
        for metric in summary:
            if up[metric] != down[metric]:
                slopes.setdefault(metric, {})[name] = (up[metric] - down[metric]) / (2 * nudge)
    return slopes


def save_by_sample(folder: RunFolder, step: int, values: Mapping[str, np.ndarray]) -> None:
    """Keep values by held-out sample of an evaluation in a run's folder, float32. Raises OSError as
    the disk does.
    """
    folder.evaluations.mkdir(exist_ok=True)
    write_whole(
        _by_sample_file(folder, step),
        save({name: each.astype(np.float32) for name, each in values.items()}),
    )


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
    means = _means(sums)
    if not means:
        return {}
    found: dict[str, float] = objective.summary(means)
    return found


def _means(sums: Mapping[str, float]) -> dict[str, float]:
    return {name: value / sums[NUM] for name, value in sums.items() if name != NUM}


def draw_samples(
    network: nn.Module, experiment: Experiment, data: DataSplits, num: int, inputs: ModelInputs
) -> tuple[Any, Any]:
    """Draw `num` samples from the same noise at every call; return the sampler and what it drew.

    A sampler that completes rows completes held-out ones. Raises UserError where no sample can be
    drawn under the experiment's sampling settings.
    """
    sampler: Any = experiment.family.build_sampler(
        experiment.sampling, experiment.model, experiment.objective, data.text
    )
    sampler = inputs.decoding(name_classes(sampler, data.classes))
    generator = torch.Generator(inputs.device).manual_seed(derived_seed(experiment.seed, "samples"))
    conditions = sample_conditions(sampler, num, rows_for_samples(data), inputs)
    tensors = {name: value.to(inputs.device) for name, value in conditions.tensors.items()}
    return sampler, sampler.sample(network, tensors, conditions.num, generator)
