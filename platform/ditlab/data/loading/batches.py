"""Batches of a store's rows, and their conversion to the fields of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ditlab.data.stores.manifest import Columns
from ditlab.data.stores.view import View
from ditlab_models.contract import BatchField


def to_device(
    batch: Mapping[str, Tensor],
    fields: Sequence[BatchField],
    columns: Columns,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Convert a batch to a model's fields: moved in the store's dtype, then converted on the
    device.

    A field with a `value_range` is mapped linearly from the column's range onto it, in float32; the
    rest is cast.
    """
    converted = {}
    for field in fields:
        moved = batch[field.name].to(device, non_blocking=True)
        source = columns[field.name].value_range
        target = field.value_range
        if target is None or source is None:
            moved = moved.to(getattr(torch, field.dtype))
        else:
            # one division and one addition keep both ends of the range exact: x/127.5 - 1 for bytes
            # onto (-1, 1)
            ratio = (source[1] - source[0]) / (target[1] - target[0])
            moved = _map_linearly(moved, ratio, target[0] - source[0] / ratio)
        converted[field.name] = moved
    return converted


def _map_linearly(values: Tensor, ratio: float, offset: float) -> Tensor:
    """Return values / ratio + offset in float32, the same bits on every device."""
    if values.device.type != "cpu":
        return values.float().div(ratio).add_(offset)
    # NumPy stays on this thread. Two threads of torch, which spin at barriers, took 1,300 to 2,500
    # microseconds for 128 small images on two cores that others used as well, and up to half a
    # second; NumPy took 73.
    found = torch.empty(values.shape)
    out = found.numpy()
    np.divide(values.numpy(), ratio, out=out, dtype=np.float32, casting="unsafe")
    np.add(out, np.float32(offset), out=out)
    return found


def held_out_batches(
    view: View, fields: Sequence[BatchField], size: int, limit: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Iterate over the view's first `limit` rows (None: all), up to `size` at a time, in the
    store's dtype.

    Rows come in the view's own order, bucket by bucket; two calls give the same batches.
    """
    for rows in view.batches(size, limit):
        yield {field.name: view.gather(field.name, rows.indices) for field in fields}
