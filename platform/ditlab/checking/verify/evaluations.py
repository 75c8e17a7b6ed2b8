"""Evaluations that a run records, and the data it names: digests computed again, without measuring again.

A store's fingerprint is the one that the run recorded, and its files have their hashes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ditlab.analysis.evaluation import measured_weights
from ditlab.analysis.opened_run import OpenedRun, SavedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.checking.verify.journal_lines import JournalLines
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, has_own_layout, read_manifest_bytes
from ditlab.errors import UserError
from ditlab.quality.eligibility import quality_basis
from ditlab.quality.measurement import FLOAT, held_out_measurement, quality_parts
from ditlab.receipts.records import (
    EVALUATED_STEP_TAG,
    EVALUATION_TAG,
    SHOWN,
    TAG_PREFIX,
    Measurement,
    differing_parts,
    evaluation_digest,
)
from ditlab.spec.values import format_bytes

PART = "evaluations"
OWN = {"held-out samples", "training samples", "objective", "packing", "sampler"}
"""Parts of a measurement that the run's spec and data decide; others are of this machine: encoders, device, version."""


def check_evaluations(
    run: OpenedRun, store: CheckpointStore, data: DataSplits, lines: JournalLines
) -> Iterator[VerifiedPart]:
    """Compare the run's last measurements with those of its spec and data, and its last evaluation with its weights.

    Nothing is said of a run without any. Figures themselves are not measured again: `ditlab evaluate` does.
    """
    last: dict[str, str] = {}
    for _, tags in lines.tags:
        last |= {name: value for name, value in tags.items() if name.startswith(TAG_PREFIX)}
    for name, value in sorted(last.items()):
        group, recorded = name.removeprefix(TAG_PREFIX), Measurement.parse(value)
        if recorded is None:
            yield VerifiedPart(PART, "off", f"{run.folder.journal}: the tag {name} holds no measurement.")
        else:
            yield from _check_measurement(run, data, group, recorded)
    whole = [(number, tags) for number, tags in lines.tags if EVALUATION_TAG in tags]
    if whole:
        yield _check_evaluation(run, store, *whole[-1])


def _check_measurement(run: OpenedRun, data: DataSplits, group: str, recorded: Measurement) -> Iterator[VerifiedPart]:
    """Compare the parts of a measurement that spec and data decide."""
    try:
        known = _known_parts(run, data, group)
    except UserError as error:
        yield VerifiedPart(PART, "not checked", f"{group}/...: {error}")
        return
    compared = {name: recorded.parts.get(name, "") for name in known}
    differing = set(differing_parts([Measurement("", known), Measurement("", compared)]))
    of = f"{group}/... was measured ({recorded.shown})"
    if wrong := sorted(differing & OWN):
        yield VerifiedPart(PART, "off", f"{of} with other {', '.join(wrong)} than those of the run's spec and data.")
    elif differing:
        yield VerifiedPart(PART, "not checked", f"{of} with other {', '.join(sorted(differing))} than those here.")
    elif known:
        yield VerifiedPart(PART, "holds", f"{of} with the run's own {', '.join(sorted(OWN & set(known)))}.")


def _known_parts(run: OpenedRun, data: DataSplits, group: str) -> Mapping[str, str]:
    """Return the digests of a group's parts that are known here. Raises UserError where encoders cannot be read."""
    experiment = run.experiment
    found: dict[str, Any] = {}
    if group == "quality":
        basis = quality_basis(experiment, data)
        if not isinstance(basis, str):
            found = dict(Measurement.of(quality_parts(experiment, basis.data)).parts)
    else:
        is_training = group == "eval"
        num = experiment.evaluation.limit if is_training else len(data.held_out)
        precision = experiment.training.precision if is_training else FLOAT
        found = dict(held_out_measurement(experiment, data, num, precision, "", run.home).parts)
        del found["device"]
    return found


def _check_evaluation(run: OpenedRun, store: CheckpointStore, line: int, tags: Mapping[str, str]) -> VerifiedPart:
    """Compute the digest of an evaluation from its measurements, the spec, and the weights of its checkpoint."""
    recorded, step = tags[EVALUATION_TAG], tags.get(EVALUATED_STEP_TAG, "")
    name = f"evaluation {recorded[:SHOWN]} (line {line:,} of the journal)"
    parsed = {
        name.removeprefix(TAG_PREFIX): Measurement.parse(value)
        for name, value in tags.items() if name.startswith(TAG_PREFIX)
    }  # fmt: skip
    measurements = {group: each for group, each in parsed.items() if each is not None}
    if not step.isascii() or not step.isdigit() or len(step) > 15:
        return VerifiedPart(PART, "off", f"{name} names no step of a checkpoint.")
    if int(step) not in store.steps():
        return VerifiedPart(PART, "not checked", f"{name} is of checkpoint {int(step):,}, which is not kept.")
    run.progress("hashing the weights that were evaluated", 0, None, "")
    try:
        with store.open(int(step)) as reader:
            saved = SavedRun(run.home, run.folder, run.record, run.experiment, run.warn, checkpoint=reader)
            weights = measured_weights(saved, saved.network(torch.device("cpu")))
    except UserError as error:
        return VerifiedPart(PART, "not checked", f"{name}: {error}")
    if evaluation_digest(measurements, run.experiment.content_hash(), weights) != recorded:
        return VerifiedPart(
            PART, "off",
            f"{name} is not of the weights of checkpoint {int(step):,}, the run's spec and the measurements beside it.",
        )  # fmt: skip
    sentence = f"{name} is of the weights of checkpoint {int(step):,} and of the run's spec, as its digest says."
    return VerifiedPart(PART, "holds", sentence)


def open_verified(run: OpenedRun, recorded: set[str], limit: int) -> tuple[DataSplits | None, list[VerifiedPart]]:
    """Open a run's data, hashing all files of stores up to `limit` bytes; None where they are gone or altered."""
    spec = run.experiment.data
    try:
        data = open_data(spec, run.home, verify=False)
        stored = sum(sum(_file_sizes(Path(str(part.path)))) for part in data.train.store.parts)
        is_whole = stored <= limit
        if is_whole:
            run.progress(f"hashing {format_bytes(stored)} of data", 0, None, "")
            data = open_data(spec, run.home)
    except UserError as error:
        return None, [VerifiedPart("data", "off", str(error))]
    if recorded and data.fingerprint not in recorded:
        theirs = ", ".join(sorted(each[:12] for each in recorded))
        return None, [
            VerifiedPart(
                "data", "off",
                f"{data.name} has the fingerprint {data.fingerprint[:12]}, and the run was trained on {theirs}; bring "
                "those data back.",
            )
        ]  # fmt: skip
    if edited := [file for part in data.train.store.parts for file in _edited_manifests(Path(str(part.path)))]:
        return None, [
            VerifiedPart(
                "data", "off",
                f"{edited[0]} has its values, in another layout than it was written in: it was edited; bring the file "
                "back.",
            )
        ]  # fmt: skip
    hashed = f"all {format_bytes(stored)} of its files have their hashes"
    if not is_whole:
        hashed = (
            f"of its {format_bytes(stored)} only what is replayed is hashed (--data-limit hashes all up to its size)"
        )
    known = "that the run recorded" if recorded else "(the run recorded none)"
    return data, [VerifiedPart("data", "holds", f"fingerprint {data.fingerprint[:12]} {known}; {hashed}.")]


def _edited_manifests(path: Path) -> Iterator[Path]:
    """Yield a store's manifests whose bytes are not those that they were written as; opening them checked the rest."""
    manifests = [*path.rglob(MANIFEST_NAME), *path.rglob(BUCKETS_NAME)] if path.is_dir() else []
    yield from (file for file in sorted(manifests) if not has_own_layout(read_manifest_bytes(file)))


def _file_sizes(path: Path) -> Iterator[int]:
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield os.lstat(Path(folder, name)).st_size
            except OSError:
                continue
