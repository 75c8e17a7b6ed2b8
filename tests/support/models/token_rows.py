"""Rows of tokens as families get them."""

from collections.abc import Iterator

from torch import Tensor

from ditlab_models.contract import RealRows, RowSet
from support.models.draws import RowKeyedNoise


def token_rows(tokens: Tensor) -> RowSet:
    """Rows (num, T) int64, with draws of their own."""

    def batches(size: int) -> Iterator[RealRows]:
        for start in range(0, len(tokens), size):
            yield RealRows({"tokens": tokens[start : start + size]}, {}, {}, RowKeyedNoise(start))

    return RowSet(len(tokens), batches)
