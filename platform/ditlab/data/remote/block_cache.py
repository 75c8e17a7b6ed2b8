"""Cache of blocks on a node's disk: bounded, shared by its processes, usable after a kill at any moment.

One process claims a block and makes it, so that it is fetched once.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from ditlab.data.remote.cache_files import CacheFolder, MappedBytes, map_locked, open_locked
from ditlab.data.remote.cache_space import CacheSpace, make_way
from ditlab.errors import UserError
from ditlab.storage.plain_files import check_replaceable


class BlockClaim:
    """The locked file of a block in the making. The claim ends with the body of `with`, or with the process."""

    def __init__(self, folder: CacheFolder, key: str, descriptor: int) -> None:
        """Take over a locked file; `take` opens it."""
        self._folder, self._key, self._descriptor = folder, key, descriptor

    @classmethod
    def take(cls, folder: CacheFolder, key: str) -> BlockClaim | None:
        """Claim a block; None while another has claimed it. Raises OSError where the disk refuses."""
        path = folder.part(key)
        make_way(path)
        try:
            descriptor = open_locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        except FileNotFoundError:
            if path.parent.is_dir():
                return None  # another had it for a moment
            folder.make()
            return None
        if descriptor is None:
            return None
        os.ftruncate(descriptor, 0)  # what a dead process left
        return cls(folder, key, descriptor)

    def write(self, content: memoryview, space: CacheSpace, mapped: MappedBytes) -> pa.Buffer | None:
        """Write the block and return it mapped; None where there is no room. Raises OSError where the disk refuses."""
        if not space.reserve(self._key, self._descriptor, content.nbytes):
            return None
        block = self._folder.block(self._key)
        try:
            done = 0
            while done < content.nbytes:
                done += os.pwrite(self._descriptor, content[done:], done)
            make_way(block)
            check_replaceable(block)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # before it has its name, at which others map it
            self._folder.part(self._key).rename(block)
        except OSError:
            self.release()
            space.forget(self._key)
            raise
        descriptor, self._descriptor = self._descriptor, -1
        return map_locked(descriptor, mapped)

    def release(self) -> None:
        """Give the claim up. Doing so twice is fine."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._folder.part(self._key).unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> BlockClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class BlockCache:
    """Files named by the hash of their content, at most `limit_bytes` of them, ledger and unfinished ones included.

    Room is entered in the ledger before a byte is written, so that the bound also holds while several processes write.
    The least recently used block goes first; one that a process has mapped stays. Where processes have different
    limits, the least holds. The content is the caller's to verify. A disk that refuses costs the cache, and not the
    caller: `put` then returns the content from memory, and `problem` says why.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Open or make the cache, and evict what is over the limit. Raises UserError for a folder that is unusable."""
        self.limit_bytes, self._folder = limit_bytes, CacheFolder(folder)
        self._mapped = MappedBytes()
        self.problem: OSError | None = None
        """Latest reason for which a block was not kept; None for none."""
        try:
            self._folder.make()
            self._space = CacheSpace(self._folder, limit_bytes)
        except OSError as error:
            raise UserError(
                f"The cache of blocks in {folder} cannot be used ({error.strerror or error}); delete that folder, make "
                "room there, or point DITLAB_CACHE at another disk of this node."
            ) from None

    @property
    def size(self) -> int:
        """Bytes of the blocks and the ledger, with the room that is reserved."""
        return self._space.size()

    @property
    def mapped_bytes(self) -> int:
        """Bytes that are in use in this process, and therefore stay."""
        return self._mapped.total

    def share(self) -> int:
        """Bytes that this process may count on beside the others that use the cache now."""
        users = self._space.users.recent()
        return users.limit // users.num

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the limit that the ledger takes."""
        return self._space.ledger_bytes()

    def touch(self, key: str) -> None:
        """Note that a block will be used."""
        with suppress(OSError):
            self._space.note_use(key)

    def __contains__(self, key: str) -> bool:
        try:
            state = self._folder.block(key).lstat()
        except OSError:
            return False
        return stat.S_ISREG(state.st_mode) and state.st_size > 0

    def get(self, key: str) -> pa.Buffer | None:
        """Map a block; None where it is missing. It stays in the cache while the buffer or a view of it lives."""
        try:
            descriptor = open_locked(self._folder.block(key), os.O_RDONLY, fcntl.LOCK_SH)
            if descriptor is None:
                return None
            found = map_locked(descriptor, self._mapped)
        except OSError:
            return None
        self.touch(key)
        return found

    def claim(self, key: str) -> BlockClaim | None:
        """Claim the making of a block; None while another process or thread makes it. Raises OSError."""
        return BlockClaim.take(self._folder, key)

    def keep(self, claim: BlockClaim, content: bytes | memoryview | pa.Buffer) -> pa.Buffer:
        """Keep the content of a claimed block; return it mapped, or from memory where there is no room."""
        view, kept = memoryview(content).cast("B"), None
        if view.nbytes:
            try:
                kept = claim.write(view, self._space, self._mapped)
            except OSError as error:
                self.problem = error
        return pa.py_buffer(content) if kept is None else kept

    def put(self, key: str, content: bytes | memoryview | pa.Buffer) -> pa.Buffer:
        """Keep a block, as `keep` does; where another is writing it, return it from memory."""
        try:
            claim = self.claim(key)
        except OSError as error:
            self.problem, claim = error, None
        if claim is None:
            return pa.py_buffer(content)
        with claim:
            return self.keep(claim, content)

    def discard(self, key: str) -> None:
        """Delete a block whose content was found damaged."""
        try:
            self._space.discard(key)
        except OSError as error:
            self.problem = error

    def close(self) -> None:
        """Take this process off the cache's users; what is mapped stays."""
        with suppress(OSError):
            self._space.close()
