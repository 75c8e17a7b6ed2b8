"""Loader of micro-batches, gathered ahead by background threads."""

from collections import deque
from collections.abc import Iterable
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.prefetch import Prefetcher, StepBlock
from ditlab.data.loading.worker_batches import WorkerBatches

StepBatches = list[dict[str, Tensor]]
"""Micro-batches of one optimiser step on one worker, by field name, (micro_size, *shape), in the store's dtype."""


class Loader:
    """Iterator over a worker's steps, from `position` on; `steps` of them, or without end.

        with Loader(WorkerBatches(view, columns, order, micro_size, micro_indices), position) as loader:
            for micro_batches in loader: ...

    Up to `depth` blocks of a few steps each are held ready. The tensors are the caller's own; with `pin` (None: where
    CUDA is available) they lie in pinned memory. An error in the background is raised here, with its own traceback.
    """

    def __init__(
        self,
        batches: WorkerBatches,
        position: int,
        *,
        steps: int | None = None,
        depth: int = 4,
        pin: bool | None = None,
    ):
        self.position = position
        """Position of the step that comes next: the one that a checkpoint made now must hold."""
        self._batches = batches
        pin = torch.cuda.is_available() if pin is None else pin
        self._prefetcher = Prefetcher(batches, position, steps=steps, depth=depth, pin=pin)
        self._steps: deque[tuple[StepBatches, list[np.ndarray]]] = deque()
        self.row_ids: list[np.ndarray] = []
        """Rows of the store in the step handed out last, int64 (micro_size,) for each of its micro-batches."""

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> StepBatches:
        if not self._steps:
            self._steps.extend(self._cut(next(self._prefetcher)))
        step, self.row_ids = self._steps.popleft()
        self.position += self._batches.order.batch_size
        return step

    @property
    def is_ready(self) -> bool:
        """True if the next step can be had without waiting; false where there is none, or an error in its place."""
        return bool(self._steps) or self._prefetcher.is_ready

    def close(self) -> None:
        """End the background threads and drop all that they hold. Closing twice is fine."""
        self._steps.clear()
        self._prefetcher.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, block: StepBlock) -> Iterable[tuple[StepBatches, list[np.ndarray]]]:
        """Return the steps of a block, and their rows' ids, as views of it."""
        num, size = len(self._batches.micro_indices), self._batches.micro_size
        parts = [values.view(-1, size, *values.shape[1:]).unbind() for values in block.columns.values()]
        batches = [dict(zip(block.columns, tensors, strict=True)) for tensors in zip(*parts, strict=True)]
        ids = list(block.row_ids.reshape(-1, size))
        return [(batches[i : i + num], ids[i : i + num]) for i in range(0, len(batches), num)]
