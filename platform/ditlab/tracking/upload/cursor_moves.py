"""Cursors of a run's journals, which are kept by MLflow address, carried on to the address at the present place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.tracking.address import resolve_tracking_uri
from ditlab.tracking.relocation.path_map import PathMap
from ditlab.tracking.upload.cursor import Cursor, CursorFile


@dataclass(frozen=True)
class CursorMove:
    """Cursor of one journal at a former address, to be saved under the present one."""

    path: Path
    cursor: Cursor
    _target: CursorFile

    def apply(self) -> None:
        """Save the cursor under the present address. Raises UserError while another process sends the journal."""
        if not self._target.acquire():
            raise UserError(f"{self.path} is in use by a process that sends to MLflow; wait for its end, or stop it.")
        try:
            self._target.save(self.cursor)
        finally:
            self._target.release()


def cursor_moves(folder: RunFolder, tracking_uri: str, mapping: PathMap) -> Iterator[CursorMove]:
    """Cursors of a run that are ahead of those at the present address.

    `tracking_uri` is the run's own address; empty: the database of its home.
    """
    homes = [Home(place) for place in mapping.former]
    addresses = [tracking_uri] if tracking_uri else [resolve_tracking_uri(None, home) for home in homes]
    for node in folder.journal_nodes():
        for address in addresses:
            moved = mapping.relocated(address)
            cursor = CursorFile(folder, address, node).load()
            if moved is None or cursor.mlflow_run_id is None:
                continue
            target = CursorFile(folder, moved, node)
            if target.load().offset < cursor.offset:
                yield CursorMove(folder.node_journal(node).with_suffix(".cursor.json"), cursor, target)
