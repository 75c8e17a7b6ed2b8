"""Tables as Parquet files, which other tools read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def save_table(columns: Mapping[str, np.ndarray], path: Path) -> Path:
    """Write columns of equal length as `path`, whole or not at all; raises OSError where the disk refuses.

    Folders are made as needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), part)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)  # a full disk would fill with them
        raise
    return path
