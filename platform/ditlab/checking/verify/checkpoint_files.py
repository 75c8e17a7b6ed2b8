"""Checkpoints of a run: each shard hashed, each manifest's chain against the receipts, its spec against the run's."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import UserError
from ditlab.receipts.reader import Receipts


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


def check_chain(receipts: Receipts, kept: KeptCheckpoints) -> Iterator[VerifiedPart]:
    """Compute the chain of receipts anew, and compare its head at each checkpoint with the manifest's."""
    if receipts.damage:
        yield VerifiedPart("receipts", "off", f"{receipts.damage}; bring the file back from a copy.")
    by_since: dict[int, dict[int, str]] = defaultdict(dict)
    without = []
    for step, manifest in kept.manifests.items():
        if "chain" in manifest.receipt:
            by_since[int(manifest.receipt.get("since", 0))][step] = manifest.receipt["chain"]
        else:
            without.append(step)
    compared, is_off = 0, bool(receipts.damage)
    for since, heads in sorted(by_since.items()):
        for step, head in heads.items():
            try:
                found = receipts.chain(step, since)
            except UserError as error:
                is_off = True
                yield VerifiedPart("receipts", "off", f"checkpoint {step:,}: {error}")
                continue
            compared += 1
            if found != head:
                is_off = True
                yield VerifiedPart(
                    "receipts", "off",
                    f"checkpoint {step:,} has the chain {head[:12]}, and the receipts up to there give {found[:12]}: "
                    "one of the two was altered.",
                )  # fmt: skip
    if compared and not is_off:
        first = min(by_since)
        begin = f" They begin after step {first:,}: nothing vouches for what came before." if first else ""
        num = len(receipts.attempts)
        yield VerifiedPart(
            "receipts", "holds",
            f"{len(receipts.steps):,} steps in {num} attempt{'s' if num > 1 else ''}, {len(receipts.rows):,} rows: the "
            f"chain leads to {compared} checkpoint{'s' if compared > 1 else ''}.{begin}",
        )  # fmt: skip
    elif not compared and not is_off:
        yield VerifiedPart("receipts", "not checked", "no kept checkpoint names a chain that they would lead to.")
    if without:
        yield VerifiedPart(
            "receipts", "not checked", f"checkpoint {without[0]:,} was written without receipts, by an earlier version."
        )


def check_spec(run: OpenedRun, kept: KeptCheckpoints, is_edited: bool) -> Iterator[VerifiedPart]:
    """Compare the run's spec with those in its checkpoints."""
    if is_edited:
        yield VerifiedPart("spec", "off", f"{run.folder.spec} was edited after the run wrote it; bring it back.")
    own = run.experiment.content_hash()
    others = [step for step, manifest in kept.manifests.items() if manifest.spec_hash != own]
    for step in others[:3]:
        yield VerifiedPart(
            "spec", "off",
            f"checkpoint {step:,} was trained by a spec of hash {kept.manifests[step].spec_hash}, and "
            f"{run.folder.spec} has {own}.",
        )  # fmt: skip
    if not is_edited and not others:
        of = f", that of {len(kept.manifests)} checkpoints" if kept.manifests else ""
        yield VerifiedPart("spec", "holds", f"hash {own}{of}.")
