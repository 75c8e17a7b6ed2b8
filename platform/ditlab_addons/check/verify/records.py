"""Records of a run: the chain of its receipts, what its steps consumed, and its journal against the receipts.

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
from ditlab.receipts.records import EVALUATION_TAG, LEFT_OUT, draw_places, samples_digest
from ditlab.storage.plain_files import open_regular_file
from ditlab.sweeps.folder import read_takeovers
from ditlab.tracking.journal import JournalLine, JournalRecord, all_metrics, read_journal
from ditlab.training.plan import learning_rate, plan_run
from ditlab_addons.check.verify.files import KeptCheckpoints, VerifiedPart, VerifiedParts

NAMED = 3
"""Faults that are named one by one."""
COMPARED = {"train/loss": "loss", "train/grad_norm": "norm", "train/lr": "lr"}
"""Column of the receipts by metric."""
ROWS = 4_000_000
"""Samples whose digests are computed again at most: a second or two."""


def taken_over_heads(home: Home, folder: RunFolder, before: float = math.inf) -> dict[int, dict[str, int]]:
    """Heads of other trials' chains at the steps where a run took over their checkpoints, as `ChainWalk.heads`.

    Takeovers of steps from `before` on are left out. Raises UserError where the receipts of one cannot be read.
    """
    heads: dict[int, dict[str, int]] = {}
    for each in read_takeovers(folder):
        if each.donor_step < before:
            donor, step = home.run(each.donor), each.donor_step
            walk = walk_chain(read_receipts(donor), [step], taken_over_heads(home, donor, step))
            heads.setdefault(step, {}).update(walk.heads.get(step, {}))
    return heads


def check_chain(run: OpenedRun, receipts: Receipts, kept: KeptCheckpoints) -> VerifiedParts:
    """Compute the chain of receipts again, and compare its head at each checkpoint with the manifest's."""
    recorded = {step: manifest.receipt for step, manifest in kept.manifests.items() if "chain" in manifest.receipt}
    try:
        walk = walk_chain(receipts, recorded, taken_over_heads(run.home, run.folder))
    except UserError as error:
        sentence = f"a checkpoint of another trial was taken over, and its receipts cannot be read: {error}"
        yield VerifiedPart("receipts", "not checked", sentence)
        return
    head_faults = (_head_fault(step, receipt, walk.heads.get(step, {})) for step, receipt in recorded.items())
    faults = [*filter(None, [receipts.damage, *walk.faults, *head_faults])]
    for fault in faults[:NAMED]:
        yield VerifiedPart("receipts", "off", f"{fault}; bring {run.folder.receipts} back from a copy.")
    if len(faults) > NAMED:
        yield VerifiedPart("receipts", "off", f"{len(faults) - NAMED} more places are out of order.")
    if not recorded and not faults:
        yield VerifiedPart("receipts", "not checked", "no kept checkpoint names a chain that they would lead to.")
    elif not faults:
        first = min(walk.heads[step][receipt["chain"]] for step, receipt in recorded.items())
        begin = f" They begin after step {first:,}: nothing vouches for what came before." if first else ""
        num = len(receipts.attempts)
        yield VerifiedPart(
            "receipts", "holds",
            f"{len(receipts.steps):,} steps in {num} attempt{'s' * (num > 1)}, {len(receipts.rows):,} rows: the "
            f"chain leads to {len(recorded)} checkpoint{'s' * (len(recorded) > 1)}.{begin}",
        )  # fmt: skip
    if without := [step for step in kept.manifests if step not in recorded]:
        sentence = f"checkpoint {without[0]:,} was written without receipts, which could not be written then."
        yield VerifiedPart("receipts", "not checked", sentence)


def _head_fault(step: int, receipt: Mapping[str, str], heads: Mapping[str, int]) -> str:
    """Return how a checkpoint's chain differs from the `heads` that the rows up to there lead to; empty if it is one of
    them."""
    head, since = receipt["chain"], receipt.get("since")
    if not heads:
        return f"no rows lead to checkpoint {step:,}, whose chain is {head[:12]}"
    if head not in heads:
        return (
            f"checkpoint {step:,} has the chain {head[:12]}, and the receipts up to there give "
            f"{list(heads)[-1][:12]}: one of the two was altered"
        )
    if since != str(heads[head]):
        return f"checkpoint {step:,} counts its chain from step {since}, and the receipts from {heads[head]:,}"
    return ""


def _trained(rows: np.ndarray) -> np.ndarray:
    """Return the rows of steps whose batch was not left out."""
    found: np.ndarray = rows[rows["flags"] & LEFT_OUT == 0]
    return found


def check_samples(
    run: OpenedRun, receipts: Receipts, data: DataSplits, manifests: Mapping[int, CheckpointManifest], seed: int
) -> VerifiedParts:
    """Compare the digest of what steps consumed with what spec, order and draws say; of many steps, some at random."""
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
    keys = np.concatenate([draw_places(first // unit, 0, min(unit, size - first)) for first in range(0, size, unit)])
    for number, row in enumerate(chosen):
        if number % 1000 == 0:
            run.progress("computing digests of samples", number, len(chosen), "steps")
        step = int(row["step"])
        batch = order.batch_number((step - 1) * size + offset)
        rows = data.train.rows[order.batches(batch, 1, places).reshape(-1)]
        if samples_digest(rows, places, keys, step - 1, experiment.seed) != int(row["samples"]):
            yield VerifiedPart(
                "samples", "off",
                f"step {step:,} (attempt {row['attempt']}) consumed other samples or random numbers than spec and "
                "order say.",
            )  # fmt: skip
            return
    of = "" if len(chosen) == len(trained) else f" of {len(trained):,}, chosen at random (--seed {seed})"
    yield VerifiedPart(
        "samples", "holds", f"{len(chosen):,} steps{of} consumed the rows and draws that spec and order say."
    )


def check_rates(run: OpenedRun, receipts: Receipts, data: DataSplits) -> VerifiedParts:
    """Compare the learning rate of each step with the schedule of the spec by which its attempt trained."""
    num = 0
    for number, attempt in sorted(receipts.attempts.items()):
        rows = _trained(receipts.rows[receipts.rows["attempt"] == number])
        experiment = run.kept_spec(attempt.spec_hash)
        if experiment is None or not len(rows):
            continue
        schedule, base, plan = experiment.schedule, experiment.optimizer.lr, plan_run(experiment, data)
        due = [
            learning_rate(schedule, base, step - 1, plan.total_steps, plan.epoch_steps)
            for step in rows["step"].tolist()
        ]
        away = np.flatnonzero(~np.isclose(rows["lr"], due, rtol=1e-6, atol=0))
        if len(away):
            first = away[0]
            yield VerifiedPart(
                "rates", "off",
                f"step {rows['step'][first]:,} (attempt {number}) had the learning rate {rows['lr'][first]:.6g}, and "
                f"the schedule of its spec gives {due[first]:.6g}; {len(away):,} of the attempt's steps are off.",
            )  # fmt: skip
            return
        num += len(rows)
    if num:
        yield VerifiedPart(
            "rates", "holds", f"{num:,} steps had the learning rate that the schedule of their spec gives."
        )


@dataclass
class JournalLines:
    """Lines of a journal that other parts of a run are compared with."""

    num: int = 0
    """Number of all lines."""
    evaluation: tuple[int, dict[str, str]] | None = None
    """Number, from 1, and tags of the line of the last evaluation."""
    resumes: list[JournalRecord] = field(default_factory=list)
    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Metrics of the lines that have a training loss, with their step."""
    damaged: list[str] = field(default_factory=list)
    """Places that are altered or torn."""
    has_end: bool = False
    """True if the run's end is recorded."""

    def add(self, line: JournalLine, may_be_torn: bool) -> None:
        """Take in the next line, the last of which may be torn in a run in training."""
        self.num += 1
        record = line.record
        is_damaged = record is None if line.is_whole else not may_be_torn
        if is_damaged:
            self.damaged.append(f"line {self.num:,}, byte {line.begin:,}")
        if is_damaged or record is None:
            return
        match record["kind"]:
            case "metrics":
                values = dict(all_metrics(record))
                if "train/loss" in values:
                    self.points.append((record["step"], values))
            case "tags" if EVALUATION_TAG in record["values"]:
                self.evaluation = self.num, record["values"]
            case "resume":
                self.resumes.append(record)
            case "end":
                self.has_end = True


def check_journal(
    run: OpenedRun, receipts: Receipts | None, kept: KeptCheckpoints
) -> tuple[JournalLines, list[VerifiedPart]]:
    """Check every line's checksum, each step's loss, gradient norm and learning rate, and that none is missing; the
    last line of a run in training may be torn. Return the lines, none where the journal cannot be read, and the
    findings."""
    path = run.folder.journal
    try:
        lines = _read_lines(run)
    except FileNotFoundError:
        return JournalLines(), [VerifiedPart("journal", "off", f"{path} is gone; bring it back from a copy.")]
    except OSError as error:
        return JournalLines(), [VerifiedPart("journal", "off", f"{path} cannot be read ({first_line(error)}).")]
    faults = [_line_fault(lines, run.record.status == "finished")]
    sentence = f"{lines.num:,} lines have their checksums"
    if receipts is None:
        sentence += "; no receipts to compare"
    else:
        # A step that was done several times may have any of its receipts: the journal keeps what came first.
        recorded: dict[int, list[list[float]]] = {}
        for step, *numbers in _trained(receipts.rows)[["step", *COMPARED.values()]].tolist():
            recorded.setdefault(step, []).append(numbers)
        differing = [*_differing_numbers(lines, recorded)]
        faults += differing[:NAMED]
        if len(differing) > NAMED:
            faults.append(f"{len(differing) - NAMED:,} more numbers differ.")
        faults.append(_missing_steps(run, lines, receipts, max(kept.manifests, default=0)))
        num_compared = sum(step in recorded for step, _ in lines.points)
        sentence += f"; loss, gradient norm and learning rate of {num_compared:,} steps are the receipts'"
        if rest := len(lines.points) - num_compared:
            sentence += f". {rest:,} logged steps have no receipt"
    off = [VerifiedPart("journal", "off", f"{path}: {fault}") for fault in faults if fault]
    return lines, off or [VerifiedPart("journal", "holds", f"{sentence}.")]


def _read_lines(run: OpenedRun) -> JournalLines:
    """Read a run's journal. Raises OSError where that is not possible."""
    found = JournalLines()
    with open_regular_file(run.folder.journal) as file:
        for line in read_journal(file):
            found.add(line, run.record.status == "running")
            if found.num % 20_000 == 0:
                run.progress("reading the journal", found.num, None, "lines")
    return found


def _line_fault(lines: JournalLines, is_finished: bool) -> str:
    """Return the places of damaged lines, or that a finished run's end is missing; empty if all is there."""
    if lines.damaged:
        more = f" and {len(lines.damaged) - NAMED} more" if len(lines.damaged) > NAMED else ""
        return f"altered or torn at {'; '.join(lines.damaged[:NAMED])}{more}; bring it back from a copy."
    if is_finished and not lines.has_end:
        return "the run has finished, and its end is not there: lines are missing; bring it back from a copy."
    return ""


def _differing_numbers(lines: JournalLines, recorded: Mapping[int, list[list[float]]]) -> Iterator[str]:
    """Compare the journal's numbers of each step with those of `recorded`, each execution's in the order of `COMPARED`;
    yield a sentence for each other one."""
    for step, values in lines.points:
        for column, metric in enumerate(COMPARED):
            value = values.get(metric, math.nan)
            known = [numbers[column] for numbers in recorded.get(step, [])]
            if not known or math.isnan(value) or float(np.float32(value)) in known:
                continue
            listed = " or ".join(f"{each:.9g}" for each in known)
            yield (
                f"step {step:,}: {metric} is {value:.9g} in the journal, and {listed} in the receipts: one was altered."
            )


def _missing_steps(run: OpenedRun, lines: JournalLines, receipts: Receipts, last: int) -> str:
    """Return which steps up to a saved one are not in the journal, as a run logs them before it saves; empty if none
    is missing, or if a resume has changed which they are."""
    if any("tracking.every" in record["changes"] for record in lines.resumes):
        return ""
    every = run.experiment.tracking.every
    done = _trained(receipts.steps)["step"].tolist()
    due = {step for step in done if step <= last and (step % every == 0 or step == 1)}
    missing = sorted(due - {step for step, _ in lines.points})
    if not missing:
        return ""
    return (
        f"{len(missing):,} steps that were logged are not there, the first one {missing[0]:,}: lines are "
        "missing; bring it back from a copy."
    )
