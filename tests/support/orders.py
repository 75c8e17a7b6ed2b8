"""Whole epochs of an order."""

import numpy as np

from ditlab.data.loading.order import Order


def epoch_batches(order: Order, epoch: int) -> np.ndarray:
    """Return all batches of an epoch, int64 (batches_per_epoch, batch_size)."""
    return order.batches(epoch * order.batches_per_epoch, order.batches_per_epoch)
