"""Names of Trackio that are no part of its interface: the one file that uses them, and that imports
Trackio.

`trackio.init` and `Run.log` hand a point to a thread, which drops what the database does not take;
here a point has to be known to have arrived. So rows are written by the call below them,
`SQLiteStorage.bulk_log`, which raises what goes wrong, keeps the steps and times that it is given,
and skips a row whose `log_id` is there.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ditlab.home import Home

STORE_KEY = "ditlab.store"
"""Name, among a project's metadata, of a number that tells its database from one that was made
again.
"""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class StoreGoneError(Exception):
    """The project's database was deleted or made again since it was opened."""


@dataclass(frozen=True)
class StoredRow:
    """Values of one step."""

    values: dict[str, Any]
    step: int
    time: int
    """Milliseconds since 1970."""
    log_id: str
    """A row whose id is there is not written again."""


class TrackioStore:
    """One project's database and files, below `trackio/` of a home. Every method raises what SQLite
    or the disk do.
    """

    def __init__(self, home: Home, project: str) -> None:
        """Import Trackio, which fixes its folder at the import, and find the project or make it."""
        folder = home.root / "trackio"
        os.environ["TRACKIO_DIR"] = str(folder)
        from trackio import utils
        from trackio.sqlite_storage import SQLiteStorage

        if folder != utils.TRACKIO_DIR:
            raise RuntimeError(
                f"Trackio was imported before, for {utils.TRACKIO_DIR}; import it after the "
                "run begins"
            )
        self._project = project
        self._storage = SQLiteStorage
        self.number = self._read_number()
        """Number of the database."""
        if self.number is None:
            self.number = uuid.uuid4().hex
            SQLiteStorage.set_project_metadata(project, STORE_KEY, self.number)

    def config(self, run_id: str) -> dict[str, Any] | None:
        """Return a run's configuration; None for a run that is not there."""
        found: dict[str, Any] | None = self._storage.get_run_config(self._project, run_id=run_id)
        return found

    def write(
        self, run_id: str, name: str, rows: Sequence[StoredRow], config: dict[str, Any] | None
    ) -> None:
        """Write rows, and where there is one a run's whole configuration, in one transaction.

        Raises StoreGoneError for another database than the one that was opened.
        """
        if self._read_number() != self.number:
            raise StoreGoneError(
                f"the database of Trackio's project {self._project} was deleted or made again"
            )
        self._storage.bulk_log(
            project=self._project,
            run=name,
            run_id=run_id,
            metrics_list=[row.values for row in rows],
            steps=[row.step for row in rows],
            timestamps=[as_text(row.time) for row in rows],
            log_ids=[row.log_id for row in rows],
            config=config,
        )

    def keep_picture(self, name: str, key: str, step: int, path: Path) -> dict[str, Any]:
        """Copy a picture to where Trackio looks for those of a run's step; return its value in a
        row.
        """
        from trackio import utils

        place = (
            utils.project_media_dir(self._project)
            / name
            / str(step)
            / (_UNSAFE.sub("-", key) + path.suffix)
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
        return {
            "_type": "trackio.image",
            "file_path": str(place.relative_to(utils.MEDIA_DIR)),
            "caption": None,
        }

    def add_artifact(
        self, run_id: str, name: str, label: str, kind: str, path: Path, aliases: Sequence[str]
    ) -> None:
        """Add a file or folder as an artifact of a run; content that is there makes no second
        version.
        """
        import trackio

        artifact = trackio.Artifact(_UNSAFE.sub("-", f"{run_id}-{label}"), kind)
        if path.is_dir():
            artifact.add_dir(path)
        else:
            artifact.add_file(path)
        self._storage.commit_artifact_version(
            project=self._project,
            name=artifact.name,
            type=kind,
            description=label,
            manifest=artifact._build_manifest(self._project),
            metadata=None,
            aliases=list(aliases),
            run_name=name,
            run_id=run_id,
        )

    def _read_number(self) -> str | None:
        found: str | None = self._storage.get_project_metadata(self._project, STORE_KEY)
        return found


def as_text(milliseconds: int) -> str:
    """Return a time as Trackio keeps it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
