"""Records of a run: the chain of its receipts, what its steps consumed, and its journal against the
receipts.

Digests of samples are computed again from the spec, the order and the data's rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.data.orders import training_order
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.receipts.reading import Receipts, read_receipts, walk_chain
from ditlab.receipts.records import LEFT_OUT, draw_places, samples_digest
from ditlab.runs.locks import is_locked
from ditlab.storage.plain_files import open_regular_file
from ditlab.sweeps.folder import read_takeovers
from ditlab.tracking.history import Series
from ditlab.tracking.journal import JournalContent, JournalRecord, read_journal
from ditlab_addons.check.replay.history import METRICS, journaled_numbers
from ditlab_addons.check.verify.files import KeptCheckpoints, VerifiedPart, VerifiedParts

NAMED = 3
"""Faults that are named one by one."""

ROWS = 4_000_000
"""Samples whose digests are computed again at most: a second or two."""


def taken_over_heads(
    home: Home, folder: RunFolder, before: float = math.inf
) -> dict[int, dict[str, int]]:
    """Heads of other trials' chains at the steps where a run took over their checkpoints, as
    `ChainWalk.heads`.

    Takeovers of steps from `before` on are skipped. Raises UserError where the receipts of one
    cannot be read.
    """
    heads: dict[int, dict[str, int]] = {}
    for each in read_takeovers(folder):
        if each.donor_step < before:
            donor = home.run(each.donor)
            step = each.donor_step
            walk = walk_chain(read_receipts(donor), [step], taken_over_heads(home, donor, step))
            heads.setdefault(step, {}).update(walk.heads.get(step, {}))
    return heads


def check_chain(run: OpenedRun, receipts: Receipts, kept: KeptCheckpoints) -> VerifiedParts:
    """Compute the chain of receipts again, and compare its head at each checkpoint with the
    manifest's.
    """
    recorded = {
        step: manifest.receipt
        for step, manifest in kept.manifests.items()
        if "chain" in manifest.receipt
    }
    try:
        walk = walk_chain(receipts, recorded, taken_over_heads(run.home, run.folder))
    except UserError as error:
        sentence = (
            "a checkpoint of another trial was taken over, and its receipts cannot be read: "
            f"{error}"
        )
        yield VerifiedPart("receipts", "not checked", sentence)
        return
    faults = [*walk.faults]
    if receipts.damage and not is_locked(run.folder):  # in training, their end may be in writing
        faults.insert(0, receipts.damage)
    for step, receipt in recorded.items():
        faults += filter(None, [_head_fault(step, receipt, walk.heads.get(step, {}))])
    for fault in faults[:NAMED]:
        yield VerifiedPart(
            "receipts", "off", f"{fault}; bring {run.folder.receipts} back from a copy."
        )
    if len(faults) > NAMED:
        yield VerifiedPart(
            "receipts", "off", f"{len(faults) - NAMED} more places are out of order."
        )
    if not faults:
        yield _whole_chain(receipts, recorded, walk.heads)
    without = [step for step in kept.manifests if step not in recorded]
    if without:
        sentence = (
            f"checkpoint {without[0]:,} was written without receipts, which could not be "
            "written then."
        )
        yield VerifiedPart("receipts", "not checked", sentence)


def _whole_chain(
    receipts: Receipts,
    recorded: Mapping[int, Mapping[str, str]],
    heads: Mapping[int, Mapping[str, int]],
) -> VerifiedPart:
    """Say how far a chain without faults reaches: to the `recorded` receipts of checkpoints."""
    if not recorded:
        return VerifiedPart(
            "receipts", "not checked", "no kept checkpoint names a chain that they would lead to."
        )
    attempts = len(receipts.attempts)
    sentence = (
        f"{len(receipts.steps):,} steps in {attempts} attempt{'s' * (attempts > 1)}, "
        f"{len(receipts.rows):,} rows: the chain leads to {len(recorded)} "
        f"checkpoint{'s' * (len(recorded) > 1)}."
    )
    first = min(heads[step][receipt["chain"]] for step, receipt in recorded.items())
    if first:
        sentence += f" They begin after step {first:,}: nothing vouches for what came before."
    return VerifiedPart("receipts", "holds", sentence)


def _head_fault(step: int, receipt: Mapping[str, str], heads: Mapping[str, int]) -> str:
    """Return how a checkpoint's chain differs from the `heads` that the rows up to there lead to;
    empty if it is one of them."""
    head = receipt["chain"]
    if not heads:
        return f"no rows lead to checkpoint {step:,}, whose chain is {head[:12]}"
    if head not in heads:
        return (
            f"checkpoint {step:,} has the chain {head[:12]}, and the receipts up to there give "
            f"{list(heads)[-1][:12]}: one of the two was altered"
        )
    since = receipt.get("since")
    if since != str(heads[head]):
        return (
            f"checkpoint {step:,} counts its chain from step {since}, and the receipts from "
            f"{heads[head]:,}"
        )
    return ""


def _trained(rows: np.ndarray) -> np.ndarray:
    """Return the rows of steps whose batch was not skipped."""
    found: np.ndarray = rows[rows["flags"] & LEFT_OUT == 0]
    return found


def check_samples(
    run: OpenedRun,
    receipts: Receipts,
    data: DataSplits,
    manifests: Mapping[int, CheckpointManifest],
    seed: int,
) -> VerifiedParts:
    """Compare the digest of what steps consumed with what spec, order and draws say; of many steps,
    some at random.
    """
    experiment = run.experiment
    size = experiment.batch.size
    trained = _trained(receipts.rows)
    if not len(trained):
        yield VerifiedPart("samples", "not checked", "no step has a receipt.")
        return
    num = min(len(trained), max(1, ROWS // size))
    chosen = trained[np.sort(np.random.default_rng(seed).choice(len(trained), num, replace=False))]
    # A fork may begin at a step whose position is not that many batches.
    behind = {manifest.position - manifest.step * size for manifest in manifests.values()}
    offset = behind.pop() if len(behind) == 1 else 0
    draws = {manifest.position: manifest.draws for manifest in manifests.values() if manifest.draws}
    order = training_order(experiment.data, data, size, experiment.seed, draws)
    unit = experiment.batch.micro or size
    places = np.arange(size)
    keys = np.concatenate(
        [draw_places(first // unit, 0, min(unit, size - first)) for first in range(0, size, unit)]
    )
    for number, row in enumerate(chosen):
        run.progress("computing digests of samples", number, len(chosen), "steps")
        step = int(row["step"])
        batch = order.batch_number((step - 1) * size + offset)
        rows = data.train.rows[order.batches(batch, 1, places).reshape(-1)]
        if samples_digest(rows, places, keys, step - 1, experiment.seed) != int(row["samples"]):
            yield VerifiedPart(
                "samples",
                "off",
                f"step {step:,} (attempt {row['attempt']}) consumed other samples or random "
                "numbers than spec and order say.",
            )
            return
    of = ""
    if len(chosen) < len(trained):
        of = f" of {len(trained):,}, chosen at random (--seed {seed})"
    yield VerifiedPart(
        "samples",
        "holds",
        f"{len(chosen):,} steps{of} consumed the rows and draws that spec and order say.",
    )


@dataclass
class VerifiedJournal:
    """Lines of a journal that other parts of a run are compared with."""

    content: JournalContent = field(default_factory=JournalContent)
    num_lines: int = 0
    damaged: list[str] = field(default_factory=list)
    """Places that are altered or torn."""

    @property
    def resumes(self) -> list[JournalRecord]:
        """Records of resumes that changed the spec."""
        return [each for each in self.content.events if each["kind"] == "resume"]


def check_journal(
    run: OpenedRun, receipts: Receipts | None, kept: KeptCheckpoints
) -> tuple[VerifiedJournal, list[VerifiedPart]]:
    """Check every line's checksum, each step's loss, gradient norm and learning rate, and that none
    is missing; the last line of a run in training may be torn. Return the lines, none where the
    journal cannot be read, and the findings."""
    path = run.folder.journal
    try:
        journal = _read_journal(run)
    except FileNotFoundError:
        return VerifiedJournal(), [
            VerifiedPart("journal", "off", f"{path} is gone; bring it back from a copy.")
        ]
    except OSError as error:
        return VerifiedJournal(), [
            VerifiedPart("journal", "off", f"{path} cannot be read ({first_line(error)}).")
        ]
    faults = [_line_fault(journal, run.record.status == "finished")]
    sentence = f"{journal.num_lines:,} lines have their checksums"
    if receipts is None:
        sentence += "; no receipts to compare"
    else:
        series = journaled_numbers(journal.content)
        rows = _trained(receipts.rows)
        logged = series["loss"].steps
        differing = [*_differing_numbers(series, rows)]
        faults += differing[:NAMED]
        if len(differing) > NAMED:
            faults.append(f"{len(differing) - NAMED:,} more numbers differ.")
        faults.append(
            _missing_steps(run, journal, receipts, logged, max(kept.manifests, default=0))
        )
        num_compared = int(np.isin(logged, rows["step"]).sum())
        sentence += (
            f"; loss, gradient norm and learning rate of {num_compared:,} steps are the receipts'"
        )
        if num_compared < len(logged):
            sentence += f". {len(logged) - num_compared:,} logged steps have no receipt"
    off = [VerifiedPart("journal", "off", f"{path}: {fault}") for fault in faults if fault]
    return journal, off or [VerifiedPart("journal", "holds", f"{sentence}.")]


def _read_journal(run: OpenedRun) -> VerifiedJournal:
    """Read a run's journal. Raises OSError where that is not possible."""
    found = VerifiedJournal()
    with open_regular_file(run.folder.journal) as file:
        for number, line in enumerate(read_journal(file), 1):
            found.num_lines = number
            is_damaged = line.record is None
            if not line.is_whole:
                is_damaged = run.record.status != "running"  # else the last line may be in writing
            if is_damaged:
                found.damaged.append(f"line {number:,}, byte {line.begin:,}")
                continue
            found.content.add(line)
    return found


def _line_fault(journal: VerifiedJournal, is_finished: bool) -> str:
    """Return the places of damaged lines, or that a finished run's end is missing; empty if all is
    there.
    """
    if journal.damaged:
        more = ""
        if len(journal.damaged) > NAMED:
            more = f" and {len(journal.damaged) - NAMED} more"
        return (
            f"altered or torn at {'; '.join(journal.damaged[:NAMED])}{more}; bring it back "
            "from a copy."
        )
    if is_finished and all(each["kind"] != "end" for each in journal.content.events):
        return (
            "the run has finished, and its end is not there: lines are missing; bring it back "
            "from a copy."
        )
    return ""


def _differing_numbers(series: Mapping[str, Series], rows: np.ndarray) -> Iterator[str]:
    """Compare the journal's numbers with those of the rows of receipts; yield a sentence for each
    other one. A step that was done several times may have any of its rows': the journal keeps what
    came first."""
    places: dict[int, list[int]] = {}
    for place, step in enumerate(rows["step"].tolist()):
        places.setdefault(step, []).append(place)
    for column, numbers in series.items():
        for step, value in zip(numbers.steps.tolist(), numbers.values.tolist(), strict=True):
            known = rows[column][places.get(step, [])].tolist()
            if not known or math.isnan(value) or float(np.float32(value)) in known:
                continue
            listed = " or ".join(f"{each:.9g}" for each in known)
            here = f"{METRICS[column]} is {value:.9g} in the journal"
            yield f"step {step:,}: {here}, and {listed} in the receipts: one was altered."


def _missing_steps(
    run: OpenedRun, journal: VerifiedJournal, receipts: Receipts, logged: np.ndarray, last: int
) -> str:
    """Return which steps up to a saved one are not `logged`, as a run logs them before it saves;
    empty if none is missing, or if a resume has changed which they are."""
    if any("tracking.every" in record["changes"] for record in journal.resumes):
        return ""
    done = _trained(receipts.steps)["step"]
    due = done[(done <= last) & ((done % run.experiment.tracking.every == 0) | (done == 1))]
    missing = np.setdiff1d(due, logged)
    if not len(missing):
        return ""
    return (
        f"{len(missing):,} steps that were logged are not there, the first one {missing[0]:,}: "
        "lines are missing; bring it back from a copy."
    )
