"""A run's checkpoints: their location, the committed ones among them, and pruning."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ditlab.checkpoints.manifest import (
    HOLD,
    MANIFEST,
    DamagedCheckpoint,
    committed,
    folder_of,
    is_held,
    is_step,
    step_of,
)
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.errors import UserError
from ditlab.home import resolve_user_path
from ditlab.spec.uris import is_uri, refuse_storage
from ditlab.storage.local import LocalFiles
from ditlab.storage.remote import RemoteFiles, split_uri

_OPTION = "checkpoint.storage"


@dataclass(frozen=True)
class CheckpointStore:
    """A run's checkpoints, a folder each."""

    files: LocalFiles | RemoteFiles

    @classmethod
    def at(cls, location: str | Path) -> "CheckpointStore":
        """Open a store by path or URI. Raises UserError for a URI that neither pyarrow nor fsspec
        understands.
        """
        try:
            refuse_storage(_OPTION, str(location))
        except ValueError as error:
            raise UserError(str(error)) from None
        if isinstance(location, Path) or not is_uri(location):
            return cls(LocalFiles(resolve_user_path(location), _OPTION))
        files = RemoteFiles.open(_OPTION, location)
        if files.filesystem.type_name == "local":  # file://: it can be fsynced
            return cls(LocalFiles(Path(files.path), _OPTION))
        return cls(files)

    def child(self, name: str) -> "CheckpointStore":
        """The store in a folder of this one, such as a run's among the stores of many."""
        return CheckpointStore(self.files.child(name))

    @property
    def location(self) -> str:
        """Path or URI of the store, from which `at` opens it."""
        return self.files.location

    def location_of(self, step: int) -> str:
        """Path or URI of one checkpoint."""
        return self.files.location_of(folder_of(step))

    def steps(self) -> list[int]:
        """Steps of committed checkpoints, oldest first; only opening one checks that it is
        whole.
        """
        return committed(self._listing())

    def last_step(self) -> int:
        """Step of the newest checkpoint with an undamaged manifest, shards unread; -1 where there
        is none.
        """
        for step in reversed(self.steps()):
            with suppress(DamagedCheckpoint), self.open(step, verify=False) as reader:
                return reader.manifest.step
        return -1

    def open(self, step: int, verify: bool = True) -> CheckpointReader:
        """Open one checkpoint. With `verify`, each shard is hashed first; without, a remote one
        still is, when fetched.

        Raises UserError where it is not there, not whole, or the store cannot be reached.
        """
        return CheckpointReader(self.files, folder_of(step), verify)

    def newest(self, warn: Callable[[str], None] | None = None) -> CheckpointReader | None:
        """Open the newest whole checkpoint; damaged ones are skipped and reported through `warn`.

        None where there is none. Raises UserError where the store cannot be read: that is no reason
        to start over.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.open(step)
            except DamagedCheckpoint as error:
                if not warn:
                    continue
                fallback = "Falling back to the one before."
                if step == steps[0]:
                    fallback = "There is none before it."
                warn(f"{error} {fallback}")
        return None

    def prune(
        self,
        keep: int,
        newest_step: int,
        keep_every: int | None = None,
        needed: Collection[int] = (),
    ) -> list[int]:
        """Delete all but the `keep` committed checkpoints up to `newest_step`, and unfinished ones
        before those.

        Checkpoints that forks hold stay, beside the `keep` others, and so do those of the `needed`
        steps, and the first one of each stretch of `keep_every` steps but the first stretch.
        Checkpoints later than `newest_step`, which has just been written, were skipped as damaged
        by a resume: they do not count, or they would displace whole ones. Returns the steps
        whose folders are gone.
        """
        listing = self._listing()
        steps = committed(listing)
        kept = [step for step in steps if step <= newest_step][-keep:]
        if not kept:
            return []
        # Deleting others changes nothing of it: the first of a stretch stays the first.
        first_of: dict[int, int] = {}
        if keep_every:
            first_of = {step // keep_every: step for step in reversed(steps)}
            first_of.pop(0, None)
        stay = {*first_of.values(), *needed}
        gone = []
        for step in sorted(map(step_of, filter(is_step, listing))):
            if step >= kept[0] or step in stay or is_held(self.files.sizes(folder_of(step))):
                continue
            gone.append(step)
        for step in gone:
            self._delete(folder_of(step))
        return gone

    def _delete(self, folder: str) -> None:
        # The manifest goes first: a deletion cut short leaves no checkpoint that looks whole.
        self.files.delete(folder, MANIFEST)
        self.files.delete_folder(folder)

    def delete_after(self, step: int) -> None:
        """Delete all checkpoints later than `step`, unfinished ones too.

        Raises UserError where the store does not answer.
        """
        with self.files.translating_errors(
            "cannot be written", "delete what is later there by hand"
        ):
            for folder in sorted(self.files.listing()):
                if is_step(folder) and step_of(folder) > step:
                    self._delete(folder)

    def hold(self, step: int, run_id: str) -> None:
        """Keep a checkpoint from being pruned for the sake of a fork or an evaluation, until
        `release`; repeatable.

        Raises UserError where the checkpoint is not there, or the store cannot be written.
        """
        if self.held_digest(step, run_id):
            return
        with self.open(step, verify=False) as reader:
            digest = reader.manifest.state_digest()
        with self.files.translating_errors(
            "cannot be written", "allow forks to mark what they need"
        ):
            self.files.replace(folder_of(step), f"{HOLD}{run_id}", digest.encode())
        try:
            # pruned between the two, it would be a folder with a mark alone
            self.open(step, verify=False).close()
        except DamagedCheckpoint:
            self.release(step, run_id)
            raise

    def release(self, step: int, run_id: str) -> None:
        """Take back what `hold` did; nothing where the checkpoint or the mark is gone."""
        with self.files.translating_errors(
            "cannot be written", "delete the mark of the fork there by hand"
        ):
            self.files.delete(folder_of(step), f"{HOLD}{run_id}")
            self.files.delete_folder_if_empty(folder_of(step))

    @contextmanager
    def held(self, step: int, holder: str) -> Iterator[CheckpointReader]:
        """Open a checkpoint, which is not pruned during the block; marks that a killed `holder`
        left are taken back.

        Raises DamagedCheckpoint where it is gone or not whole.
        """
        for each in self.steps():
            if each != step and self.held_digest(each, holder):
                self.release(each, holder)
        self.hold(step, holder)
        try:
            with self.open(step) as reader:
                yield reader
        finally:
            self.release(step, holder)

    def held_digest(self, step: int, run_id: str) -> str | None:
        """Return `state_digest` of the checkpoint as it was when a fork began to hold it.

        None where the fork's mark is missing.
        """
        try:
            with self._reading():
                return self.files.read(folder_of(step), f"{HOLD}{run_id}").decode()
        except UserError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _listing(self) -> dict[str, dict[str, int]]:
        with self._reading():
            return self.files.listing()

    def _reading(self) -> AbstractContextManager[None]:
        return self.files.translating_errors(
            "cannot be read", "check that it can be reached and may be read from here"
        )


def open_checkpoint(location: str | Path) -> CheckpointReader:
    """Open the checkpoint at a path or URI that ends with `step-...`. Raises UserError where there
    is none.
    """
    text = str(location)
    if is_uri(text):
        head, path, query = split_uri(text)
        parent, _, name = path.rstrip("/").rpartition("/")
        above = f"{head}{parent}{query}"
    else:
        above = str(Path(text).parent)
        name = Path(text).name
    if not is_step(name):
        raise UserError(f"{text} is no checkpoint; name a folder such as {folder_of(200)}.")
    return CheckpointStore.at(above).open(step_of(name))
