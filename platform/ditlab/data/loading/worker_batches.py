"""Part of each global batch that one worker loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ditlab.data.loading.order import Order
from ditlab.data.stores.view import View


@dataclass(frozen=True, eq=False)
class WorkerBatches:
    """Micro-batches of one worker in every step."""

    view: View
    columns: tuple[str, ...]
    """Columns of the view's store that are loaded."""
    order: Order
    micro_size: int
    """Samples of a micro-batch."""
    micro_indices: Sequence[int]
    """Global indices, within a step, of this worker's micro-batches."""

    @property
    def step_rows(self) -> int:
        """Rows that a step takes on this worker."""
        return self.micro_size * len(self.micro_indices)

    @cached_property
    def places(self) -> np.ndarray:
        """Places of this worker's samples in the global batch, int64 (step_rows,)."""
        first = np.asarray(self.micro_indices, np.int64) * self.micro_size
        return (first[:, None] + np.arange(self.micro_size)).reshape(-1)

    def rows(self, first: int, count: int) -> np.ndarray:
        """Return the store rows that this worker takes in `count` batches from the `first` on, int64 (count *
        step_rows,)."""
        return self.view.rows[self.order.batches(first, count, self.places).reshape(-1)]

    def announce(self, batch: int) -> int:
        """Announce rows needed from a batch on to stores that fetch them; return the first batch that needs others."""
        upcoming = self.order.upcoming(batch, self.places)
        self.view.expect(upcoming.ranges)
        return upcoming.until
