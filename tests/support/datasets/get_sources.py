"""Small zarr stores of GET, in both of zarr's formats."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

FORMATS = (2, 3)
MOTIFS = ("CTCF", "GATA", "SILENT", "SOX")


def peaks_of(chromosomes: dict[str, int], gap: int = 1000) -> list[str]:
    return [
        f"{name}:{n * gap + 10}-{n * gap + 410}"
        for name, num in chromosomes.items()
        for n in range(num)
    ]


def scores(peaks: int, motifs: int = 4, seed: int = 0) -> np.ndarray:
    """Sparse, of different sizes by motif, motif 2 zero everywhere."""
    generator = np.random.default_rng(seed)
    values = generator.random((peaks, motifs), np.float32) * (
        generator.random((peaks, motifs)) < 0.4
    )
    values *= np.arange(1, motifs + 1) ** 2
    values[:, 2] = 0
    return values.astype(np.float32)


def accessibility(peaks: int) -> np.ndarray:
    values = np.random.default_rng(1).random(peaks) + 0.1
    values[::4] = 0
    return values


@dataclass
class GetSource:
    """Contents of a store, of which a test changes a part."""

    peaks: list = field(default_factory=lambda: peaks_of({"chr2": 23, "chr10": 11}))
    motifs: list = field(default_factory=lambda: list(MOTIFS))
    data: np.ndarray = field(default_factory=lambda: scores(34))
    atpm: dict[str, np.ndarray] = field(default_factory=lambda: {"fetal_heart": accessibility(34)})
    text: str = "variable"
    """Type of names: variable, fixed or bytes."""

    def write(
        self,
        path: Path,
        zarr_format: int = 3,
        chunk: int = 5,
        shards: tuple[int, int] | None = None,
    ) -> Path:
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        kind = {"variable": np.dtypes.StringDType(), "fixed": "U", "bytes": "S"}[self.text]
        names = {"peak_names": self.peaks, "motif_names": self.motifs}
        arrays = {key: np.array(values).astype(kind) for key, values in names.items()}
        for key, values in {"data": self.data, **arrays}.items():
            chunks: Any = "auto"
            if np.ndim(values):
                chunks = tuple(max(1, each) for each in (chunk, *np.shape(values)[1:]))
            group.create_array(
                key, data=values, chunks=chunks, shards=shards if key == "data" else None
            )
        for name, values in self.atpm.items():
            group.create_array(f"atpm/{name}", data=values)
        return path
