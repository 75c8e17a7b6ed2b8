"""Checkpoints of a run and snapshots of its averages: each shard hashed, each manifest against spec and averages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ditlab.analysis.opened_run import OpenedRun
from ditlab.averages import START, snapshot_steps
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError, first_line
from ditlab.spec.values import format_bytes
from ditlab.spec.yaml_text import MAX_BYTES
from ditlab.storage.files import is_as_stamped, is_edited
from ditlab.storage.plain_files import read_plain

PART = "averages"
NAMED = 8
"""Missing snapshots that are named, at most."""
REMEDY = "bring its folder back from a copy, or delete it: averages of other lengths are then rebuilt from the others"


@dataclass
class KeptCheckpoints:
    """Checkpoints that a run keeps."""

    manifests: dict[int, CheckpointManifest] = field(default_factory=dict)
    """Manifests of the whole ones, by step."""
    damaged: list[str] = field(default_factory=list)
    """A sentence for each that is not whole."""


def read_checkpoints(run: OpenedRun, store: CheckpointStore) -> KeptCheckpoints:
    """Hash every kept checkpoint. Raises UserError where the store cannot be reached."""
    found, steps = KeptCheckpoints(), store.steps()
    for number, step in enumerate(steps):
        run.progress("hashing checkpoints", number, len(steps), "checkpoints")
        try:
            with store.open(step) as reader:
                found.manifests[step] = reader.manifest
        except DamagedCheckpoint as error:
            if step in store.steps():  # or a run in training has pruned it meanwhile
                found.damaged.append(str(error))
    return found


def check_checkpoints(kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Say which checkpoints are whole."""
    for sentence in kept.damaged:
        yield VerifiedPart("checkpoints", "off", sentence)
    if kept.manifests:
        size = sum(digest.size for manifest in kept.manifests.values() for digest in manifest.shards.values())
        steps = list(kept.manifests)
        which = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
        yield VerifiedPart(
            "checkpoints", "holds", f"{len(steps)} kept ({which}), {format_bytes(size)}: every shard has its hash."
        )
    elif not kept.damaged:
        yield VerifiedPart("checkpoints", "not checked", "none is kept.")


def check_spec(run: OpenedRun, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Compare the run's spec with its stamp, byte by byte, and with those in the checkpoints.

    A spec without any stamp is of an earlier version, which wrote no receipts either.
    """
    try:
        content = read_plain(run.folder.spec, MAX_BYTES)
    except OSError as error:
        yield VerifiedPart("spec", "off", f"{run.folder.spec} cannot be read ({first_line(error)}); bring it back.")
        return
    is_whole = is_as_stamped(content) and content.endswith(b"\n") and not content.endswith(b"\n\n")
    needs_stamp = any(manifest.receipt for manifest in kept.manifests.values())
    is_changed = not is_whole if needs_stamp else is_edited(content)
    if is_changed:
        yield VerifiedPart("spec", "off", f"{run.folder.spec} was edited after the run wrote it; bring it back.")
    own = run.experiment.content_hash()
    others = [step for step, manifest in kept.manifests.items() if manifest.spec_hash != own]
    for step in others[:3]:
        yield VerifiedPart(
            "spec", "off",
            f"checkpoint {step:,} was trained by a spec of hash {kept.manifests[step].spec_hash}, and "
            f"{run.folder.spec} has {own}.",
        )  # fmt: skip
    if not is_changed and not others:
        of = f", that of {len(kept.manifests)} checkpoints" if kept.manifests else ""
        yield VerifiedPart("spec", "holds", f"hash {own}{of}.")


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
            f"{whole} snapshots (steps {steps[0]:,} to {steps[-1]:,}), {format_bytes(size)}: every shard has its "
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
