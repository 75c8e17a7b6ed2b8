"""Files of a zarr store, in a folder or below a URI, or those of them that a block of an import reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ditlab.data.block_imports.listing import SourceFile, list_folder
from ditlab.data.block_imports.opening import read_source
from ditlab.data.block_imports.plan import InputBlock


@dataclass(frozen=True)
class ZarrFiles:
    """Files of a zarr store by name. What is not among them does not exist."""

    source: str
    """Folder or URI as it was given, for messages."""
    named: Mapping[str, SourceFile]
    """Files by their paths below the store's root, with slashes."""

    @classmethod
    def of_block(cls, source: str, block: InputBlock) -> "ZarrFiles":
        """Return the files of a block."""
        return cls(source, {file.name: file for file in (*block.files, *block.beside)})

    def read(self, name: str, limit: int) -> bytes:
        """Read a file of at most `limit` bytes. Raises as `opening.read_source` does; KeyError for another name."""
        return read_source(self.named[name], limit)

    def below(self, key: str) -> Iterator[SourceFile]:
        """Iterate over the files of the array or group `key`."""
        return (file for name, file in self.named.items() if name.startswith(f"{key}/"))

    def members(self, key: str = "") -> list[str]:
        """List the members of the group `key` (empty: the root) by name, whether or not they can be opened."""
        return sorted(self._members.get(key, ()))

    @cached_property
    def _members(self) -> dict[str, set[str]]:
        """Visible folders by the folder that they lie in."""
        found: dict[str, set[str]] = {}
        for name in self.named:
            folder = name.rpartition("/")[0]
            while folder:
                above, _, last = folder.rpartition("/")
                known = found.setdefault(above, set())
                if last in known:
                    break
                if not last.startswith("."):
                    known.add(last)
                folder = above
        return found


def list_zarr(source: str) -> ZarrFiles:
    """List the files of a store. Raises UserError for what is no folder, Unreachable where a URI does not answer."""
    return ZarrFiles(source, {file.name: file for file in list_folder("--source", source).files})
