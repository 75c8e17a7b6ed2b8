"""Averages that a user asks for by length or decay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ditlab.analysis.saved_run import SavedRun
from ditlab.averages import AverageProfile, ExponentialProfile, PowerProfile
from ditlab.checkpoints.kept_averages import KeptAverages, RebuiltAverage, open_averages
from ditlab.errors import UserError
from ditlab.runs.request import checkpoint_store
from ditlab.spec.format_value import format_value
from ditlab.spec.optimisation.training import LONGEST, SHORTEST

_DECAY = "decay="
ROUGH = 0.05
"""Distance of profiles, relative, from which on a rebuilt average is called rough: below it, all that were tried were
within 1e-3 of averages that had been kept."""


def requested_profiles(requested: Sequence[str | float]) -> list[AverageProfile]:
    """Return the profiles of texts such as `0.1` (a relative length) and `decay=0.999`, or of numbers.

    Raises UserError for a text that is neither, a length or decay out of range, and for none at all.
    """
    found = [_profile(str(each).strip()) for each in requested]
    if not found:
        raise UserError("--ema names no average; name relative lengths such as 0.05,0.1,0.2.")
    return list(dict.fromkeys(found))


def _profile(text: str) -> AverageProfile:
    is_decay = text.startswith(_DECAY)
    low, high = (0.0, 1.0) if is_decay else (SHORTEST, LONGEST)
    try:
        value = float(text.removeprefix(_DECAY))
    except ValueError:
        value = math.nan
    if not (low < value < high if is_decay else low <= value <= high):
        raise UserError(
            f"--ema {format_value(text)} is no average that can be rebuilt; name a relative length such as 0.1, from "
            f"the shortest of training.averages.lengths (0.05 by default) to {LONGEST:g}, or decay= with a number "
            "between 0 and 1."
        )
    return ExponentialProfile(value) if is_decay else PowerProfile(value)


@contextmanager
def kept_averages(saved: SavedRun) -> Iterator[KeptAverages]:
    """Open the averages that a run keeps. Raises UserError where there are none."""
    store = checkpoint_store(saved.folder, saved.experiment().checkpoint.storage)
    with open_averages(store, saved.checkpoint, saved.warn, saved.progress) as kept:
        yield kept


@contextmanager
def with_average(saved: SavedRun, requested: str | float | None) -> Iterator[SavedRun]:
    """Open a run with one rebuilt average in place of its own; None: with its own.

    Raises UserError as `requested_profiles` and `KeptAverages.rebuild` do.
    """
    if requested is None:
        yield saved
        return
    profiles = requested_profiles(str(requested).split(","))
    if len(profiles) > 1:
        raise UserError(f"--ema {requested} names {len(profiles)} averages, and one is used here; name one.")
    with kept_averages(saved) as kept:
        rebuilt = kept.rebuild(profiles[0])
        saved.warn(described(rebuilt))
        yield replace(saved, average=rebuilt)


def described(rebuilt: RebuiltAverage) -> str:
    """Return a sentence on how near a rebuilt average is to one that was kept all along."""
    error = rebuilt.combination.profile_error
    how = "exactly as it was kept" if not rebuilt.num_snapshots else f"with a profile error of {error:.1e}"
    rough = "; it is approximate, as the profile is not a power function" if _is_exponential(rebuilt) else ""
    if not rough and error > ROUGH:
        rough = "; it is rough, as there are few snapshots"
    return (
        f"average {rebuilt.profile.label} is rebuilt from {rebuilt.num_snapshots} snapshots and the checkpoint of step "
        f"{rebuilt.checkpoint.manifest.step}, {how}{rough}."
    )


def _is_exponential(rebuilt: RebuiltAverage) -> bool:
    return isinstance(rebuilt.profile, ExponentialProfile)
