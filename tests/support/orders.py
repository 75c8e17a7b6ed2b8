"""Whole epochs of an order, and data whose order may be by streams."""

from typing import Any

import numpy as np

from ditlab.data.loading.order import Order
from ditlab.spec.mixture import with_sources
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from ditlab_models.extensions import kinds_of


def arrow_data(**fields: Any) -> Any:
    """Return an `ArrowData` whose order may be by streams, as the class of an experiment has it."""
    return kinds_of(with_sources((), (InterleavedOrderSpec,)))["arrow"](**fields)


def epoch_batches(order: Order, epoch: int) -> np.ndarray:
    """Return all batches of an epoch, int64 (batches_per_epoch, batch_size)."""
    return order.batches(epoch * order.batches_per_epoch, order.batches_per_epoch)
