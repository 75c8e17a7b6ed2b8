"""Request for a block of a store's file."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockRequest:
    """A block of a store's file: where it lies, what it is named in the cache, how it is verified."""

    key: str
    """Hash over its content, as hexadecimal digits: its name in the cache."""
    folder: str
    """Folder of the file below the store's URI; "" for the store's own."""
    file: str
    offset: int
    """Its first byte in the file."""
    length: int
    verify: Callable[[memoryview], object]
    """Function that raises ValueError for content that is not the block's."""

    @property
    def path(self) -> str:
        """The file below the store's URI."""
        return f"{self.folder}/{self.file}" if self.folder else self.file
