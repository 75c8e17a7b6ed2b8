"""The configurations of a sweep over samples: drawn, counted and measured, one configuration and
seed after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from ditlab.analysis.averages import with_average
from ditlab.analysis.drawing import SampleSet, draw
from ditlab.analysis.opened_run import SavedRun, default_device
from ditlab.analysis.sample_options import SampleOptions
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, nearest
from ditlab.inputs.conditions import rows_for_samples
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.eligibility import quality_ineligibility
from ditlab.quality.sample_quality import DrawnSamples, QualityEvaluator, classes_of
from ditlab.quality.text import (
    quality_names,
    samples_evaluator,
    samples_measure,
    samples_names,
    text_figures,
)
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial, configurations_of, rank
from ditlab.spec.experiment import Experiment
from ditlab_addons.race.samples.ledger import SampledFolder
from ditlab_addons.race.samples.report import COSTS, EVALUATIONS, SECONDS
from ditlab_addons.race.samples.spec import Configuration, SamplingSweep, configuration_experiments
from ditlab_models.contract import Samples, SamplesEvaluator
from ditlab_models.figures import Figure, Panel

COLUMNS = 8
ROWS = 12
"""Samples of a configuration, and configurations, in the picture."""
Done = dict[tuple[int, int], Trial]
"""Draws by configuration and seed."""


@dataclass(frozen=True)
class Measure:
    """Measure of samples of a run against its held-out data."""

    names: Sequence[str]
    """Metrics that it gives."""
    measure: Callable[[SampleSet], dict[str, float]]
    """Trains a classifier, or fits a baseline, at its first call."""


@dataclass(frozen=True)
class SamplingForecast:
    """Forecast of the draws of a sweep that are left."""

    evaluations: Mapping[int, float]
    """Network evaluations a sample, by configuration: exact, from one sample of each."""
    total: float
    """Network evaluations of all draws that are left."""
    num_draws: int
    """Draws that are left."""


class SamplingSession:
    """The configurations of a sweep over one opened run. Nothing is drawn, or trained for
    measuring, before it is asked for.
    """

    def __init__(self, sweep: SamplingSweep, saved: SavedRun, source: str) -> None:
        """Check every configuration: its settings, its average, its sampler, the metric. Raises
        UserError, one sentence.
        """
        self.sweep = sweep
        self.saved = replace(saved, warn=cache(saved.warn))  # each draw would repeat it
        self.configurations = sweep.configurations()
        self.experiments = configuration_experiments(sweep, saved.experiment, source)
        data = saved.data()
        if not len(data.held_out):
            raise UserError(
                f"{data.note or 'nothing is held out'}; set data.hold_out in the next run."
            )
        for experiment in self.experiments:
            saved.sampler(experiment)
        for ema in dict.fromkeys(configuration.ema for configuration in self.configurations):
            # refused before anything is drawn where it cannot be rebuilt
            with with_average(self.saved, ema):
                pass
        columns = data.train.columns
        self._inputs = ModelInputs.from_experiment(
            self.experiments[0], columns, default_device(), self.saved.warn, saved.home
        )
        self._measure = open_measure(
            self.saved, self.experiments[0], data, self._inputs, sweep.batch
        )
        names = [*self._measure.names, *COSTS]
        if sweep.metric not in names:
            raise UserError(
                f"{source}: metric={sweep.metric} is not measured on the samples of run "
                f"{saved.folder.run_id}; {nearest(sweep.metric, names)}"
            )
        self._network: nn.Module | None = None
        self._ema: str | None = None
        self._rows = 0  # of batches that the network evaluated

    def draw(
        self,
        configuration: Configuration,
        seed: int,
        num: int | None = None,
        progress: Progress = ignore_progress,
    ) -> tuple[SampleSet, float]:
        """Draw a configuration's samples as `ditlab sample` does, and count network evaluations a
        sample.
        """
        sweep = self.sweep
        if num is None:
            num = sweep.samples
        options = SampleOptions(
            num,
            seed=seed,
            batch=sweep.batch,
            ema=configuration.ema,
            overrides=configuration.overrides(),
        )
        saved = replace(self.saved, progress=progress)
        network = self._open_network(saved, configuration.ema)
        self._rows = 0
        drawn = draw(saved, options, network, self._inputs)
        return drawn, self._rows / len(drawn)

    def _open_network(self, saved: SavedRun, ema: str | None) -> nn.Module:
        """The network with an average; one is in memory at a time."""
        if self._network is not None and self._ema == ema:
            return self._network
        self._network = None
        with with_average(saved, ema) as averaged:
            network = averaged.network(self._inputs.device)
        network.register_forward_pre_hook(self._count_rows)
        self._network = network
        self._ema = ema
        return network

    def _count_rows(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._rows += len(inputs[0])

    def left(self, done: Done) -> Iterator[tuple[Configuration, int]]:
        """The draws that are left, those of one average together."""
        for configuration in sorted(
            self.configurations,
            key=lambda each: (str(each.ema), each.number),
        ):
            for seed in self.sweep.noise_seeds():
                if (configuration.number, seed) not in done:
                    yield configuration, seed

    def forecast(self, done: Done) -> SamplingForecast:
        """Count the evaluations of one sample of each configuration."""
        sweep = self.sweep
        evaluations: dict[int, float] = {}
        for number, configuration in enumerate(self.configurations):
            self.saved.progress(
                "counting network evaluations", number, len(self.configurations), "configurations"
            )
            evaluations[configuration.number] = self.draw(configuration, sweep.seed, 1)[1]
        left = list(self.left(done))
        total = sum(evaluations[configuration.number] for configuration, _ in left) * sweep.samples
        return SamplingForecast(evaluations, total, len(left))

    def run(self, folder: SampledFolder, finished: Callable[[Done], None]) -> Done:
        """Draw and measure what is left; `finished` is called with all draws after each.

        Raises UserError where earlier draws were of other weights.
        """
        done = folder.draws()
        for drawn in done.values():
            if drawn.step != self.saved.step:
                raise UserError(
                    f"run {self.saved.folder.run_id} is at step {self.saved.step:,} now, and "
                    f"this sweep has drawn from its weights of step {drawn.step:,}; start a "
                    "new sweep without --resume."
                )
        left = list(self.left(done))
        for count, (configuration, seed) in enumerate(left, 1):
            name = f"{count} of {len(left)} draws, configuration {configuration.number}"
            samples, evaluations = self.draw(configuration, seed, progress=self._named(name))
            self.saved.progress(f"{name}: measuring", 0, None, "")
            found = self._measure.measure(samples)
            found |= {EVALUATIONS: evaluations, SECONDS: samples.seconds / len(samples)}
            drawn = replace(
                self._waiting(len(done), configuration, seed),
                status="finished",
                seconds=samples.seconds,
                metrics={name: value for name, value in found.items() if math.isfinite(value)},
            )
            folder.add(drawn, samples.numbers)
            done[configuration.number, seed] = drawn
            finished(done)
        return done

    def _waiting(self, number: int, configuration: Configuration, seed: int) -> Trial:
        """A draw that is not made yet: a trial of a configuration, without a run of its own."""
        step = self.saved.step
        run_id = self.saved.folder.run_id
        return Trial(
            number,
            run_id,
            dict(configuration.values),
            step=step,
            total_steps=step,
            configuration=configuration.number,
            seed=seed,
        )

    def _named(self, name: str) -> Progress:
        """The progress of a draw, under its name."""
        return lambda what, *amounts: self.saved.progress(f"{name}: {what}", *amounts)

    def summary(self, sweep_id: str, done: Done) -> SweepSummary:
        """All that the report shows, in its present state."""
        sweep = self.sweep
        draws = []
        for configuration in self.configurations:
            for seed in sweep.noise_seeds():
                draws.append(
                    done.get((configuration.number, seed))
                    or self._waiting(len(done), configuration, seed)
                )
        trials = configurations_of(draws, sweep.metrics)
        return SweepSummary(
            sweep_id=sweep_id,
            name=sweep.name,
            metrics=sweep.metrics,
            modes=sweep.modes,
            axes=[AxisInfo(path, "linear") for path in sweep.space],
            trials=trials,
            search="grid",
            scheduler="none",
            seconds=sum(trial.seconds for trial in trials),
            total_trials=len(draws),
            base=(
                f"samples of run {self.saved.folder.run_id} ({self.saved.record.name}), step "
                f"{self.saved.step:,}"
            ),
            num_seeds=sweep.seeds,
        )

    def grid(self, folder: SampledFolder, summary: SweepSummary) -> Figure | None:
        """Samples in rows, the best configuration first: those of the first seed, so that a column
        shares its noise.
        """
        draws = folder.draws()
        ranked = [trial.number for trial in rank(summary)]
        shown = [number for number in ranked if (number, self.sweep.seed) in draws][:ROWS]
        panels: list[Panel] = []
        for number in shown:
            panels += self._row(folder, number)
        if not panels:
            return None
        about = f"Samples of {len(shown)} configurations, a row each, from the same noise."
        return Figure(panels, columns=len(panels) // len(shown), alt=about)

    def _row(self, folder: SampledFolder, number: int) -> list[Panel]:
        """Panels of one configuration's samples, as its family shows them."""
        tensors = load_file(folder.samples(number, self.sweep.seed))
        sampler = self.saved.sampler(self.experiments[number])
        is_image = tensors["values"].ndim == 4 and sampler.takes_rows != "completed"
        num_columns = COLUMNS if is_image else 1
        first = {name: values[:num_columns] for name, values in tensors.items()}
        shown = sampler.show(Samples(first.pop("values"), first))
        return [replace(panel, title=f"configuration {number}") for panel in shown.panels]


def open_measure(
    saved: SavedRun, experiment: Experiment, data: DataSplits, inputs: ModelInputs, batch: int
) -> Measure:
    """The measure of an experiment's samples: the family's own, or that of images. Raises UserError
    for none.
    """
    evaluator = samples_evaluator(experiment, data)
    if not isinstance(evaluator, SamplesEvaluator):
        return _images_measure(saved, experiment, data, inputs)
    figures = text_figures(experiment, data, saved.home)
    for each in figures:
        each.check()

    @cache
    def opened() -> Callable[[Samples], dict[str, float]]:
        return samples_measure(figures, experiment, data, inputs, batch)

    return Measure(samples_names(figures, evaluator), lambda drawn: opened()(drawn.samples))


def _images_measure(
    saved: SavedRun, experiment: Experiment, data: DataSplits, inputs: ModelInputs
) -> Measure:
    run_id = saved.folder.run_id
    reason = quality_ineligibility(experiment, data)
    if reason:
        raise UserError(
            f"samples of run {run_id} cannot be measured, as {reason}; name another run in "
            "base.run."
        )
    if getattr(experiment.sampling, "prompts", ()):
        raise UserError(
            f"sampling.prompts of run {run_id} takes the place of held-out captions, by which "
            "samples are measured; set fixed.sampling.prompts=[]."
        )
    quality = QualityEvaluator(
        experiment,
        data,
        saved.home,
        inputs.device,
        saved.warn,
        progress=saved.progress,
        inputs=inputs,
    )
    quality.basis.check()
    rows = rows_for_samples(data)
    takes_captions = quality.sampler.takes_rows == "conditions"

    def measure(drawn: SampleSet) -> dict[str, float]:
        expected: dict[str, torch.Tensor] = {}
        if takes_captions:
            places = np.arange(len(drawn)) % len(rows)  # whose captions `sample_conditions` takes
            expected = classes_of(rows, quality.basis.classes, places)
        return quality.measure(DrawnSamples(drawn.values.float(), expected))

    return Measure(quality_names(experiment, data), measure)
