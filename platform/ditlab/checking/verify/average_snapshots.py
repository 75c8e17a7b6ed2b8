"""Snapshots of a run's averages: each shard hashed, each manifest against the checkpoints' averages."""

from collections.abc import Iterator

from ditlab.analysis.opened_run import OpenedRun
from ditlab.averages.names import START
from ditlab.checking.verify.checkpoint_files import KeptCheckpoints
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.snapshots import average_snapshots
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError

PART = "averages"
REMEDY = "bring its folder back from a copy, or delete it: averages of other lengths are then rebuilt from the others"


def check_averages(run: OpenedRun, store: CheckpointStore, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Hash every snapshot of averages; nothing for a run that keeps none.

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
    elif not steps and starts:
        yield VerifiedPart(PART, "not checked", "no snapshot is kept.")
