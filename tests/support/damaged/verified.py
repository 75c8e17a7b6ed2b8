"""Verification of the small run of `tests/ditlab_addons/check/verify`, whole or of one kind of
file.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ditlab.analysis.opened_run import OpenedRun
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.receipts.reading import read_receipts
from ditlab.runs.launch import checkpoint_store
from ditlab.storage.files import add_checksum, without_checksum
from ditlab_addons.check.verify.files import (
    VerifiedPart,
    check_averages,
    check_checkpoints,
    check_spec,
    open_verified,
    read_checkpoints,
)
from ditlab_addons.check.verify.records import check_chain, check_journal
from ditlab_addons.check.verify.verification import RunVerification, verify_run
from support.opened import open_training_run


def opened(home: Path) -> OpenedRun:
    """Open the run `checked`."""
    return open_training_run("checked", Home(home), lambda text: None)


def verified(home: Path, **options) -> RunVerification:
    """Verify it, without steps done again unless `options` say so."""
    return verify_run(opened(home), **{"steps": 0, **options})


def off(home: Path, **options) -> dict[str, str]:
    """Return the sentences of each part that is off."""
    found: dict[str, str] = {}
    for part in verified(home, **options).parts:
        if part.verdict == "off":
            found[part.part] = f"{found.get(part.part, '')} {part.sentence}".strip()
    return found


def flip(path: Path, place: int, mask: int = 1) -> None:
    """Change some bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)


def rewrite_lines(path: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write a journal anew, each record as `change` leaves it (None: without it), with right
    checksums.
    """
    lines = []
    for line in path.read_bytes().splitlines():
        record = change(json.loads(without_checksum(line)))
        if record is not None:
            lines.append(add_checksum(json.dumps(record, separators=(",", ":")).encode()) + b"\n")
    path.write_bytes(b"".join(lines))


class FileChecks:
    """Checks of one kind of file of a run that was whole when this was made."""

    def __init__(self, home: Path) -> None:
        self.run = opened(home)
        self.store = checkpoint_store(self.run.folder, None)
        self.kept = read_checkpoints(self.run, self.store)
        self.receipts = read_receipts(self.run.folder)
        self.recorded = {attempt.data for attempt in self.receipts.attempts.values()}

    def is_off(self, part: str) -> bool:
        """Check one part; True if something is found."""
        return any(each.verdict == "off" for each in self._parts(part))

    def _parts(self, part: str) -> Iterable[VerifiedPart]:
        if part == "receipts":
            try:
                yield from check_chain(self.run, read_receipts(self.run.folder), self.kept)
            except UserError as error:  # `verify_run` calls that off where a manifest names a chain
                yield VerifiedPart(part, "off", str(error))
        elif part == "checkpoints":
            yield from check_checkpoints(read_checkpoints(self.run, self.store))
        elif part == "averages":
            yield from check_averages(self.run, self.store)
        elif part == "journal":
            yield from check_journal(self.run, self.receipts, self.kept)[1]
        elif part == "spec":
            yield from check_spec(self.run, self.kept, [*self.receipts.attempts.values()], [])
        else:
            yield open_verified(self.run, self.recorded)[1]
