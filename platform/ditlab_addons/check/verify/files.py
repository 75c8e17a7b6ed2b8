"""Parts of a verification, and files of a run: checkpoints and averages hashed, spec, data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checkpoints.kept_averages import average_snapshots
from ditlab.checkpoints.manifest import CheckpointManifest, DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, has_own_layout
from ditlab.errors import UserError, first_line
from ditlab.receipts.reading import read_attempts
from ditlab.receipts.records import RecordedAttempt
from ditlab.spec.values import format_bytes
from ditlab.spec.yaml_text import MAX_BYTES
from ditlab.storage.files import folder_size, is_as_stamped
from ditlab.storage.plain_files import read_plain
from ditlab.sweeps.folder import read_takeovers
from ditlab.tracking.names import SPEC_HASH, change_texts

MOST_HASHED = 16 * 2**30
"""Bytes of data that are hashed as a whole; of larger data only what replayed steps read."""


@dataclass(frozen=True)
class VerifiedPart:
    """One part of a run that was verified, or could not be."""

    part: str
    """`receipts`, `checkpoints`, `averages`, `journal`, `spec`, `data`, `samples`, `replay` or
    `code`.
    """
    verdict: Literal["holds", "off", "not checked"]
    sentence: str
    """Description of what was checked, or of what is off, with the place and the remedy."""


VerifiedParts = Iterator[VerifiedPart]


@dataclass
class KeptCheckpoints:
    """Checkpoints that a run keeps."""

    manifests: dict[int, CheckpointManifest]
    """Manifests of the whole ones, by step."""
    damaged: list[str]
    """A sentence for each that is not whole."""


def read_checkpoints(
    run: OpenedRun, store: CheckpointStore, noun: str = "checkpoints"
) -> KeptCheckpoints:
    """Hash every kept checkpoint, or what else a store's are called. Raises UserError where it
    cannot be reached.
    """
    found = KeptCheckpoints({}, [])
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


def check_checkpoints(kept: KeptCheckpoints, part: str = "checkpoints") -> VerifiedParts:
    """Say which checkpoints, or snapshots of averages, are whole."""
    yield from (VerifiedPart(part, "off", sentence) for sentence in kept.damaged)
    if kept.manifests:
        yield VerifiedPart(
            part, "holds", f"{_described(kept.manifests)}: every shard has its hash."
        )
    elif not kept.damaged:
        yield VerifiedPart(part, "not checked", "none is kept.")


def check_averages(run: OpenedRun, store: CheckpointStore) -> VerifiedParts:
    """Hash every snapshot of averages; nothing for a run that keeps none."""
    if not run.experiment.training.averages:
        return
    try:
        found = read_checkpoints(run, average_snapshots(store), "snapshots")
    except UserError as error:
        yield VerifiedPart("averages", "off", str(error))
        return
    yield from check_checkpoints(found, "averages")


def _described(manifests: dict[int, CheckpointManifest]) -> str:
    size = sum(
        digest.size for manifest in manifests.values() for digest in manifest.shards.values()
    )
    first, *others = sorted(manifests)
    steps = f"steps {first:,} to {others[-1]:,}" if others else f"step {first:,}"
    return f"{len(manifests)} kept ({steps}), {format_bytes(size)}"


def check_spec(
    run: OpenedRun,
    kept: KeptCheckpoints,
    attempts: Sequence[RecordedAttempt],
    resumes: Sequence[Mapping[str, Any]],
) -> VerifiedParts:
    """Compare the run's spec with its stamp, byte by byte, and those of checkpoints and attempts
    with the run's own and with those that a record of `resumes`, the journal's, has changed."""
    try:
        content = read_plain(run.folder.spec, MAX_BYTES)
    except OSError as error:
        yield VerifiedPart(
            "spec", "off", f"{run.folder.spec} cannot be read ({first_line(error)}); bring it back."
        )
        return
    faults = []
    if not is_as_stamped(content) or content != content.rstrip(b"\n") + b"\n":
        faults.append(f"{run.folder.spec} was edited after the run wrote it; bring it back.")
    own = run.experiment.content_hash()
    # a resume may have ended before its first step
    known = {own, *(attempt.spec_hash for attempt in attempts[-1:])}
    for record in resumes:
        known.update(record["changes"].get(SPEC_HASH, ()))
    for each in attempts:
        if not run.kept_spec(each.spec_hash):
            path = run.folder.spec_of(each.spec_hash)
            faults.append(
                f"{path}, by which steps were trained, is gone or altered; bring it back."
            )
        elif each.spec_hash not in known:
            faults.append(_unrecorded(f"attempt {each.attempt}", each.spec_hash, own))
    known |= _hashes_of_donors(run)
    for step, manifest in kept.manifests.items():
        if manifest.spec_hash not in known:
            faults.append(_unrecorded(f"checkpoint {step:,}", manifest.spec_hash, own))
    yield from (VerifiedPart("spec", "off", fault) for fault in faults[:3])
    if not faults:
        texts = [
            f"{', '.join(change_texts(each['changes']))} after step {each['step']:,}"
            for each in resumes
        ]
        yield VerifiedPart("spec", "holds", "; ".join([f"hash {own}", *texts]) + ".")


def _unrecorded(what: str, spec_hash: str, own: str) -> str:
    return (
        f"{what} was trained by a spec of hash {spec_hash}, the run's is {own}, and no record "
        "of a resume says so."
    )


def _hashes_of_donors(run: OpenedRun) -> set[str]:
    """Return the hashes of specs by which trials have trained whose checkpoints this one has taken
    over.
    """
    hashes = set()
    for donor in {each.donor for each in read_takeovers(run.folder)}:
        attempts = read_attempts(run.home.run(donor)).values()
        hashes |= {attempt.spec_hash for attempt in attempts}
    return hashes


def open_verified(run: OpenedRun, recorded: set[str]) -> tuple[DataSplits | None, VerifiedPart]:
    """Open a run's data, hashing all files of stores up to `MOST_HASHED` bytes; None where they are
    gone or altered.
    """
    try:
        data = open_data(run.experiment.data, run.home, verify=False)
        folders = [Path(str(part.path)) for part in data.train.store.parts]
        size = sum(map(folder_size, folders))
        if size <= MOST_HASHED:
            run.progress(f"hashing {format_bytes(size)} of data", 0, None, "")
            data = open_data(run.experiment.data, run.home)
    except UserError as error:
        return None, VerifiedPart("data", "off", str(error))
    if recorded and data.fingerprint not in recorded:
        theirs = ", ".join(sorted(each[:12] for each in recorded))
        sentence = (
            f"{data.name} has the fingerprint {data.fingerprint[:12]}, and the run was trained "
            f"on {theirs}"
        )
        return None, VerifiedPart("data", "off", f"{sentence}; bring those data back.")
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            if file.name in (MANIFEST_NAME, BUCKETS_NAME) and not has_own_layout(file):
                sentence = (
                    f"{file} has its values, in another layout than it was written in: it was "
                    "edited"
                )
                return None, VerifiedPart("data", "off", f"{sentence}; bring the file back.")
    hashed = f"all {format_bytes(size)} of its files have their hashes"
    if size > MOST_HASHED:
        hashed = f"of its {format_bytes(size)} only what is replayed is hashed"
    known = "that the run recorded" if recorded else "(the run recorded none)"
    return data, VerifiedPart(
        "data", "holds", f"fingerprint {data.fingerprint[:12]} {known}; {hashed}."
    )
