"""Records of a run: the chain of its receipts, what its steps consumed, and its journal against the receipts.

Digests of samples are computed again from the spec, the order and the data's rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.manifest import CheckpointManifest
from ditlab.data.orders import training_order
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.receipts.reading import Receipts, read_receipts, walk_chain
from ditlab.receipts.records import LEFT_OUT, draw_places, samples_digest
from ditlab.storage.plain_files import open_regular_file
from ditlab.sweeps.folder import read_takeovers
from ditlab.tracking.journal import LARGEST_JOURNAL, JournalRecord, all_metrics, read_journal
from ditlab.training.plan import learning_rate, plan_run
from ditlab_addons.check.verify.files import KeptCheckpoints, VerifiedPart

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


def check_chain(run: OpenedRun, receipts: Receipts, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Compute the chain of receipts again, and compare its head at each checkpoint with the manifest's."""
    recorded = {step: manifest.receipt for step, manifest in kept.manifests.items() if "chain" in manifest.receipt}
    try:
        walk = walk_chain(receipts, recorded, taken_over_heads(run.home, run.folder))
    except UserError as error:
        sentence = f"a checkpoint of another trial was taken over, and its receipts cannot be read: {error}"
        yield VerifiedPart("receipts", "not checked", sentence)
        return
    faults = [receipts.damage] if receipts.damage else []
    faults += walk.faults
    for step, receipt in recorded.items():
        heads, head = walk.heads.get(step, {}), receipt["chain"]
        if not heads:
            faults.append(f"no rows lead to checkpoint {step:,}, whose chain is {head[:12]}")
        elif head not in heads:
            faults.append(
                f"checkpoint {step:,} has the chain {head[:12]}, and the receipts up to there give "
                f"{list(heads)[-1][:12]}: one of the two was altered"
            )
        elif receipt.get("since") != str(heads[head]):
            faults.append(
                f"checkpoint {step:,} counts its chain from step {receipt.get('since')}, and the receipts from "
                f"{heads[head]:,}"
            )
    for fault in faults[:NAMED]:
        yield VerifiedPart("receipts", "off", f"{fault}; bring {run.folder.receipts} back from a copy.")
    if len(faults) > NAMED:
        yield VerifiedPart("receipts", "off", f"{len(faults) - NAMED} more places are out of order.")
    if not faults and recorded:
        first = min(walk.heads[step][receipt["chain"]] for step, receipt in recorded.items())
        begin = f" They begin after step {first:,}: nothing vouches for what came before." if first else ""
        num = len(receipts.attempts)
        yield VerifiedPart(
            "receipts", "holds",
            f"{len(receipts.steps):,} steps in {num} attempt{'s' if num > 1 else ''}, {len(receipts.rows):,} rows: the "
            f"chain leads to {len(recorded)} checkpoint{'s' if len(recorded) > 1 else ''}.{begin}",
        )  # fmt: skip
    elif not faults:
        yield VerifiedPart("receipts", "not checked", "no kept checkpoint names a chain that they would lead to.")
    if without := [step for step in kept.manifests if step not in recorded]:
        sentence = f"checkpoint {without[0]:,} was written without receipts, which could not be written then."
        yield VerifiedPart("receipts", "not checked", sentence)


def check_samples(
    run: OpenedRun, receipts: Receipts, data: DataSplits, manifests: Mapping[int, CheckpointManifest], seed: int
) -> Iterator[VerifiedPart]:
    """Compare the digest of what steps consumed with what spec, order and draws say; of many steps, some at random."""
    experiment = run.experiment
    size = experiment.batch.size
    trained = receipts.rows[(receipts.rows["flags"] & LEFT_OUT) == 0]
    if not len(trained):
        yield VerifiedPart("samples", "not checked", "no step has a receipt.")
        return
    num = max(1, ROWS // size)
    generator = np.random.default_rng(seed)
    chosen = trained if len(trained) <= num else trained[np.sort(generator.choice(len(trained), num, replace=False))]
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


def check_rates(run: OpenedRun, receipts: Receipts, data: DataSplits) -> Iterator[VerifiedPart]:
    """Compare the learning rate of each step with the schedule of the spec by which its attempt trained."""
    num, specs = 0, {each: run.kept_spec(each) for each in {each.spec_hash for each in receipts.attempts.values()}}
    for number, attempt in sorted(receipts.attempts.items()):
        rows = receipts.rows[(receipts.rows["attempt"] == number) & (receipts.rows["flags"] & LEFT_OUT == 0)]
        experiment = specs[attempt.spec_hash]
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


def check_journal(
    run: OpenedRun, receipts: Receipts | None, kept: KeptCheckpoints
) -> tuple[list[tuple[int, dict[str, str]]], list[JournalRecord], list[VerifiedPart]]:
    """Check every line's checksum, each step's loss, gradient norm and learning rate, and that none is missing; the
    last line of a run in training may be torn. Returns tags, each with the number of its line, records of resumes, and
    the findings."""
    path, may_be_torn = run.folder.journal, run.record.status == "running"
    number, has_end, points, damaged = 0, False, list[tuple[int, dict[str, float]]](), list[str]()
    tags: list[tuple[int, dict[str, str]]] = []
    resumes: list[JournalRecord] = []
    try:
        with open_regular_file(path, LARGEST_JOURNAL) as file:
            for number, line in enumerate(read_journal(file), 1):
                if number % 20_000 == 0:
                    run.progress("reading the journal", number, None, "lines")
                record = line.record
                if (record is None and line.is_whole) or (not line.is_whole and not may_be_torn):
                    damaged.append(f"line {number:,}, byte {line.begin:,}")
                elif record is not None and record["kind"] == "metrics":
                    values = dict(all_metrics(record))
                    if "train/loss" in values:
                        points.append((record["step"], values))
                elif record is not None and record["kind"] == "tags":
                    tags.append((number, record["values"]))
                elif record is not None and record["kind"] == "resume":
                    resumes.append(record)
                has_end = has_end or (record is not None and record["kind"] == "end")
    except FileNotFoundError:
        return [], [], [VerifiedPart("journal", "off", f"{path} is gone; bring it back from a copy.")]
    except OSError as error:
        return [], [], [VerifiedPart("journal", "off", f"{path} cannot be read ({first_line(error)}).")]
    faults, sentence = [], f"{number:,} lines have their checksums"
    if damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        faults.append(f"altered or torn at {'; '.join(damaged[:NAMED])}{more}; bring it back from a copy.")
    elif run.record.status == "finished" and not has_end:
        faults.append("the run has finished, and its end is not there: lines are missing; bring it back from a copy.")
    if receipts is None:
        sentence += "; no receipts to compare"
    else:
        # A step that was done several times may have any of its receipts: the journal keeps what came first.
        recorded: dict[int, list[list[float]]] = {}
        trained = receipts.rows[(receipts.rows["flags"] & LEFT_OUT) == 0]
        for step, *numbers in trained[["step", *COMPARED.values()]].tolist():
            recorded.setdefault(step, []).append(numbers)
        off = []
        for step, values in points:
            for column, metric in enumerate(COMPARED):
                value = values.get(metric, math.nan)
                known = [row[column] for row in recorded.get(step, [])]
                if known and not math.isnan(value) and float(np.float32(value)) not in known:
                    listed = " or ".join(f"{each:.9g}" for each in known)
                    off.append(
                        f"step {step:,}: {metric} is {value:.9g} in the journal, and {listed} in the receipts: one was "
                        "altered."
                    )
        faults += off[:NAMED] + ([f"{len(off) - NAMED:,} more numbers differ."] if len(off) > NAMED else [])
        # A run logs these steps before it saves; a resume may change which they are.
        last, every = max(kept.manifests, default=0), run.experiment.tracking.every
        done = receipts.steps["step"][(receipts.steps["flags"] & LEFT_OUT) == 0].tolist()
        due = {step for step in done if step <= last and (step % every == 0 or step == 1)}
        missing = sorted(due - {step for step, _ in points})
        if missing and not any("tracking.every" in record["changes"] for record in resumes):
            faults.append(
                f"{len(missing):,} steps that were logged are not there, the first one {missing[0]:,}: lines are "
                "missing; bring it back from a copy."
            )
        num_compared = sum(step in recorded for step, _ in points)
        sentence += f"; loss, gradient norm and learning rate of {num_compared:,} steps are the receipts'"
        if rest := len(points) - num_compared:
            sentence += f". {rest:,} logged steps have no receipt"
    if faults:
        return tags, resumes, [VerifiedPart("journal", "off", f"{path}: {fault}") for fault in faults]
    return tags, resumes, [VerifiedPart("journal", "holds", f"{sentence}.")]
