"""Windows of regions as families get them, and a chain with a known best prediction."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ditlab_models.contract import RealRows, RowSet
from support.models.draws import RowKeyedNoise


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
