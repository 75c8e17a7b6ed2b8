"""A sweep over the samples of a trained run: every point's samples, their quality and cost, with a ledger to resume by.

One process draws one point and seed after the other. A draw's samples are on the disk before its line of the ledger, so
what a killed sweep leaves is whole draws, and files that the next one replaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save
from torch import nn

from ditlab.analysis.averages import kept_averages, requested_profiles, with_average
from ditlab.analysis.drawing import SampleSet, draw
from ditlab.analysis.opened_run import SavedRun, default_device
from ditlab.analysis.sample_options import SampleOptions
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, nearest
from ditlab.home import RunFolder
from ditlab.inputs.conditions import rows_for_samples
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import Progress, ignore_progress
from ditlab.quality.eligibility import quality_ineligibility
from ditlab.quality.evaluator import QualityEvaluator, classes_of
from ditlab.quality.figures import QualityFigures
from ditlab.quality.text import samples_evaluator, samples_measure, samples_names, text_figures
from ditlab.reports.sampling_report import COSTS, EVALUATIONS, SECONDS, PointResult, SamplingSummary
from ditlab.reports.sweep_records import AxisInfo
from ditlab.spec.experiment import Experiment
from ditlab.spec.sampling_sweep import Point, SamplingSweep, check_sampling_sweep
from ditlab.spec.sweep_axes import Choice, Grid
from ditlab.storage.files import append_json_line, read_json_lines, write_durably
from ditlab_models.contract import Samples, SamplesEvaluator
from ditlab_models.figures import Figure, ImageGrid, Panel
from ditlab_models.figures import Text as TextPanel

COLUMNS, ROWS = 8, 12
"""Samples of a point, and points, in the picture."""
Measure = Callable[[SampleSet], dict[str, float]]


@dataclass(frozen=True)
class PointDraw:
    """One line of the ledger: a point's samples from one seed of the noise."""

    number: int
    """The point's."""
    seed: int
    step: int
    """Optimiser step of the weights."""
    values: Mapping[str, Any]
    """Value by axis path."""
    metrics: Mapping[str, float | None]
    """Metrics and costs; None for what is not finite."""


@dataclass(frozen=True)
class SamplingForecast:
    """Forecast of the draws of a sweep that are left."""

    evaluations: Mapping[int, float]
    """Network evaluations a sample, by point: exact, from one sample of each."""
    total: float
    """Network evaluations of all draws that are left."""
    seconds: float
    """Duration of these draws, by one batch of the cheapest point; measuring comes on top."""
    num_bytes: int
    """Size of the samples on the disk."""
    num_draws: int
    """Draws that are left."""


class SamplingLedger:
    """Files of a sweep in its run's folder; only the sweep's own process writes them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._path = folder.path / "points.jsonl"

    def samples(self, number: int, seed: int) -> Path:
        """File of a draw: as `samples.safetensors` of `ditlab sample`."""
        return self.folder.path / "points" / f"{number:04d}" / f"seed{seed}.safetensors"

    def add(self, drawn: PointDraw, samples: SampleSet) -> None:
        """Write a draw's samples, then its line. Raises OSError where the disk refuses."""
        path = self.samples(drawn.number, drawn.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(samples.numbers))
        append_json_line(self._path, asdict(drawn))

    def read(self) -> dict[tuple[int, int], PointDraw]:
        """Whole draws by point and seed, without torn and damaged lines, and lines whose samples are gone."""
        found = {}
        for record in read_json_lines(self._path).records:
            with suppress(TypeError):  # a line of another file
                drawn = PointDraw(**record)
                if self.samples(drawn.number, drawn.seed).exists():
                    found[drawn.number, drawn.seed] = drawn
        return found


class SamplingSession:
    """The points of a sweep over one opened run. Nothing is drawn, or trained for measuring, before it is asked for."""

    def __init__(self, sweep: SamplingSweep, saved: SavedRun, source: str) -> None:
        """Check every point: its settings, its average, its sampler, the metric. Raises UserError, one sentence."""
        said = set[str]()  # each draw would repeat it

        def warn(message: str) -> None:
            if message not in said:
                saved.warn(message)
            said.add(message)

        self.sweep, self.saved, self.points = sweep, replace(saved, warn=warn), sweep.points()
        self._network: tuple[str | None, nn.Module] | None = None
        self._rows = 0  # of batches that the network evaluated
        check_sampling_sweep(sweep, saved.experiment, source)
        self.data: DataSplits = saved.data()
        if not len(self.data.held_out):
            raise UserError(f"{self.data.note or 'nothing is held out'}; set data.hold_out in the next run.")
        changes = [self._options(point, sweep.seed, sweep.samples).changes() for point in self.points]
        experiments = [saved.experiment_with(each) for each in changes]
        for experiment in experiments:
            saved.sampler(experiment)
        averages = [each for point in self.points if (each := sweep.settings(point).ema) is not None]
        if averages:
            with kept_averages(saved) as kept:
                for profile in requested_profiles(averages):
                    kept.rebuild(profile)
        self._experiment: Experiment = experiments[0]
        self._inputs = ModelInputs.from_experiment(
            self._experiment, self.data.train.columns, default_device(), warn, saved.home
        )
        names = self._names()
        if sweep.metric not in names:
            raise UserError(
                f"{source}: metric={sweep.metric} is not measured on the samples of run {saved.folder.run_id}; "
                f"{nearest(sweep.metric, names)}"
            )

    def _names(self) -> list[str]:
        """Names of the metrics of samples. Raises UserError where there are none."""
        if isinstance(self._family, SamplesEvaluator):
            for figures in self._figures:
                figures.check()
            return [*samples_names(self._figures, self._family), *COSTS]
        run_id = self.saved.folder.run_id
        if reason := quality_ineligibility(self._experiment, self.data):
            raise UserError(f"samples of run {run_id} cannot be measured, as {reason}; name another run in base.run.")
        if getattr(self._experiment.sampling, "prompts", ()):
            raise UserError(
                f"sampling.prompts of run {run_id} takes the place of held-out captions, by which samples are "
                "measured; set fixed.sampling.prompts=[]."
            )
        quality = self._quality
        quality.basis.check()
        from_captions = quality.sampler.takes_rows == "conditions"
        return [*quality.basis.metrics(from_captions, from_captions and quality.basis.has_captions), *COSTS]

    @cached_property
    def _family(self) -> Any:
        return samples_evaluator(self._experiment, self.data)

    @cached_property
    def _figures(self) -> tuple[QualityFigures, ...]:
        return text_figures(self._experiment, self.data, self.saved.home)

    @cached_property
    def _quality(self) -> QualityEvaluator:
        saved, device = self.saved, self._inputs.device
        return QualityEvaluator(
            self._experiment, self.data, saved.home, device, saved.warn, progress=saved.progress, inputs=self._inputs
        )

    @cached_property
    def _measure(self) -> Measure:
        """Measure of samples against held-out data; a classifier is trained, or a baseline fitted, at the first use."""
        if isinstance(self._family, SamplesEvaluator):
            of_samples = samples_measure(self._figures, self._experiment, self.data, self._inputs, self.sweep.batch)
            return lambda drawn: of_samples(drawn.samples)
        quality, rows = self._quality, rows_for_samples(self.data)
        takes_captions = quality.sampler.takes_rows == "conditions"

        def measure(drawn: SampleSet) -> dict[str, float]:
            places = np.arange(len(drawn)) % len(rows)  # whose captions `sample_conditions` takes
            expected = classes_of(rows, quality.basis.classes, places) if takes_captions else {}
            return quality.reference.measure(drawn.values.float(), expected, quality.captions(len(drawn)))

        return measure

    def _options(self, point: Point, seed: int, num: int) -> SampleOptions:
        settings = self.sweep.settings(point)
        return SampleOptions(num, seed=seed, batch=self.sweep.batch, ema=settings.ema, overrides=settings.overrides)

    def draw(
        self, point: Point, seed: int, num: int | None = None, progress: Progress = ignore_progress
    ) -> tuple[SampleSet, float]:
        """Draw a point's samples as `ditlab sample` does, and count network evaluations a sample."""
        options, saved = self._options(point, seed, num or self.sweep.samples), replace(self.saved, progress=progress)
        if self._network is None or self._network[0] != options.ema:
            self._network = None  # one network is in memory at a time
            with with_average(saved, options.ema) as averaged:
                network = averaged.network(self._inputs.device)
            network.register_forward_pre_hook(self._count_rows)
            self._network = options.ema, network
        self._rows = 0
        drawn = draw(saved, options, self._network[1], self._inputs)
        return drawn, self._rows / len(drawn)

    def _named(self, draws: str) -> Progress:
        """The progress of a draw, under its name."""

        def report(what: str, done: int, total: int | None, unit: str = "bytes") -> None:
            self.saved.progress(f"{draws}: {what}", done, total, unit)

        return report

    def _count_rows(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._rows += len(inputs[0])

    def left(self, done: Mapping[tuple[int, int], PointDraw]) -> Iterator[tuple[Point, int]]:
        """The draws that are left, those of one average together."""
        order = sorted(self.points, key=lambda point: (str(self.sweep.settings(point).ema), point.number))
        for point in order:
            yield from ((point, seed) for seed in self.sweep.noise_seeds() if (point.number, seed) not in done)

    def forecast(self, done: Mapping[tuple[int, int], PointDraw]) -> SamplingForecast:
        """Count the evaluations of one sample of each point, and time a batch of the cheapest."""
        sweep, evaluations, size = self.sweep, dict[int, float](), 0
        left = list(self.left(done))
        for number, point in enumerate(self.points):
            self.saved.progress("counting network evaluations", number, len(self.points), "points")
            drawn, evaluations[point.number] = self.draw(point, sweep.seed, 1)
            size = max(size, sum(each.nbytes for each in drawn.numbers.values()))
        cheapest = min(self.points, key=lambda point: evaluations[point.number])
        drawn, each = self.draw(cheapest, sweep.seed, min(sweep.batch, sweep.samples))
        total = sum(evaluations[point.number] for point, _ in left) * sweep.samples
        seconds = total * drawn.seconds / (each * len(drawn))
        return SamplingForecast(evaluations, total, seconds, size * sweep.samples * len(left), len(left))

    def check_past(self, done: Mapping[tuple[int, int], PointDraw]) -> None:
        """Raise UserError where earlier draws were of other weights, or of other points."""
        for drawn in done.values():
            if drawn.step != self.saved.step:
                raise UserError(
                    f"run {self.saved.folder.run_id} is at step {self.saved.step:,} now, and this sweep has drawn "
                    f"from its weights of step {drawn.step:,}; start a new sweep without --resume."
                )
            if drawn.number >= len(self.points) or dict(drawn.values) != dict(self.points[drawn.number].values):
                raise UserError(
                    f"point {drawn.number} of the ledger is none of sweep.yaml; restore sweep.yaml, or start a new "
                    "sweep without --resume."
                )

    def run(
        self, ledger: SamplingLedger, finished: Callable[[int, Mapping[tuple[int, int], PointDraw]], None]
    ) -> dict[tuple[int, int], PointDraw]:
        """Draw and measure what is left; `finished` is called with a point's number once all its seeds are measured."""
        done = ledger.read()
        self.check_past(done)
        left = list(self.left(done))
        for count, (point, seed) in enumerate(left, 1):
            draws = f"{count} of {len(left)} draws, point {point.number}"
            samples, evaluations = self.draw(point, seed, progress=self._named(draws))
            self.saved.progress(f"{draws}: measuring", 0, None, "")
            found = self._measure(samples) | {EVALUATIONS: evaluations, SECONDS: samples.seconds / len(samples)}
            metrics = {name: value if math.isfinite(value) else None for name, value in found.items()}
            drawn = PointDraw(point.number, seed, self.saved.step, dict(point.values), metrics)
            ledger.add(drawn, samples)
            done[point.number, seed] = drawn
            if all((point.number, each) in done for each in self.sweep.noise_seeds()):
                finished(point.number, done)
        return done

    def summary(self, sweep_id: str, done: Mapping[tuple[int, int], PointDraw]) -> SamplingSummary:
        """All that the report shows, in its present state."""
        sweep, saved, seeds = self.sweep, self.saved, self.sweep.noise_seeds()
        points = []
        for point in self.points:
            draws = [done[point.number, seed] for seed in seeds if (point.number, seed) in done]
            names = draws[0].metrics if len(draws) == len(seeds) else ()
            by_seed = {name: [_number(each.metrics.get(name)) for each in draws] for name in names}
            options = sweep.settings(point).arguments()
            points.append(PointResult(point.number, point.values, by_seed, options))
        return SamplingSummary(
            sweep_id, sweep.name, saved.folder.run_id, saved.record.name, saved.step, sweep.metric, sweep.mode,
            [AxisInfo(path, _scale(axis)) for path, axis in sweep.space.items()], points, sweep.samples, seeds,
            sum(_number(each.metrics.get(SECONDS)) * sweep.samples for each in done.values()),
        )  # fmt: skip

    def grid(self, ledger: SamplingLedger, numbers: Sequence[int]) -> Figure | None:
        """Samples of points in rows, the first ones of the first seed, so that a column shares noise and condition."""
        rows: list[tuple[int, Figure]] = []
        for number in numbers[:ROWS]:
            tensors = load_file(ledger.samples(number, self.sweep.seed))
            experiment = self.saved.experiment_with(self._options(self.points[number], 0, 1).changes())
            sampler = self.saved.sampler(experiment)
            is_image = tensors["values"].ndim == 4 and sampler.takes_rows != "completed"
            first = {name: values[: COLUMNS if is_image else 1] for name, values in tensors.items()}
            rows.append((number, sampler.show(Samples(first.pop("values"), first))))
        if not rows:
            return None
        panels: list[Panel] = [
            replace(panel, title=f"point {number}") for number, each in rows for panel in each.panels
        ]
        width = len(rows[0][1].panels)
        listed = ", ".join(str(number) for number, _ in rows)
        about = f"Samples of {len(rows)} points, a row each, from the same noise: points {listed}."
        if all(isinstance(panel, ImageGrid) for panel in panels):
            grids = [panel for panel in panels if isinstance(panel, ImageGrid)]
            captions = [text for grid in grids for text in _captions(grid)]
            panels, width = [ImageGrid(np.concatenate([grid.images for grid in grids]), captions, COLUMNS)], 1
        elif all(isinstance(panel, TextPanel) for panel in panels):
            width = 1
        return Figure(panels, columns=width, alt=about)


def _captions(grid: ImageGrid) -> list[str]:
    """A row's captions, which begin with its point."""
    own = list(grid.captions) or [""] * len(grid.images)
    return [grid.title, *own[1:]]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _scale(axis: Any) -> Any:
    """Scale on which the report draws an axis."""
    values = axis.values if isinstance(axis, Choice | Grid) else ()
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return "linear" if are_numbers else "category"
