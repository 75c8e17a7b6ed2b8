"""Averages of other lengths than a run has kept, as users ask for them: rebuilt, exported, compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from ditlab.analysis.evaluation import CheckpointEvaluation, evaluate_run
from ditlab.analysis.opened_run import SavedRun
from ditlab.analysis.plot import Plot
from ditlab.analysis.user_errors import output_folder
from ditlab.averages import AverageProfile, ExponentialProfile, PowerProfile
from ditlab.checkpoints.kept_averages import KeptAverages, open_averages
from ditlab.errors import UserError, nearest
from ditlab.parts import OWN_FORMATS, absent_part, export_formats, load_part
from ditlab.reports.formatting import terminal_table
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.optimization import LONGEST, SHORTEST
from ditlab.spec.values import format_value
from ditlab.training.export import write_export
from ditlab_models.figures import Curve, Figure, Lines

_DECAY = "decay="
ROUGH = 0.05
"""Distance of profiles, relative, from which on a rebuilt average is called rough: below it, all that were tried were
within 1e-3 of averages that had been kept."""
MOST_PANELS = 12
"""Metrics that are drawn."""
EXACT = 1e-9
"""Distance of profiles, relative, which is rounding alone: of lengths that were kept."""
A_TABLE = 4
"""Averages of one table: as many as fit into 80 columns."""


def requested_profiles(requested: Sequence[str | float]) -> list[AverageProfile]:
    """Return the profiles of `0.1` (a relative length), `decay=0.999` or numbers. Raises UserError for any other."""
    found: dict[AverageProfile, None] = {}
    for text in (str(each).strip() for each in requested):
        is_decay = text.startswith(_DECAY)
        try:
            value = float(text.removeprefix(_DECAY))
        except ValueError:
            value = math.nan
        if not (0.0 < value < 1.0 if is_decay else SHORTEST <= value <= LONGEST):
            raise UserError(
                f"--ema {format_value(text)} is no average that can be rebuilt; name a relative length such as 0.1, "
                f"from the shortest of training.averages.lengths (0.05 by default) to {LONGEST:g}, or decay= with a "
                "number between 0 and 1."
            )
        found[ExponentialProfile(value) if is_decay else PowerProfile(value)] = None
    if not found:
        raise UserError("--ema names no average; name relative lengths such as 0.05,0.1,0.2.")
    return list(found)


def kept_averages(saved: SavedRun) -> AbstractContextManager[KeptAverages]:
    """Open the averages that a run keeps. Raises UserError where there are none."""
    store = checkpoint_store(saved.folder, saved.experiment.checkpoint.storage)
    return open_averages(store, saved.checkpoint, saved.warn, saved.progress)


@contextmanager
def with_average(saved: SavedRun, requested: str | float | None) -> Iterator[SavedRun]:
    """Open a run with one rebuilt average in place of its own (None). Raises UserError where it cannot be rebuilt."""
    if requested is None:
        yield saved
        return
    profiles = requested_profiles(str(requested).split(","))
    if len(profiles) > 1:
        raise UserError(f"--ema {requested} names {len(profiles)} averages, and one is used here; name one.")
    with kept_averages(saved) as kept:
        rebuilt = kept.rebuild(profiles[0])
        error = rebuilt.combination.profile_error
        rough = "; it is rough, as there are few snapshots" if error > ROUGH else ""
        if isinstance(rebuilt.profile, ExponentialProfile):
            rough = "; it is approximate, as the profile is not a power function"
        saved.warn(
            f"average {rebuilt.profile.label} is rebuilt from {rebuilt.num_snapshots} snapshots and the checkpoint of "
            f"step {rebuilt.checkpoint.manifest.step}, with a profile error of {error:.1e}{rough}."
        )
        yield replace(saved, average=rebuilt)


@dataclass(frozen=True)
class ExportSource:
    """Weights of a run that are written in a form other than DiTLab's own."""

    saved: SavedRun
    tensors: Mapping[str, Tensor]
    """The network's tensors by name."""
    averaged: str
    """Phrase on the weights: averaged, or as they are trained."""
    options: str
    """Options of `ditlab export` that chose the weights, such as `--raw`."""


def export_saved(
    saved: SavedRun, folder: Path, averaged: bool, ema: str | float | None, form: str = "ditlab"
) -> list[Path]:
    """Write the trained weights, the average where `averaged`, or a rebuilt one. Raises UserError where it cannot."""
    known = export_formats()
    if form not in (*OWN_FORMATS, *known):
        reason = absent_part("export format", form)
        raise UserError(reason or f"--format {form} is no format of exports; {nearest(form, [*OWN_FORMATS, *known])}")
    if ema is not None and not averaged:
        raise UserError(f"--raw and --ema {ema} exclude each other; leave one of them out.")
    other = known.get(form)
    merged = other is None or other.merges_adapters
    with with_average(saved, ema) as chosen:
        weights = chosen.weights(merged=merged) if averaged else saved.checkpoint.weights(False, merged=merged)
        label = None if chosen.average is None else chosen.average.profile.label
        if other is None:
            facts = {} if label is None else {"average": label}
            trained = saved.checkpoint.manifest
            return write_export(trained, weights, output_folder(folder), saved.folder.tokenizer, facts)
        is_average = averaged and (label is not None or saved.checkpoint.has("ema"))
        phrase = f"averaged weights{f' ({label})' if label else ''}" if is_average else "weights as trained"
        options = "--raw" if not averaged else "" if ema is None else f"--ema {ema}"
        write: Callable[[ExportSource, Path], list[Path]] = load_part("export format", form, other.target)
        return write(ExportSource(saved, weights, phrase, options), folder)


@dataclass(frozen=True)
class AveragedPoint:
    """Metrics under one average."""

    profile: AverageProfile
    profile_error: float
    """Distance of the rebuilt profile from the wanted one, relative; 0 but for rounding where it was kept."""
    evaluation: CheckpointEvaluation


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
        for points in (self.points[first : first + A_TABLE] for first in range(0, len(self.points), A_TABLE)):
            errors = ("exact" if each.profile_error < EXACT else f"{each.profile_error:.1e}" for each in points)
            rough = {each.profile: "rough" if each.profile_error > ROUGH else "" for each in points}
            rough |= {profile: "approximate" for profile in rough if isinstance(profile, ExponentialProfile)}
            rows = [["profile error", *errors], ["", *rough.values()]]
            for name in self.metrics:
                values = (each.evaluation.metrics.get(name) for each in points)
                rows.append([name, *("" if value is None else f"{value:.5f}" for value in values)])
            heads = {"metric": "text", **dict.fromkeys((each.profile.label for each in points), "number")}
            yield terminal_table(heads, rows)

    @property
    def plot(self) -> Plot | None:
        """Each metric against the relative length; None for fewer than two lengths."""
        points = {each.profile.length: each for each in self.points if isinstance(each.profile, PowerProfile)}
        if len(points) < 2:
            return None
        lengths = sorted(points)
        panels = [
            Lines([Curve(np.array(lengths), np.array(values), marked=True)], name, "relative length")
            for name in self.metrics[:MOST_PANELS]
            if None not in (values := [points[length].evaluation.metrics.get(name) for length in lengths])
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
                    "profile": each.profile.label,
                    "profile_error": each.profile_error,
                    "evaluation": each.evaluation.evaluation,
                    "metrics": each.evaluation.metrics,
                }
                for each in self.points
            ],
            "files": [str(file) for file in self.files],
        }


def evaluate_averages(
    saved: SavedRun,
    requested: Sequence[str | float],
    quality: int | None,
    rows: int | None,
    batch_size: int | None,
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
    place = saved.writable_folder("figures")
    return replace(frontier, files=[plot.save(place / f"averages-step{saved.step}.png")])
