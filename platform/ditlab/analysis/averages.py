"""Averages of other lengths than a run has kept, as users ask for them: rebuilt, exported,
compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from rich.console import RenderableType
from torch import Tensor

from ditlab.analysis.opened_run import SavedRun
from ditlab.analysis.saved_evaluation import CheckpointEvaluation, evaluate_run
from ditlab.analysis.user_errors import output_folder
from ditlab.averages import AverageProfile, ExponentialProfile, PowerProfile
from ditlab.checkpoints.kept_averages import open_averages
from ditlab.data.images.captions import LABEL
from ditlab.errors import UserError, nearest
from ditlab.parts import OWN_FORMATS, absent_part, export_formats, load_part
from ditlab.reports.formatting import terminal_table
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.optimization import LONGEST, SHORTEST
from ditlab.spec.values import format_value
from ditlab.tracking.journal import recorded_dataset
from ditlab.training.export import write_export

_DECAY = "decay="
ROUGH = 0.05
"""Distance of profiles, relative, from which on a rebuilt average is called rough: below it, all
that were tried were within 1e-3 of averages that had been kept."""


def requested_profiles(requested: Sequence[str | float]) -> list[AverageProfile]:
    """Return the profiles of `0.1` (a relative length), `decay=0.999` or numbers. Raises UserError
    for any other.
    """
    found: dict[AverageProfile, None] = {}
    for text in (str(each).strip() for each in requested):
        is_decay = text.startswith(_DECAY)
        try:
            value = float(text.removeprefix(_DECAY))
        except ValueError:
            value = math.nan
        is_known = SHORTEST <= value <= LONGEST
        if is_decay:
            is_known = 0.0 < value < 1.0
        if not is_known:
            raise UserError(
                f"--ema {format_value(text)} is no average that can be rebuilt; name a "
                "relative length such as 0.1, from the shortest of training.averages.lengths "
                f"(0.05 by default) to {LONGEST:g}, or decay= with a number between 0 and 1."
            )
        found[ExponentialProfile(value) if is_decay else PowerProfile(value)] = None
    if not found:
        raise UserError("--ema names no average; name relative lengths such as 0.05,0.1,0.2.")
    return list(found)


@contextmanager
def with_average(saved: SavedRun, requested: str | float | None) -> Iterator[SavedRun]:
    """Open a run with one rebuilt average in place of its own (None). Raises UserError where it
    cannot be rebuilt.
    """
    if requested is None:
        yield saved
        return
    profiles = requested_profiles(str(requested).split(","))
    if len(profiles) > 1:
        raise UserError(
            f"--ema {requested} names {len(profiles)} averages, and one is used here; name one."
        )
    store = checkpoint_store(saved.folder, saved.experiment.checkpoint.storage)
    with open_averages(store, saved.checkpoint, saved.warn, saved.progress) as kept:
        rebuilt = kept.rebuild(profiles[0])
        error = rebuilt.combination.profile_error
        rough = "; it is rough, as there are few snapshots" if error > ROUGH else ""
        if isinstance(rebuilt.profile, ExponentialProfile):
            rough = "; it is approximate, as the profile is not a power function"
        saved.warn(
            f"average {rebuilt.profile.label} is rebuilt from {rebuilt.num_snapshots} "
            f"snapshots and the checkpoint of step {rebuilt.checkpoint.manifest.step}, with a "
            f"profile error of {error:.1e}{rough}."
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
    saved: SavedRun, folder: Path, averaged: bool, ema: str | float | None, form: str
) -> list[Path]:
    """Write the trained weights, the average where `averaged`, or a rebuilt one. Raises UserError
    where it cannot.
    """
    known = export_formats()
    if form not in (*OWN_FORMATS, *known):
        reason = absent_part("export format", form)
        if not reason:
            remedy = nearest(form, [*OWN_FORMATS, *known])
            reason = f"--format {form} is no format of exports; {remedy}"
        raise UserError(reason)
    if ema is not None and not averaged:
        raise UserError(f"--raw and --ema {ema} exclude each other; leave one of them out.")
    other = known.get(form)
    merged = other is None or other.merges_adapters
    with with_average(saved, ema) as chosen:
        label = chosen.average.profile.label if chosen.average else ""
        if averaged:
            weights = chosen.weights(merged=merged)
        else:
            weights = saved.checkpoint.weights(False, merged=merged)
        if other is None:
            facts = {"average": label} if label else {}
            trained = saved.checkpoint.manifest
            place = output_folder(folder)
            named = recorded_dataset(saved.folder.journal).get("classes", {})
            classes = named.get(LABEL, ())
            return write_export(trained, weights, place, saved.folder.tokenizer, facts, classes)
        write: Callable[[ExportSource, Path], list[Path]] = load_part(
            "export format", form, other.target
        )
        phrase = "weights as trained"
        options = "--raw"
        if averaged:
            options = "" if ema is None else f"--ema {ema}"
            if label:
                phrase = f"averaged weights ({label})"
            elif saved.checkpoint.has("ema"):
                phrase = "averaged weights"
        return write(ExportSource(saved, weights, phrase, options), folder)


def evaluate_averages(
    saved: SavedRun,
    requested: Sequence[str | float],
    quality: int | None,
    rows: int | None,
    batch_size: int | None,
    overrides: Sequence[str],
) -> dict[str, CheckpointEvaluation]:
    """Evaluate a run's newest checkpoint under each requested average, by label; adds nothing to
    the run.

    Raises UserError for what is no average, before the first is evaluated, for one that cannot be
    rebuilt, and as `evaluate_run` does.
    """
    found = {}
    for profile in requested_profiles(requested):
        with with_average(saved, profile.label) as averaged:
            found[profile.label] = evaluate_run(averaged, quality, rows, batch_size, overrides)
    return found


def averages_table(found: Mapping[str, CheckpointEvaluation]) -> RenderableType:
    """A row a metric, a column an average."""
    names = dict.fromkeys(chain.from_iterable(each.metrics for each in found.values()))
    rows = []
    for name in names:
        values = [each.metrics.get(name) for each in found.values()]
        rows.append([name, *("" if value is None else f"{value:.5f}" for value in values)])
    first = next(iter(found.values()))
    title = (
        f"run {first.run_id}, step {first.step}, {first.num_samples} samples, not added to the run"
    )
    return terminal_table({"metric": "text", **dict.fromkeys(found, "number")}, rows, title)
