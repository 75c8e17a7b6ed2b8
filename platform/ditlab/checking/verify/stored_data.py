"""Data of a run: the fingerprint that it recorded, and the hashes of the store's files."""

import os
from collections.abc import Iterator
from pathlib import Path

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.data.splits import DataSplits, open_data
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, has_own_layout, read_manifest_bytes
from ditlab.errors import UserError


def open_verified(run: OpenedRun, recorded: set[str], limit: int) -> tuple[DataSplits | None, list[VerifiedPart]]:
    """Open a run's data, hashing all files of stores up to `limit` bytes; None where they are gone or altered."""
    spec = run.experiment.data
    try:
        data = open_data(spec, run.home, verify=False)
        stored = sum(_sizes(Path(str(part.path))) for part in data.train.store.parts)
        is_whole = stored <= limit
        if is_whole:
            run.progress(f"hashing {stored / 2**20:,.0f} MiB of data", 0, None, "")
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
    hashed = f"all {stored / 2**20:,.1f} MiB of its files have their hashes"
    if not is_whole:
        hashed = (
            f"of its {stored / 2**30:,.1f} GiB only what is replayed is hashed (--data-limit hashes all up to its size)"
        )
    known = "that the run recorded" if recorded else "(the run recorded none)"
    return data, [VerifiedPart("data", "holds", f"fingerprint {data.fingerprint[:12]} {known}; {hashed}.")]


def _edited_manifests(path: Path) -> Iterator[Path]:
    """Yield a store's manifests whose bytes are not those that they were written as; opening them checked the rest."""
    manifests = [*path.rglob(MANIFEST_NAME), *path.rglob(BUCKETS_NAME)] if path.is_dir() else []
    yield from (file for file in sorted(manifests) if not has_own_layout(read_manifest_bytes(file)))


def _sizes(path: Path) -> int:
    return sum(_tree(path)) if path.is_dir() else 0


def _tree(path: Path) -> Iterator[int]:
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield os.lstat(Path(folder, name)).st_size
            except OSError:
                continue
