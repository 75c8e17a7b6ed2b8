"""Windows of regions as families get them, and a chain with a known best prediction."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ditlab_models.contract import RealRows, RowSet


class RowKeyedNoise:
    """Fixed draws of rows `first`, `first` + 1, ...: each row's depend on its number and the name
    alone.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._seeded = torch.Generator()

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.stack(
            [
                torch.rand(tuple(shape[1:]), generator=self._generator(name, i))
                for i in range(shape[0])
            ]
        )

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.stack(
            [
                torch.randn(tuple(shape[1:]), generator=self._generator(name, i))
                for i in range(shape[0])
            ]
        )

    def _generator(self, name: str, row: int) -> torch.Generator:
        key = hashlib.sha256(f"{name}/{self.first + row}".encode()).digest()
        return self._seeded.manual_seed(int.from_bytes(key[:7], "big"))


def as_row_set(
    x: Tensor,
    present: Tensor,
    chromosome: Sequence[str] | None = None,
    names: Sequence[str] = (),
    **classes: Sequence[str],
) -> RowSet:
    """Windows x (num, R, F) with their padding (num, R), chromosome by chromosome and features by
    name; `classes` are those of further columns."""
    given = classes if chromosome is None else {"chromosome": chromosome, **classes}
    columns = {name: np.array(values) for name, values in given.items()}

    def batches(size: int) -> Iterator[RealRows]:
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            yield RealRows(
                {"regions": x[part], "present": present[part]},
                {name: values[part] for name, values in columns.items()},
                {"regions": tuple(names)} if names else {},
                RowKeyedNoise(start),
            )

    return RowSet(len(x), batches)


def gaussian_chain(num: int, regions: int, features: int, rho: float = 0.8) -> Tensor:
    """(num, regions, features): each feature a stationary Gaussian chain of variance 1 along the
    regions.
    """
    steps = torch.randn(num, regions, features)
    x = [steps[:, 0]]
    for region in range(1, regions):
        x.append(rho * x[-1] + (1 - rho**2) ** 0.5 * steps[:, region])
    return torch.stack(x, dim=1)
