"""Image files as people have them: many sizes, formats and modes, and some that are broken."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    """RGB: a slope of random direction in each channel, so that scaling changes it little."""
    generator = np.random.default_rng(seed)
    rows, columns = (
        np.linspace(0, 1, height)[:, None, None],
        np.linspace(0, 1, width)[None, :, None],
    )
    start, down, right = generator.uniform(0, 85, (3, 3))
    return Image.fromarray((start + rows * down + columns * right).round().astype(np.uint8))


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """Return the content of an image file, of an array (height, width) or with channels behind."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def captioned_folder(
    folder: Path, files: Mapping[str, tuple[bytes | Image.Image, str | bytes | None]]
) -> Path:
    """Writes files with captions, by path; images as PNG; None: no caption."""
    for name, (image, caption) in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image if isinstance(image, bytes) else encoded(image))
        if caption is not None:
            file.with_suffix(".txt").write_bytes(
                caption if isinstance(caption, bytes) else caption.encode()
            )
    return folder


def tar_file(file: Path, members: Mapping[str, bytes]) -> Path:
    """Writes a tar of members in their order."""
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def parquet_file(file: Path, **columns: object) -> Path:
    """Writes a table; a column is a list of values or an array of Arrow's."""
    pq.write_table(pa.table(columns), file, row_group_size=3)
    return file
