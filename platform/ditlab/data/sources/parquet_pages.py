"""Headers of Parquet's pages, in Thrift's compact protocol (apache/parquet-format, parquet.thrift, `PageHeader`)."""

from typing import BinaryIO, NamedTuple

_HEADER_BYTES = (4096, 16 << 20)
"""Bytes that are read for a header at first, and the most that Parquet's readers take one to have."""
_DEEPEST = 16
"""Levels of structures within each other; a page's header has three."""
_BOOLEANS, _NUMBERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), (4, 5, 6), 7, 8, (9, 10), 11, 12
_BYTE, _I32 = 3, 5
_UNPACKED, _PACKED = 2, 3
"""Fields of `PageHeader`: the sizes in bytes of the page behind it."""


class ParquetPage(NamedTuple):
    """Page of a column."""

    unpacked: int
    """Bytes that it says it unpacks to: readers allocate as many."""
    packed: int
    """Bytes that it takes in the file."""
    end: int
    """Offset of its end in the file."""


def read_page(content: BinaryIO, place: int) -> ParquetPage | None:
    """Read the header of the page at an offset of a file; None for one that is damaged."""
    for most in _HEADER_BYTES:
        content.seek(place)
        header = _Header(content.read(most))
        try:
            sizes = header.read_sizes()
        except IndexError:  # it is longer, or the file ends within it
            continue
        except ValueError:
            return None
        unpacked, packed = sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)
        return ParquetPage(unpacked, packed, place + header.place + packed) if min(unpacked, packed) >= 0 else None
    return None


class _Header:
    """Reader of a structure; raises IndexError at the end of the text, and ValueError for what no structure holds."""

    def __init__(self, text: bytes) -> None:
        self.place = 0
        self._text = text

    def read_sizes(self) -> dict[int, int]:
        """Read a structure to its end; returns its 32-bit fields by number."""
        sizes: dict[int, int] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            if kind & 15 == _I32:
                sizes[number] = self._integer()
            else:
                self._skip(kind & 15, 1)
        return sizes

    def _byte(self) -> int:
        value = self._text[self.place]
        self.place += 1
        return value

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number without end")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in _NUMBERS:
            self._varint()
        elif kind == _BYTE:
            self._byte()
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._skip_element(head & 15, depth + 1)
        elif kind == _MAP:
            num = self._varint()
            kinds = self._byte() if num else 0
            for _ in range(num):
                self._skip_element(kinds >> 4, depth + 1)
                self._skip_element(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            while field := self._byte():
                if not field >> 4:
                    self._varint()
                self._skip(field & 15, depth + 1)
        elif kind not in _BOOLEANS:
            raise ValueError(f"a field of unknown type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        """Pass over an element of a list or map, where a boolean takes a byte; as a field it is part of its type."""
        self._byte() if kind in _BOOLEANS else self._skip(kind, depth)

    def _pass(self, num: int) -> None:
        self.place += num
        if self.place > len(self._text):
            raise IndexError(num)
