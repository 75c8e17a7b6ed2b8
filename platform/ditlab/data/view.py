"""A view: some rows of a store, in an order of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ditlab.data.manifest import StoredColumn
from ditlab.data.store import Store


@dataclass(frozen=True)
class View:
    store: Store
    rows: np.ndarray
    """int64 row numbers of the store, (len(view),)."""
    origin: str
    """How the experiment names this data, for messages: `data.kind=digits`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> Mapping[str, StoredColumn]:
        return self.store.columns

    def gather(self, column: str, indices: np.ndarray, out: Tensor | None = None) -> Tensor:
        """The view's rows at `indices` (int64, in [0, len(view))), (len(indices), *shape), in the store's dtype."""
        return self.store.gather(column, self.rows[indices], out)
