"""Digest of an encoder's checkpoint, by which figures made with it are told apart."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from ditlab.encoders.checkpoint import CONFIG, MAX_TEXT_FILE, EncoderCheckpoint
from ditlab.storage.plain_files import open_plain, read_plain

PIECES, PIECE = 64, 64 * 1024
"""Pieces of each file of weights that are read, and their bytes: 4 MiB of a file of any size."""


def encoder_digest(place: str | None, precision: str, downloads: Path | None = None) -> str:
    """Return a digest of the encoder at a folder or of a hub's name, wherever it lies; empty for no encoder.

    It goes over the configuration, and over the size and evenly spread pieces of each file of weights: another training
    of the same network has other numbers everywhere. A hub's name stands for itself where nothing is fetched yet.
    Raises UserError for files that cannot be read.
    """
    if place is None:
        return ""
    found = EncoderCheckpoint.here(place, "encoders", downloads)
    digest = hashlib.sha256(precision.encode())
    if found is None:
        digest.update(place.encode())
        return digest.hexdigest()
    digest.update(read_plain(found.folder / CONFIG, MAX_TEXT_FILE, follow=True))
    for path in sorted(found.folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with open_plain(path, None, follow=True) as file:
            _add_pieces(digest, file)
    return digest.hexdigest()


def _add_pieces(digest: "hashlib._Hash", file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    digest.update(size.to_bytes(8, "little"))
    last = max(0, size - PIECE)
    for start in sorted({last * number // (PIECES - 1) for number in range(PIECES)}):
        file.seek(start)
        digest.update(file.read(PIECE))
