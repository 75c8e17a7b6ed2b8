"""Part of each global batch that one worker loads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ditlab.data.loading.order import SampleOrder
from ditlab.data.stores.view import View


@dataclass(frozen=True, eq=False)
class WorkerBatches:
    """Micro-batches of one worker in every step."""

    view: View
    columns: tuple[str, ...]
    """Columns of the view's store that are loaded."""
    order: SampleOrder
    micro_size: int
    """Samples of a micro-batch."""
    micro_indices: Sequence[int]
    """Global indices, within a step, of this worker's micro-batches."""

    @property
    def step_rows(self) -> int:
        """Rows that a step takes on this worker."""
        return self.micro_size * len(self.micro_indices)

    def epoch_rows(self, epoch: int) -> np.ndarray:
        """Return the store rows that this worker takes in an epoch, int64 (batches, step_rows)."""
        batches = self.order.epoch_batches(epoch)
        own = batches.reshape(len(batches), -1, self.micro_size)[:, np.asarray(self.micro_indices, np.int64)]
        return self.view.rows[own.reshape(len(batches), -1)]
