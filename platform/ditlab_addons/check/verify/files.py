"""Parts of a verification, and files of a run: checkpoints and averages hashed, spec, data, an evaluation's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from ditlab.analysis.evaluation import measured_weights
from ditlab.analysis.opened_run import OpenedRun, SavedRun
from ditlab.averages import START
from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, has_own_layout
from ditlab.errors import UserError, first_line
from ditlab.receipts.reading import read_attempts
from ditlab.receipts.records import (
    EVALUATED_STEP_TAG,
    EVALUATION_TAG,
    SHOWN,
    TAG_PREFIX,
    Measurement,
    RecordedAttempt,
    evaluation_digest,
)
from ditlab.spec.values import format_bytes
from ditlab.spec.yaml_text import MAX_BYTES
from ditlab.storage.files import folder_size, is_as_stamped
from ditlab.storage.plain_files import read_plain
from ditlab.sweeps.folder import read_takeovers
from ditlab.tracking.names import SPEC_HASH, as_count, change_texts

REMEDY = "bring its folder back from a copy, or delete it: averages of other lengths are then rebuilt from the others"


@dataclass(frozen=True)
class VerifiedPart:
    """One part of a run that was verified, or could not be."""

    part: str
    """`receipts`, `checkpoints`, `averages`, `journal`, `spec`, `data`, `samples`, `rates`, `replay` or `code`."""
    verdict: Literal["holds", "off", "not checked"]
    sentence: str
    """Description of what was checked, or of what is off, with the place and the remedy."""


VerifiedParts = Iterator[VerifiedPart]


@dataclass
class KeptCheckpoints:
    """Checkpoints that a run keeps."""

    manifests: dict[int, CheckpointManifest] = field(default_factory=dict)
    """Manifests of the whole ones, by step."""
    damaged: list[str] = field(default_factory=list)
    """A sentence for each that is not whole."""

    @property
    def name_chain(self) -> bool:
        """True if one of them names the chain of receipts that led to it."""
        return any("chain" in manifest.receipt for manifest in self.manifests.values())


def read_checkpoints(run: OpenedRun, store: CheckpointStore, noun: str = "checkpoints") -> KeptCheckpoints:
    """Hash every kept checkpoint, or what else a store's are called. Raises UserError where it cannot be reached."""
    found = KeptCheckpoints()
    steps = store.steps()
    for number, step in enumerate(steps):
        run.progress(f"hashing {noun}", number, len(steps), noun)
        try:
            with store.open(step) as reader:
                found.manifests[step] = reader.manifest
        except DamagedCheckpoint as error:
            if step in store.steps():  # or a run in training has pruned it meanwhile
                found.damaged.append(str(error))
    return found


def check_checkpoints(kept: KeptCheckpoints) -> VerifiedParts:
    """Say which checkpoints are whole."""
    yield from (VerifiedPart("checkpoints", "off", sentence) for sentence in kept.damaged)
    if kept.manifests:
        yield VerifiedPart("checkpoints", "holds", f"{_described(kept.manifests, 'kept')}: every shard has its hash.")
    elif not kept.damaged:
        yield VerifiedPart("checkpoints", "not checked", "none is kept.")


def check_averages(run: OpenedRun, store: CheckpointStore, kept: KeptCheckpoints) -> VerifiedParts:
    """Hash every snapshot of averages; nothing for a run that keeps none."""
    starts = {manifest.scalars[START] for manifest in kept.manifests.values() if START in manifest.scalars}
    try:
        found = read_checkpoints(run, average_snapshots(store), "snapshots")
    except UserError as error:
        yield VerifiedPart("averages", "off", str(error))
        return
    off = [each.removesuffix("use an earlier checkpoint.").rstrip("; .") for each in found.damaged]
    for step, own in list(found.manifests.items()):
        if starts and own.scalars.get(START) not in starts:
            del found.manifests[step]
            off.append(f"the snapshot of step {step:,} is of averages that began at another step than the checkpoints'")
    yield from (VerifiedPart("averages", "off", f"{reason}; {REMEDY}.") for reason in off)
    if found.manifests:
        sentence = f"{_described(found.manifests, 'snapshots')}: every shard has its hash."
        yield VerifiedPart("averages", "holds", sentence)
    elif starts and not off:
        yield VerifiedPart("averages", "not checked", "no snapshot is kept.")


def _described(manifests: dict[int, CheckpointManifest], noun: str) -> str:
    size = sum(digest.size for manifest in manifests.values() for digest in manifest.shards.values())
    first, last = min(manifests), max(manifests)
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    return f"{len(manifests)} {noun} ({steps}), {format_bytes(size)}"


def check_spec(
    run: OpenedRun, kept: KeptCheckpoints, attempts: Sequence[RecordedAttempt], resumes: Sequence[Mapping[str, Any]]
) -> VerifiedParts:
    """Compare the run's spec with its stamp, byte by byte, and with those of checkpoints and attempts: each other one
    must be one that a record of `resumes`, the journal's, has changed, or that of the trial whose checkpoint was taken
    over."""
    try:
        content = read_plain(run.folder.spec, MAX_BYTES)
    except OSError as error:
        yield VerifiedPart("spec", "off", f"{run.folder.spec} cannot be read ({first_line(error)}); bring it back.")
        return
    faults = []
    if not is_as_stamped(content) or content != content.rstrip(b"\n") + b"\n":
        faults.append(f"{run.folder.spec} was edited after the run wrote it; bring it back.")
    own = run.experiment.content_hash()
    trained = {attempt.spec_hash for attempt in attempts}
    known = [own]
    if trained and own not in trained and run.kept_spec(attempts[-1].spec_hash):
        known.append(attempts[-1].spec_hash)  # a resume that ended before its first step
        yield VerifiedPart("spec", "not checked", f"no step was trained by {run.folder.spec}, of hash {own}.")
    switches = [record["changes"][SPEC_HASH] for record in resumes if SPEC_HASH in record["changes"]]
    for old, new in reversed(switches):
        if new == known[-1]:
            known.append(old)
    faults += _checkpoint_faults(run, kept, known)
    faults += _attempt_faults(attempts, switches)
    faults += _lost_specs(run, trained.intersection(known))
    yield from (VerifiedPart("spec", "off", fault) for fault in faults[:3])
    if not faults:
        yield VerifiedPart("spec", "holds", _spec_text(own, len(kept.manifests), resumes))


def _spec_text(own: str, num_checkpoints: int, resumes: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on a run's spec, of hash `own`, and on what resumes have changed in it."""
    of = f", that of {num_checkpoints} checkpoints" if num_checkpoints else ""
    texts = [f"{', '.join(change_texts(each['changes']))} after step {each['step']:,}" for each in resumes]
    return "; ".join([f"hash {own}{of}", *texts]) + "."


def _checkpoint_faults(run: OpenedRun, kept: KeptCheckpoints, known: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each checkpoint whose spec is neither of the hashes `known` nor that of the trial whose
    checkpoint was taken over."""
    taken_over = set()
    for each in read_takeovers(run.folder):
        attempts = read_attempts(run.home.run(each.donor))
        before = [number for number, attempt in attempts.items() if attempt.step < each.donor_step]
        if before:
            taken_over.add((each.donor_step, attempts[max(before)].spec_hash))
    for step, manifest in kept.manifests.items():
        if manifest.spec_hash not in known and (step, manifest.spec_hash) not in taken_over:
            yield (
                f"checkpoint {step:,} was trained by a spec of hash {manifest.spec_hash}, and {run.folder.spec} has "
                f"{known[0]}: no record of a resume says so."
            )


def _attempt_faults(attempts: Sequence[RecordedAttempt], switches: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each attempt that changes the spec as none of `switches`, old and new hash, does."""
    for before, attempt in pairwise(attempts):
        if before.spec_hash != attempt.spec_hash and (before.spec_hash, attempt.spec_hash) not in switches:
            yield (
                f"attempt {attempt.attempt} goes on from step {attempt.step:,} with a spec of hash "
                f"{attempt.spec_hash}, and the attempt before had {before.spec_hash}: no record of a resume says so."
            )


def _lost_specs(run: OpenedRun, hashes: set[str]) -> Iterator[str]:
    """Yield a sentence for each spec that is not kept, by which steps were trained."""
    for each in sorted(hashes):
        if not run.kept_spec(each):
            yield f"{run.folder.spec_of(each)}, by which steps were trained, is gone or altered; bring it back."


def open_verified(run: OpenedRun, recorded: set[str], limit: int) -> tuple[DataSplits | None, VerifiedPart]:
    """Open a run's data, hashing all files of stores up to `limit` bytes; None where they are gone or altered."""
    try:
        data = open_data(run.experiment.data, run.home, verify=False)
        folders = [Path(str(part.path)) for part in data.train.store.parts]
        size = sum(map(folder_size, folders))
        if size <= limit:
            run.progress(f"hashing {format_bytes(size)} of data", 0, None, "")
            data = open_data(run.experiment.data, run.home)
    except UserError as error:
        return None, VerifiedPart("data", "off", str(error))
    if recorded and data.fingerprint not in recorded:
        theirs = ", ".join(sorted(each[:12] for each in recorded))
        sentence = f"{data.name} has the fingerprint {data.fingerprint[:12]}, and the run was trained on {theirs}"
        return None, VerifiedPart("data", "off", f"{sentence}; bring those data back.")
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            if file.name in (MANIFEST_NAME, BUCKETS_NAME) and not has_own_layout(file):
                sentence = f"{file} has its values, in another layout than it was written in: it was edited"
                return None, VerifiedPart("data", "off", f"{sentence}; bring the file back.")
    hashed = f"all {format_bytes(size)} of its files have their hashes"
    if size > limit:
        hashed = f"of its {format_bytes(size)} only what is replayed is hashed (--data-limit hashes all up to it)"
    known = "that the run recorded" if recorded else "(the run recorded none)"
    return data, VerifiedPart("data", "holds", f"fingerprint {data.fingerprint[:12]} {known}; {hashed}.")


def check_evaluation(run: OpenedRun, store: CheckpointStore, line: int, tags: dict[str, str]) -> VerifiedPart:
    """Compute the digest of an evaluation from its measurements, the spec, and the weights of its checkpoint; `tags`
    are those of `line` of the journal. Figures are not measured again: `ditlab evaluate` does."""
    recorded = tags[EVALUATION_TAG]
    step = as_count(tags.get(EVALUATED_STEP_TAG, ""))
    name = f"evaluation {recorded[:SHOWN]} (line {line:,} of the journal)"
    if step is None:
        return VerifiedPart("evaluations", "off", f"{name} names no step of a checkpoint.")
    if step not in store.steps():
        return VerifiedPart("evaluations", "not checked", f"{name} is of checkpoint {step:,}, which is not kept.")
    parsed = {key.removeprefix(TAG_PREFIX): Measurement.parse(tags[key]) for key in tags if key.startswith(TAG_PREFIX)}
    measurements = {group: each for group, each in parsed.items() if each is not None}
    run.progress("hashing the weights that were evaluated", 0, None, "")
    try:
        with store.open(step) as reader:
            saved = SavedRun(run.home, run.folder, run.record, run.experiment, run.warn, checkpoint=reader)
            weights = measured_weights(saved)
            hashes = {run.experiment.content_hash(), reader.manifest.spec_hash}  # measured before or after a resume
    except UserError as error:
        return VerifiedPart("evaluations", "not checked", f"{name}: {error}")
    of = f"of the weights of checkpoint {step:,}, of the run's spec and of the measurements beside it"
    if recorded not in {evaluation_digest(measurements, each, weights) for each in hashes}:
        return VerifiedPart("evaluations", "off", f"{name} is not {of}.")
    return VerifiedPart("evaluations", "holds", f"{name} is {of}, as its digest says.")
