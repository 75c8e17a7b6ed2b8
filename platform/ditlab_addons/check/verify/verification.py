"""Verification of a run: every part of it in turn, and what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from ditlab.analysis.opened_run import OpenedRun
from ditlab.errors import RunFailed, UserError
from ditlab.progress import ignore
from ditlab.receipts.reading import Receipts, read_receipts
from ditlab.receipts.records import EVALUATION_TAG
from ditlab.reports.formatting import terminal_table
from ditlab.runs.launch import checkpoint_store
from ditlab.runs.locks import is_locked
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import code_digest, library_versions
from ditlab_addons.check.replay.check import check_replay
from ditlab_addons.check.replay.replaying import open_source, plan_replay
from ditlab_addons.check.verify.files import (
    VerifiedPart,
    check_averages,
    check_checkpoints,
    check_evaluation,
    check_spec,
    open_verified,
    read_checkpoints,
)
from ditlab_addons.check.verify.records import check_chain, check_journal, check_rates, check_samples

GIB = 2**30
NEAR = 64
"""Steps behind a checkpoint that count as near to it: no replay trains more, unless there are none."""


_STYLES = {"holds": "green", "off": "bold red", "not checked": "yellow"}


@dataclass(frozen=True)
class RunVerification:
    """Parts of a run that a stranger can rely on, and those that are off or unknown."""

    run_id: str
    name: str
    parts: tuple[VerifiedPart, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """True if nothing is off."""
        return all(part.verdict != "off" for part in self.parts)

    def terminal_lines(self) -> Iterator[RenderableType]:
        """Return the table for a terminal, and a closing sentence."""
        yield Text(f"run {self.run_id} ({self.name})")
        rows = ((part.part, Text(part.verdict, _STYLES[part.verdict]), part.sentence) for part in self.parts)
        yield terminal_table({"part": "text", "verdict": "id", "what was checked": "text"}, rows)
        yield Text(self.conclusion)

    @property
    def conclusion(self) -> str:
        """Sentences on what a stranger can rely on."""
        off = sorted({part.part for part in self.parts if part.verdict == "off"})
        if off:
            return f"Off: {', '.join(off)}. The run's record and its files do not belong together."
        held = {part.part for part in self.parts if part.verdict == "holds"}
        unknown = sorted({part.part for part in self.parts if part.verdict == "not checked"} - held)
        sentences = []
        if {"receipts", "checkpoints"} <= held:
            sentences.append("The kept weights come from the steps that the receipts list, and no file was altered.")
        if "samples" in held:
            sentences.append("The steps that were looked at consumed what the spec, the order and the data say.")
        if "replay" in held:
            sentences.append("Steps done again here gave the recorded losses.")
        if unknown:
            sentences.append(f"Nothing is said of: {', '.join(unknown)}.")
        sentences.append("That the record was not made up as a whole, no check of its files can show; replays can.")
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return the verification in JSON's types."""
        return {
            "run_id": self.run_id, "name": self.name, "holds": self.holds, "seconds": round(self.seconds, 3),
            "parts": [asdict(part) for part in self.parts], "conclusion": self.conclusion,
        }  # fmt: skip


def verify_run(
    run: OpenedRun, *, steps: int = 3, seed: int = 0, seconds: float = 300.0, data_limit: int = 16 * GIB,
    anyway: bool = False, on_cost: Callable[[str, bool], None] = ignore,
) -> RunVerification:  # fmt: skip
    """Check receipts, checkpoints, journal, spec and data of a run, and do some of its steps again.

    Nothing is written into the run. A run in training is checked up to its last checkpoint. `steps` are done again (0:
    none), chosen by `seed`, no further one after `seconds`; all files of the data are hashed up to `data_limit` bytes;
    with `anyway` steps are done again with other code, data or device than the run's. Raises UserError where the store
    of checkpoints cannot be reached.
    """
    begin, parts = time.monotonic(), list[VerifiedPart]()
    store = checkpoint_store(run.folder, run.experiment.checkpoint.storage)
    kept = read_checkpoints(run, store)
    receipts: Receipts | None = None
    try:
        receipts = read_receipts(run.folder)
        for _ in range(10):  # the end of a run in training may be in writing
            if receipts.damage and is_locked(run.folder):
                time.sleep(0.05)
                receipts = read_receipts(run.folder)
        parts += check_chain(run, receipts, kept)
    except UserError as error:
        names_chain = any("chain" in manifest.receipt for manifest in kept.manifests.values())
        parts.append(VerifiedPart("receipts", "off" if names_chain else "not checked", str(error)))
    tags, resumes, journal = check_journal(run, receipts, kept)
    parts += [*check_checkpoints(kept), *check_averages(run, store, kept), *journal]
    parts += check_spec(run, kept, receipts, resumes)
    parts.append(_check_code(run, receipts))
    recorded = {attempt.data for attempt in receipts.attempts.values()} if receipts else set()
    recorded |= {manifest.receipt.get("data", "") for manifest in kept.manifests.values()}
    data, opened = open_verified(run, recorded - {""}, data_limit)
    parts.append(opened)
    if receipts is not None and data is not None:
        parts += check_samples(run, receipts, data, kept.manifests, seed)
        parts += check_rates(run, receipts, data)
    evaluations = [(line, values) for line, values in tags if EVALUATION_TAG in values]
    if evaluations and data is not None:
        parts.append(check_evaluation(run, store, *evaluations[-1]))
    if steps and opened.verdict != "off":
        parts += check_random_steps(run, steps, seed, seconds, anyway, begin, on_cost)
    else:
        why = "--steps 0" if opened.verdict != "off" else "the data are not the run's"
        parts.append(VerifiedPart("replay", "not checked", f"{why}: no step was done again."))
    return RunVerification(run.folder.run_id, run.record.name, tuple(parts), time.monotonic() - begin)


def _check_code(run: OpenedRun, receipts: Receipts | None) -> VerifiedPart:
    """Say whether code and libraries are the run's: others are no fault, and bound what a replay can show."""
    if receipts is None or not receipts.attempts:
        return VerifiedPart("code", "not checked", "the run has no record of its code.")
    last = receipts.attempts[max(receipts.attempts)]
    here = code_digest(tuple(plugin_packages(run.experiment.to_dict())))
    other = [] if last.code == here else [f"code {last.code[:12]} then, {here[:12]} now"]
    for name, version in library_versions().items():
        if (then := last.versions.get(name)) != version:
            other.append(f"{name} {then} then, {version} now")
    if other:
        return VerifiedPart("code", "not checked", f"other than the run's: {'; '.join(other)}.")
    return VerifiedPart("code", "holds", f"hash {here[:12]}, and the libraries' versions, are the run's.")


def check_random_steps(
    run: OpenedRun,
    num: int,
    seed: int,
    seconds: float,
    anyway: bool,
    now: float,
    on_cost: Callable[[str, bool], None] = ignore,
) -> Iterator[VerifiedPart]:
    """Do up to `num` steps again, in at most about `seconds` from `now` on, and compare them with the run's record.

    None where code or device are other than the run's, unless `anyway`: a difference would not be the run's fault.
    """
    try:
        source = open_source(run, anyway)
    except UserError as error:
        yield VerifiedPart("replay", "not checked", str(error))
        return
    # At random, among those near to a state from which a replay can begin.
    history = source.history
    states = [history.first, *source.whole]
    near = {step for state in states for step in range(state + 1, min(state + NEAR, history.last) + 1)}
    candidates = np.array([step for step in sorted(near) if not history.final(step).skipped], np.int64)
    chosen = np.random.default_rng(seed).permutation(candidates)[:num].tolist()
    if not chosen:
        yield VerifiedPart("replay", "not checked", "no step that was done has a state to begin from.")
        return
    plans = [
        plan for step in chosen for plan in plan_replay(history, [history.final(step)], source.whole, source.spec_of)
    ]
    replace(source, on_cost=on_cost).tell_cost(plans, seconds)
    done: list[int] = []
    bounds: set[str] = set()
    for step in chosen:
        if done and (time.monotonic() - now) * (len(done) + 1) / len(done) > seconds:
            break
        try:
            found = check_replay(source, step, step)
        except (UserError, RunFailed) as error:
            yield VerifiedPart("replay", "not checked", f"step {step:,}: {error}")
            continue
        for off in (each for each in found.comparisons if not each.holds):
            yield VerifiedPart(
                "replay", "off",
                f"step {step:,}: {off.quantity} is {off.recorded} in the {off.source}, and {off.replayed} when it is "
                "done again.",
            )  # fmt: skip
        if found.comparisons and found.holds:
            done.append(step)
            bounds.add("to the bit" if found.tolerance.relative == 0 else f"within {found.tolerance.relative:.1g}")
        elif not found.comparisons:
            yield VerifiedPart("replay", "not checked", " ".join(found.unchecked))
    if done:
        steps = ", ".join(f"{step:,}" for step in sorted(done))
        left = [step for step in chosen if step not in done]
        rest = f" {len(left)} more were chosen and not done (--time {seconds:.0f})." if left else ""
        yield VerifiedPart(
            "replay", "holds",
            f"steps {steps} of {history.last - history.first:,}, chosen at random (--seed {seed}), gave "
            f"the recorded numbers again, {' and '.join(sorted(bounds))}.{rest}",
        )  # fmt: skip
    for remark in source.remarks:
        yield VerifiedPart("code", "not checked", remark)
