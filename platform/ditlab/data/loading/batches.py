"""Batches of a store's rows, and their conversion to the fields of a model."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from denoisers.contract import BatchField
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.view import View


def to_device(
    batch: Mapping[str, Tensor],
    fields: Sequence[BatchField],
    columns: Mapping[str, Column],
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Convert a batch to a model's fields: moved in the store's dtype, then converted on the device.

    A field with a `value_range` is mapped linearly from the column's range onto it, in float32; the rest is cast.
    """
    converted = {}
    for field in fields:
        moved = batch[field.name].to(device, non_blocking=True).to(getattr(torch, field.dtype))
        source, target = columns[field.name].value_range, field.value_range
        if target is not None and source is not None:
            # one division and one addition keep both ends of the range exact: x/127.5 - 1 for bytes onto (-1, 1)
            ratio = (source[1] - source[0]) / (target[1] - target[0])
            moved = moved.div(ratio).add_(target[0] - source[0] / ratio)
        converted[field.name] = moved
    return converted


def held_out_batches(
    view: View, fields: Sequence[BatchField], size: int, limit: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Iterate over the view's first `limit` rows (None: all), `size` at a time, in the store's dtype.

    Rows come in the view's own order, where there are several buckets bucket by bucket. The last batch (of a bucket)
    may be smaller. Nothing is drawn: two calls give the same batches.
    """
    for rows in view.batches(size, limit):
        yield {field.name: view.gather(field.name, rows.indices) for field in fields}
