"""Verification of a run: every part of it in turn, and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from ditlab.analysis.opened_run import OpenedRun
from ditlab.errors import RunFailed, UserError
from ditlab.receipts.reading import read_receipts
from ditlab.receipts.records import RecordedAttempt
from ditlab.reports.formatting import terminal_table
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import code_digest, library_versions
from ditlab_addons.check.replay.check import ReplayCheck, check_replay
from ditlab_addons.check.replay.replaying import ReplaySource, open_source
from ditlab_addons.check.report import STYLES, Report, styled
from ditlab_addons.check.verify.files import (
    VerifiedPart,
    VerifiedParts,
    check_averages,
    check_checkpoints,
    check_spec,
    open_verified,
    read_checkpoints,
)
from ditlab_addons.check.verify.records import check_chain, check_journal, check_samples

NEAR = 64
"""Steps behind a checkpoint that count as near to it: no replay trains more, unless there are
none.
"""


@dataclass(frozen=True)
class RunVerification(Report):
    """Parts of a run that a stranger can rely on, and those that are off or unknown."""

    run_id: str
    name: str
    parts: tuple[VerifiedPart, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """True if nothing is off."""
        return all(part.verdict != "off" for part in self.parts)

    def shown(self) -> Iterator[RenderableType]:
        """Yield a table of the parts, and a closing sentence."""
        rows = [(part.part, styled(part.verdict), part.sentence) for part in self.parts]
        kinds = {"part": "text", "verdict": "id", "what was checked": "text"}
        yield terminal_table(kinds, rows, f"run {self.run_id} ({self.name})")
        yield Text(self.conclusion)

    @property
    def conclusion(self) -> str:
        """Sentences on what a stranger can rely on."""
        found = {
            verdict: {part.part for part in self.parts if part.verdict == verdict}
            for verdict in STYLES
        }
        if found["off"]:
            return (
                f"Off: {', '.join(sorted(found['off']))}. The run's record and its files do "
                "not belong together."
            )
        unknown = sorted(found["not checked"] - found["holds"])
        nothing = f" Nothing is said of: {', '.join(unknown)}." if unknown else ""
        return (
            f"Record, files and data agree.{nothing} That the record was not made up as a "
            "whole, no check of its files can show; replays can."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the verification in JSON's types."""
        return {
            "run_id": self.run_id,
            "name": self.name,
            "holds": self.holds,
            "seconds": round(self.seconds, 3),
            "parts": [asdict(part) for part in self.parts],
            "conclusion": self.conclusion,
        }


def verify_run(
    run: OpenedRun, *, steps: int = 3, seed: int = 0, anyway: bool = False
) -> RunVerification:
    """Check receipts, checkpoints, journal, spec and data of a run, and do some of its steps again.

    Nothing is written into the run. A run in training is checked up to its last checkpoint. `steps`
    are done again (0: none), chosen by `seed`; with `anyway` also with other code, data or device
    than the run's. Raises UserError where the store of checkpoints cannot be reached.
    """
    begin = time.monotonic()
    parts: list[VerifiedPart] = []
    store = checkpoint_store(run.folder, run.experiment.checkpoint.storage)
    kept = read_checkpoints(run, store)
    written = [manifest.receipt for manifest in kept.manifests.values()]
    receipts = None
    try:
        receipts = read_receipts(run.folder)
        parts += check_chain(run, receipts, kept)
    except UserError as error:
        are_named = any("chain" in receipt for receipt in written)
        parts.append(VerifiedPart("receipts", "off" if are_named else "not checked", str(error)))
    journal, journal_parts = check_journal(run, receipts, kept)
    parts += [*check_checkpoints(kept), *check_averages(run, store), *journal_parts]
    attempts: list[RecordedAttempt] = []
    if receipts:
        attempts = [attempt for _, attempt in sorted(receipts.attempts.items())]
    parts += check_spec(run, kept, attempts, journal.resumes)
    parts.append(_check_code(run, attempts))
    recorded = {attempt.data for attempt in attempts} | {
        receipt.get("data", "") for receipt in written
    }
    data, opened = open_verified(run, recorded - {""})
    parts.append(opened)
    if data and receipts:
        parts += check_samples(run, receipts, data, kept.manifests, seed)
    if data and steps:
        parts += check_random_steps(run, steps, seed, anyway)
    else:
        why = "--steps 0" if data else "the data are not the run's"
        parts.append(VerifiedPart("replay", "not checked", f"{why}: no step was done again."))
    return RunVerification(
        run.folder.run_id, run.record.name, tuple(parts), time.monotonic() - begin
    )


def _check_code(run: OpenedRun, attempts: Sequence[RecordedAttempt]) -> VerifiedPart:
    """Say whether code and libraries are the run's: others are no fault, and bound what a replay
    can show.
    """
    if not attempts:
        return VerifiedPart("code", "not checked", "the run has no record of its code.")
    last = attempts[-1]
    here = code_digest(tuple(plugin_packages(run.experiment.to_dict())))
    then = {"code": last.code[:12], **last.versions}
    now = {"code": here[:12], **library_versions()}
    other = [
        f"{name} {then.get(name)} then, {each} now"
        for name, each in now.items()
        if then.get(name) != each
    ]
    if other:
        return VerifiedPart("code", "not checked", f"other than the run's: {'; '.join(other)}.")
    return VerifiedPart(
        "code", "holds", f"hash {here[:12]}, and the libraries' versions, are the run's."
    )


def check_random_steps(run: OpenedRun, num: int, seed: int, anyway: bool) -> VerifiedParts:
    """Do up to `num` steps again, and compare them with the run's record.

    None where code or device are other than the run's, unless `anyway`: a difference would not be
    the run's fault.
    """
    try:
        source = open_source(run, anyway)
    except UserError as error:
        yield VerifiedPart("replay", "not checked", str(error))
        return
    chosen = _random_steps(source, num, seed)
    if not chosen:
        yield VerifiedPart(
            "replay", "not checked", "no step that was done has a state to begin from."
        )
    bounds: dict[int, float] = {}  # of the steps that hold
    for step in chosen:
        try:
            found = check_replay(source, step, step)
        except (UserError, RunFailed) as error:
            yield VerifiedPart("replay", "not checked", f"step {step:,}: {error}")
            continue
        yield from _replay_faults(step, found)
        if found.comparisons and found.holds:
            bounds[step] = found.tolerance.relative
    if bounds:
        steps = ", ".join(f"{step:,}" for step in sorted(bounds))
        within = {f"within {bound:.1g}" for bound in bounds.values() if bound}
        if not all(bounds.values()):
            within.add("to the bit")
        agreed = sorted(within)
        sentence = (
            f"steps {steps}, chosen at random (--seed {seed}), gave the recorded numbers again"
        )
        yield VerifiedPart("replay", "holds", f"{sentence}, {' and '.join(agreed)}.")
    for remark in source.remarks:
        yield VerifiedPart("code", "not checked", remark)


def _random_steps(source: ReplaySource, num: int, seed: int) -> list[int]:
    """Choose up to `num` steps at random, among those near to a state from which a replay can
    begin.
    """
    history = source.history
    states = (history.first, *source.whole)
    near: set[int] = set()
    for state in states:
        near.update(range(state + 1, min(state + NEAR, history.last) + 1))
    candidates = [step for step in sorted(near) if not history.final(step).skipped]
    chosen: list[int] = np.random.default_rng(seed).permutation(candidates)[:num].tolist()
    return chosen


def _replay_faults(step: int, found: ReplayCheck) -> VerifiedParts:
    """Say which numbers of a step are off, or why none was compared."""
    if not found.comparisons:
        yield VerifiedPart("replay", "not checked", " ".join(found.unchecked))
    for each in found.comparisons:
        if not each.holds:
            found_here = (
                f"{each.recorded} in the {each.source}, and {each.replayed} when it is done again"
            )
            yield VerifiedPart("replay", "off", f"step {step:,}: {each.quantity} is {found_here}.")
