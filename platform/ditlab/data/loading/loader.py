"""The loader: micro-batches of the coming steps, gathered by background threads."""

from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import BatchField
from ditlab.data.loading.order import SampleOrder
from ditlab.data.loading.prefetch import HandOver, Prefetcher
from ditlab.data.stores.view import View

Step = list[dict[str, Tensor]]
"""The micro-batches of one optimiser step on one worker, by field name, (micro_size, *shape), in the store's dtype."""


class Loader:
    """An iterator over steps, from `position` on; `steps` of them, or without end.

        with Loader(view, fields, order, position, micro_size, micro_indices) as loader:
            for micro_batches in loader: ...

    `micro_indices` are this worker's micro-batches by global index (`sampler.worker_micro_indices`). Up to `depth`
    hand-overs of a few steps each wait ready. The tensors are the caller's own; they lie in pinned memory where `pin`
    says so (None: where CUDA is available). An error in the background is raised here, with its own traceback.
    """

    def __init__(
        self,
        view: View,
        fields: Sequence[BatchField],
        order: SampleOrder,
        position: int,
        micro_size: int,
        micro_indices: Sequence[int],
        depth: int = 4,
        steps: int | None = None,
        pin: bool | None = None,
    ):
        self.position = position
        """Position of the step that comes next: what a checkpoint made now must hold."""
        self._batch_size = order.batch_size
        self._micro_size, self._num_micro = micro_size, len(micro_indices)
        self._prefetcher = Prefetcher(
            view,
            [f.name for f in fields],
            order,
            position,
            micro_size,
            np.asarray(micro_indices, np.int64),
            steps,
            depth,
            torch.cuda.is_available() if pin is None else pin,
        )
        self._ready: Iterator[Step] = iter(())

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Step:
        step = next(self._ready, None)
        if step is None:
            self._ready = self._cut(next(self._prefetcher))
            step = next(self._ready)
        self.position += self._batch_size
        return step

    def close(self) -> None:
        """End the background threads and drop what they hold. Closing twice is fine."""
        self._ready = iter(())
        self._prefetcher.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, hand_over: HandOver) -> Iterator[Step]:
        """The steps of a hand-over: views of it."""
        parts = [values.view(-1, self._micro_size, *values.shape[1:]).unbind() for values in hand_over.values()]
        batches = [dict(zip(hand_over, tensors, strict=True)) for tensors in zip(*parts, strict=True)]
        return iter([batches[i : i + self._num_micro] for i in range(0, len(batches), self._num_micro)])
