"""Means of gradients over workers at ZeRO stages 0 to 2, with fewer copies than DeepSpeed makes on its way.

The sums, their order and so their bits are DeepSpeed's. Replaces methods of its objects;
`tests/ditlab/engine/test_reduction.py` fails when their names move.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def spare_copies(engine: Any, stage: int, num_workers: int) -> None:
    """Leave one worker's gradients where they are; make those of several views of the buffer that was summed.

    DeepSpeed copies gradients into a flat buffer and back, of one worker too, whose gradients are their own mean.
    Stage 2 keeps its own partition's alone, so these are copied and the buffer goes. Buckets that are contiguous from
    the start (on GPUs, and where state is offloaded) are not touched.
    """
    optimizer = engine.optimizer
    if num_workers == 1:
        if stage == 0:
            engine.enable_backward_allreduce = False
        elif stage < 3:
            optimizer.buffered_reduce_fallback = _leave
    elif stage == 0:
        collect = engine._get_gradients_for_reduction

        def collected() -> tuple[list[Tensor], dict[str, list[Tensor]]]:
            collect()  # sets gradients that are missing on this worker to zero
            return [each.grad for each in engine.module.parameters() if each.grad is not None and each.numel()], {}

        def averaged(gradients: Sequence[Tensor], *where: Any) -> None:
            _point(gradients, engine.unflatten(engine.allreduce_bucket(gradients, *where), gradients))

        engine._get_gradients_for_reduction, engine.allreduce_and_copy = collected, averaged
    elif stage < 3:

        def averaged_bucket(gradients: Sequence[Tensor], dtype: Any, rank: int | None = None, **_: Any) -> None:
            assert rank is None, "gradients of stages 1 and 2 are summed for all workers"
            means = optimizer.unflatten(optimizer.allreduce_bucket(gradients, dtype), gradients)
            if stage == 1:
                _point(gradients, means)
                return
            for gradient, mean, (_, _, number) in zip(
                gradients, means, optimizer.ipg_buckets[dtype].params, strict=True
            ):
                if optimizer.is_param_in_current_partition[number]:
                    gradient.copy_(mean)

        optimizer.allreduce_and_copy = averaged_bucket


def _leave(*_: Any, **__: Any) -> None:
    """Reduce nothing."""


def _point(gradients: Sequence[Tensor], means: Sequence[Tensor]) -> None:
    """Make gradients views of their means; copy only into another layout, such as channels-last."""
    for gradient, mean in zip(gradients, means, strict=True):
        if gradient.is_contiguous():
            gradient.data = mean
        else:
            gradient.data.copy_(mean)
