"""Right of one process to make a block of a cache, so that a block is fetched once."""

import fcntl
import os
from contextlib import suppress
from types import TracebackType

import pyarrow as pa

from ditlab.data.remote.cache.folder import CacheFolder
from ditlab.data.remote.cache.mapped_file import MappedBytes, map_locked, open_locked
from ditlab.data.remote.cache.space import CacheSpace, make_way
from ditlab.storage.plain_files import check_replaceable


class BlockClaim:
    """The locked file of a block in the making. The claim ends with the body of `with`, or with the process."""

    def __init__(self, folder: CacheFolder, key: str, descriptor: int) -> None:
        """Take over a locked file; `take` opens it."""
        self._folder, self._key, self._descriptor = folder, key, descriptor

    @classmethod
    def take(cls, folder: CacheFolder, key: str) -> "BlockClaim | None":
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

    def __enter__(self) -> "BlockClaim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
