"""Metrics of a run under averages of several lengths, without training again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from denoisers.figures import Curve, Figure, Lines
from ditlab.analysis.averaging.requested import ROUGH, kept_averages, requested_profiles
from ditlab.analysis.comparison.frontier_table import AverageColumn, FrontierTable
from ditlab.analysis.evaluation import CheckpointEvaluation, evaluate_run
from ditlab.analysis.plot import Plot
from ditlab.analysis.saved_run import SavedRun
from ditlab.averages import AverageProfile, ExponentialProfile, PowerProfile
from ditlab.home import writable_folder

MOST_PANELS = 12
"""Metrics that are drawn."""
EXACT = 1e-9
"""Distance of profiles, relative, which is rounding alone: of lengths that were kept."""


@dataclass(frozen=True)
class AveragedPoint:
    """Metrics under one average."""

    profile: AverageProfile
    profile_error: float
    """Distance of the rebuilt profile from the wanted one, relative; 0 but for rounding where it was kept."""
    evaluation: CheckpointEvaluation

    @property
    def nearness(self) -> str:
        """Word on the average for a table."""
        if isinstance(self.profile, ExponentialProfile):
            return "approximate"
        return "rough" if self.profile_error > ROUGH else ""


@dataclass(frozen=True)
class AverageFrontier:
    """Metrics of a run's checkpoint under averages of several lengths; none of them is added to the run."""

    run_id: str
    step: int
    """Optimiser step at which the averages end."""
    num_snapshots: int
    """Whole snapshots, beside the checkpoint, from which they are rebuilt."""
    points: Sequence[AveragedPoint]
    files: list[Path] = field(default_factory=list)
    """Figure in the run's folder, where there are two lengths or more."""

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order of the evaluation."""
        return list(dict.fromkeys(name for point in self.points for name in point.evaluation.metrics))

    def terminal_tables(self) -> Iterator[RenderableType]:
        """A column for each average: its error, whether it is rough or approximate, and its metrics."""
        evaluation = self.points[0].evaluation
        changes = f", {', '.join(evaluation.changes)}" if evaluation.changes else ""
        yield Text(
            f"run {self.run_id}, step {self.step}, {evaluation.num_samples} samples{changes}; averages rebuilt from "
            f"{self.num_snapshots} snapshots and the checkpoint, not added to the run"
        )
        names = self.metrics
        columns = [
            AverageColumn(
                point.profile.label,
                ("exact" if point.profile_error < EXACT else f"{point.profile_error:.1e}", point.nearness),
                ["" if (value := point.evaluation.metrics.get(name)) is None else f"{value:.5f}" for name in names],
            )
            for point in self.points
        ]
        yield FrontierTable(("profile error", ""), names, columns)

    @property
    def plot(self) -> Plot | None:
        """Each metric against the relative length; None for fewer than two lengths."""
        points = sorted((each for each in self.points if isinstance(each.profile, PowerProfile)), key=_length)
        if len(points) < 2:
            return None
        lengths = np.array([_length(point) for point in points])
        panels = [
            Lines([Curve(lengths, np.array(values), marked=True)], name, "relative length")
            for name in self.metrics[:MOST_PANELS]
            if None not in (values := [point.evaluation.metrics.get(name) for point in points])
        ]
        return Plot(Figure(panels, title=f"run {self.run_id}, step {self.step}: metrics by length of the average"))

    def to_dict(self) -> dict[str, object]:
        """The frontier in JSON's types, for `--json`."""
        return {
            "run_id": self.run_id,
            "step": self.step,
            "snapshots": self.num_snapshots,
            "averages": [
                {
                    "profile": point.profile.label,
                    "profile_error": point.profile_error,
                    "evaluation": point.evaluation.evaluation,
                    "metrics": point.evaluation.metrics,
                }
                for point in self.points
            ],
            "files": [str(file) for file in self.files],
        }


def evaluate_averages(
    saved: SavedRun,
    requested: Sequence[str | float],
    quality: int | None,
    rows: int | None,
    batch_size: int,
    overrides: Sequence[str],
) -> AverageFrontier:
    """Evaluate a run's newest checkpoint under each requested average, as `evaluate_run` does; adds nothing to the run.

    Raises UserError for what is no average or cannot be rebuilt, before the first is evaluated, and as `evaluate_run`.
    """
    profiles = requested_profiles(requested)
    with kept_averages(saved) as kept:
        rebuilt = [kept.rebuild(profile) for profile in profiles]
        points = []
        for number, each in enumerate(rebuilt, 1):
            saved.progress(f"average {each.profile.label}, {number} of {len(rebuilt)}", 0, None, "")
            evaluation = evaluate_run(replace(saved, average=each), quality, rows, batch_size, overrides)
            points.append(AveragedPoint(each.profile, each.combination.profile_error, evaluation))
        frontier = AverageFrontier(saved.folder.run_id, saved.step, kept.num_snapshots, points)
    plot = frontier.plot
    if plot is None:
        return frontier
    knob = f"the folder of run {saved.folder.run_id}"
    place = writable_folder(saved.folder.path / "figures", knob, "make room, or make DITLAB_HOME writable")
    return replace(frontier, files=[plot.save(place / f"averages-step{saved.step}.png")])


def _length(point: AveragedPoint) -> float:
    assert isinstance(point.profile, PowerProfile)
    return point.profile.length
