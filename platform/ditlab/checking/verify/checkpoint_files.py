"""Checkpoints of a run: each shard hashed, each manifest's spec against the run's."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import first_line
from ditlab.spec.reading.yaml_text import MAX_BYTES
from ditlab.storage.files import is_as_stamped, is_edited
from ditlab.storage.plain_files import read_plain


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
            "checkpoints", "holds", f"{len(steps)} kept ({which}), {size / 2**20:,.1f} MiB: every shard has its hash."
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
