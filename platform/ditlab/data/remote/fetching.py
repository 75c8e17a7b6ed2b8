"""Fetching of a store's files from a URI into a folder: hashed on the way, the manifest last."""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ditlab.data.remote.manifests import check_plain_remote
from ditlab.data.stores.files import UPLOAD_AGAIN, StoreContents, StoreFile
from ditlab.errors import UserError
from ditlab.storage.files import flush_to_disk, sync_folder, write_durably
from ditlab.storage.plain_files import MIB, open_plain
from ditlab.storage.remote import RemoteFiles

UNSIZED_BYTES = 256 * MIB
"""Most bytes of a file whose size no manifest has: a tokeniser, a list for people."""
PARALLEL_FILES = 8
"""Files transferred at a time: an object store answers one reader with some 50 to 100 MB/s."""


class Fetch:
    """Fetch of one store into a folder; only one may run in a folder at a time.

    A file takes its name once its size and SHA-256 are those of the manifest, so a copy that was killed is continued.
    """

    def __init__(self, files: RemoteFiles, folder: Path, place: str):
        """Prepare a fetch; `place`, the knob and the URI, begins every message."""
        self._files, self._folder, self._place = files, folder, place
        self._stop = threading.Event()

    def run(self, contents: StoreContents) -> None:
        """Fetch all missing files, then place the manifests.

        Raises UserError for files that are missing there or differ from the manifests, OSError where the disk refuses.
        """
        for below in {"", *(folder for folder, _, _ in contents.parts)}:
            (self._folder / below).mkdir(parents=True, exist_ok=True)
        missing = [file for file in contents.files if not _is_there(self._folder / file.folder / file.name, file)]
        self._check_free_space(sum(file.size or 0 for file in missing))
        with ThreadPoolExecutor(PARALLEL_FILES) as pool:
            try:
                list(pool.map(self._fetch, missing))
            finally:
                self._stop.set()  # after an error or Ctrl-C, do not wait for unfinished files
        for folder, name, content in contents.manifests:
            sync_folder(self._folder / folder)
            write_durably(self._folder / folder / name, content)

    def _check_free_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise UserError(
                f"{self._place} needs {needed / 2**20:,.1f} MiB in {self._folder}, where {free / 2**20:,.1f} MiB are "
                "free; make room there, or point DITLAB_CACHE at a larger disk of this node."
            )

    def _fetch(self, file: StoreFile) -> None:
        target = self._folder / file.folder / file.name
        partial = target.with_name(f".{target.name}.partial")
        digest, size = hashlib.sha256(), 0
        try:
            with partial.open("wb") as sink:
                for chunk in self._chunks(file):
                    if self._stop.is_set():
                        return
                    size += len(chunk)
                    if size > (UNSIZED_BYTES if file.size is None else file.size):
                        break
                    digest.update(chunk)
                    sink.write(chunk)
                flush_to_disk(sink)
            self._check(file, size, digest.hexdigest())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _chunks(self, file: StoreFile) -> Iterator[bytes]:
        name = f"{file.folder}/{file.name}".lstrip("/")
        with self._files.translating_errors(
            f"does not give {name}", "check the network and the credentials in the environment"
        ):
            try:
                check_plain_remote(self._files, file.folder, file.name)
                yield from self._files.chunks(file.folder, file.name)
            except FileNotFoundError:
                raise UserError(
                    f"{self._place}: {name} is missing; upload the store again with `ditlab data upload`."
                ) from None

    def _check(self, file: StoreFile, size: int, digest: str) -> None:
        name = f"{file.folder}/{file.name}".lstrip("/")
        if file.size is None and size > UNSIZED_BYTES:
            raise UserError(
                f"{self._place}: {name} has more than {UNSIZED_BYTES:,} bytes, which no such file has; {UPLOAD_AGAIN}."
            )
        if file.size is not None and size != file.size:
            more = "more than " if size > file.size else ""
            raise UserError(
                f"{self._place}: {name} was altered: it has {more}{min(size, file.size):,} bytes, and the manifest "
                f"says {file.size:,}; {UPLOAD_AGAIN}."
            )
        if file.sha256 and digest != file.sha256:
            raise UserError(
                f"{self._place}: {name} was altered: its SHA-256 is {digest[:16]}..., and the manifest says "
                f"{file.sha256[:16]}...; {UPLOAD_AGAIN}."
            )


def _is_there(path: Path, file: StoreFile) -> bool:
    """Return True if a file of an earlier copy has the manifest's size and SHA-256."""
    try:
        with open_plain(path) as content:
            if not file.sha256 or file.size not in (None, os.fstat(content.fileno()).st_size):
                return False
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError:
        return False
