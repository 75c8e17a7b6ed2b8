"""Snapshots of a run's averages: each shard hashed, each manifest against the checkpoints' averages."""

from collections.abc import Iterator

from ditlab.analysis.opened_run import OpenedRun
from ditlab.averages import START, snapshot_steps
from ditlab.checking.verify.checkpoint_files import KeptCheckpoints
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError

PART = "averages"
NAMED = 8
"""Missing snapshots that are named, at most."""
REMEDY = "bring its folder back from a copy, or delete it: averages of other lengths are then rebuilt from the others"


def check_averages(run: OpenedRun, store: CheckpointStore, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Hash every snapshot of averages, and name those that are not there; nothing for a run that keeps none.

    Snapshots later than the newest checkpoint are hashed as well: a run in training has them.
    """
    snapshots = average_snapshots(store)
    try:
        steps = snapshots.steps()
    except UserError as error:
        yield VerifiedPart(PART, "off", str(error))
        return
    starts = {manifest.scalars[START] for manifest in kept.manifests.values() if START in manifest.scalars}
    whole, size = 0, 0
    for number, step in enumerate(steps):
        run.progress("hashing snapshots of averages", number, len(steps), "snapshots")
        try:
            with snapshots.open(step) as reader:
                manifest = reader.manifest
        except DamagedCheckpoint as error:
            reason = str(error).removesuffix("use an earlier checkpoint.").rstrip("; .")
            yield VerifiedPart(PART, "off", f"{reason}; {REMEDY}.")
            continue
        if starts and manifest.scalars.get(START) not in starts:
            yield VerifiedPart(
                PART, "off",
                f"the snapshot of step {step:,} is of averages that began at another step than those of the "
                f"checkpoints; {REMEDY}.",
            )  # fmt: skip
            continue
        whole += 1
        size += sum(digest.size for digest in manifest.shards.values())
    if whole:
        yield VerifiedPart(
            PART, "holds",
            f"{whole} snapshots (steps {steps[0]:,} to {steps[-1]:,}), {size / 2**20:,.1f} MiB: every shard has its "
            "hash.",
        )  # fmt: skip
    if missing := sorted(_due(run, kept) - set(steps)):
        named = ", ".join(f"{step:,}" for step in missing[:NAMED]) + (" ..." if len(missing) > NAMED else "")
        yield VerifiedPart(
            PART, "not checked",
            f"no snapshot of step {named}: deleted, or not saved at the time; averages of other lengths are rebuilt "
            "from the others.",
        )  # fmt: skip
    elif not steps and starts:
        yield VerifiedPart(PART, "not checked", "no snapshot is kept.")


def _due(run: OpenedRun, kept: KeptCheckpoints) -> set[int]:
    """Steps up to the newest kept checkpoint after which a snapshot is to be saved."""
    averages, total, newest = run.experiment.training.averages, run.record.total_steps, max(kept.manifests, default=0)
    start = kept.manifests[newest].scalars.get(START) if newest else None
    if averages is None or start is None or not 0 <= start < total:  # a manifest may be forged, with a start of NaN
        return set()
    due = snapshot_steps(int(start), total, averages.snapshots)
    return {step for step in due if step <= newest}
