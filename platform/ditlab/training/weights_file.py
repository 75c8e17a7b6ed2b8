"""The weights of an export as a safetensors file: the same bytes for the same weights, and checked when it is read.

The library writes a header's metadata in a random order, so the header is written here: keys sorted, tensors by name.
Metadata `sha256` is a JSON mapping of hashes: one for each file beside the weights, and `content`, of all the rest of
the header and of the tensors' bytes. Files of earlier versions have none.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ditlab.checkpoints.shard import CHUNK, DTYPE_NAMES, raw_bytes
from ditlab.errors import UserError, first_line
from ditlab.storage.files import replacing
from ditlab.storage.plain_files import MIB, open_plain, parse_json

MAX_HEADER = 100 << 20
"""Most bytes of a header, as in the library."""
MAX_TEXT_FILE = 256 * MIB
"""Most bytes of a file beside the weights: the largest published tokenisers have about 40 MB."""
METADATA, HASHES, CONTENT = "__metadata__", "sha256", "content"
EARLIER_KEYS = {"format", "family", "step", "plugins"}
"""Metadata of files without hashes."""


@dataclass(frozen=True)
class ExportFacts:
    """Metadata of an export's weights."""

    step: int
    """Optimiser step of the weights."""
    packages: dict[str, str]
    """Packages of the network's parts, with versions."""
    hashes: dict[str, str]
    """SHA-256 of each file beside the weights, by name; {} where none were recorded."""
    is_ours: bool
    """True if the metadata are those of an export."""


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], files: Sequence[Path]
) -> None:
    """Write tensors, metadata, and the hashes of both and of `files`. Raises OSError where the disk refuses."""
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    entries: dict[str, Any] = {}
    offset = 0
    for name, tensor in sorted(ordered.items(), key=lambda item: -item[1].element_size()):  # for their alignment
        entries[name] = {
            "data_offsets": [offset, offset + tensor.nbytes],
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
        }
        offset += tensor.nbytes
    hashes = {file.name: file_hash(file) for file in files}
    content = hashlib.sha256(_header(metadata, hashes, entries))
    for name in entries:
        content.update(raw_bytes(ordered[name]))
    text = _header(metadata, {**hashes, CONTENT: content.hexdigest()}, entries)
    text += b" " * (-len(text) % 8)  # the tensors' bytes start at a multiple of eight
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in entries:
            file.write(raw_bytes(ordered[name]))


def read_facts(path: Path) -> ExportFacts:
    """Read the metadata, and hash the whole file where it has a hash.

    Raises UserError for a file that cannot be read, is no export's, or was altered.
    """
    with _reading(path), open_plain(path, follow=True) as file:
        header = _read_header(file)
        metadata = header.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata are no texts")
        if HASHES not in metadata:
            if metadata.keys() - EARLIER_KEYS:
                raise ValueError(f"its metadata hold {', '.join(sorted(metadata.keys() - EARLIER_KEYS))}")
            packages, is_ours = _texts(metadata.get("plugins", "{}")), "family" in metadata
            return ExportFacts(_step(metadata.get("step", "0")), packages, {}, is_ours)
        hashes = _texts(metadata[HASHES])
        expected = hashes.pop(CONTENT, "")
        rest = {name: text for name, text in metadata.items() if name != HASHES}
        content = hashlib.sha256(_header(rest, hashes, header))
        for chunk in _chunks(file):
            content.update(chunk)
        if content.hexdigest() != expected:
            raise ValueError("it was altered: its SHA-256 differs from the one written with it")
        return ExportFacts(_step(rest.get("step", "")), _texts(rest.get("plugins", "{}")), hashes, True)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read all tensors by name. Raises UserError for a file that is none of safetensors."""
    with _reading(path):
        open_plain(path, follow=True).close()
        return load_file(path)


def check_fit(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    """Raise UserError unless the weights have the names, shapes and kinds of a network's."""
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    problem = f"it holds no {missing[0]}" if missing else f"it holds {unknown[0]} besides" if unknown else ""
    for name in () if problem else expected:
        found, wanted = weights[name], expected[name]
        if found.shape != wanted.shape:
            problem = f"{name} has the shape {tuple(found.shape)} and not {tuple(wanted.shape)}"
        elif found.is_floating_point() != wanted.is_floating_point():
            problem = f"{name} holds {found.dtype}"
        if problem:
            break
    if problem:
        raise UserError(
            f"{path} does not fit the network of spec.yaml beside it ({problem}); undo changes of spec.yaml, or export "
            "the run again."
        )


def file_hash(path: Path) -> str:
    """SHA-256 of a spec or a tokeniser, in hexadecimal digits. Raises OSError as `open_plain` does."""
    with open_plain(path, MAX_TEXT_FILE, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise UserError for what reading an export's weights may raise."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); export the run again.") from error
    except (ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({first_line(error)}); export the run again.") from error


def _read_header(file: BinaryIO) -> dict[str, Any]:
    size = int.from_bytes(file.read(8), "little")
    if size > min(MAX_HEADER, os.fstat(file.fileno()).st_size):
        raise ValueError(f"its header would have {size:,} bytes")
    header = parse_json(file.read(size))
    if not isinstance(header, dict) or not all(isinstance(each, dict) for each in header.values()):
        raise ValueError("its header is no mapping of tensors")
    if any("data_offsets" not in entry for name, entry in header.items() if name != METADATA):
        raise ValueError("its header describes something else than tensors")
    return header


def _texts(text: str) -> dict[str, str]:
    """Parse a JSON mapping of texts."""
    found = parse_json(text)
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("its metadata hold no mapping of texts")
    return found


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError("its step is no whole number")
    return int(text)


def _header(metadata: Mapping[str, str], hashes: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    header = {METADATA: {**metadata, HASHES: json.dumps(hashes, sort_keys=True)}, **entries}
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
