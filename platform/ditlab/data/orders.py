"""Order of the samples that an experiment's spec names, and the check that a node's cache holds what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ditlab.data.loading.order import FullOrder, Order
from ditlab.data.loading.sharded_order import ShardedOrder
from ditlab.data.mixture_order import MixtureOrder, PartDraws, PartOrder, part_seed
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.remote.streamed_store import StreamedStore
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.data import ArrowData, LanesOrderSpec, OrderSpec, order_of
from ditlab.spec.mixture import DataSpec, MixtureData, in_part
from ditlab.spec.values import num_bytes
from ditlab.storage.plain_files import MIB


def training_order(
    spec: DataSpec, data: DataSplits, batch_size: int, seed: int, draw_counts: Mapping[int, Sequence[int]] | None = None
) -> Order:
    """Return the order in which a run takes its training samples: of a mixture, draws over the orders of its parts.

    `draw_counts`: `MixtureOrder.counts` of some positions, to replay later ones. Raises UserError as `open_order` does.
    """
    if not isinstance(spec, MixtureData):
        return open_order(order_of(spec), data.train, batch_size, seed)
    assert data.mixture is not None and isinstance(data.train.store, JoinedStore)
    parts = []
    first = 0
    for name, part in data.mixture.parts.items():
        size = batch_size if data.mixture.draw == "batch" else 1
        try:
            order = FullOrder.from_view(part.train, size, part_seed(seed, name))
        except UserError as error:
            raise UserError(f"data.parts.{name}: {in_part(str(error), name, type(spec.parts[name]))}") from error
        parts.append(PartOrder(order, first, data.train.store.first_numbers[name]))
        first += len(part.train)
    return MixtureOrder(
        parts,
        PartDraws(seed, list(data.mixture.shares.values())),
        batch_size,
        data.mixture.draw,
        is_uniform=data.train.store.is_uniform,
        known={position // batch_size: counts for position, counts in (draw_counts or {}).items()},
    )


def open_order(spec: OrderSpec, view: View, batch_size: int, seed: int) -> Order:
    """Return the order in which a run takes the samples of its training view. Raises UserError where they fill no
    batch."""
    if isinstance(spec, LanesOrderSpec):
        return ShardedOrder.from_view(view, batch_size, seed, spec.lanes, spec.window)
    return FullOrder.from_view(view, batch_size, seed)


def check_cache_room(spec: DataSpec, data: DataSplits, order: Order, workers: int) -> None:
    """Raise UserError where `data.cache` is smaller than the current and the next window of a worker's lanes.

    `workers`: most workers of the run. Stores that are not streamed need no cache.
    """
    need = 0
    for number, rows in order.rows_ahead(np.arange(max(1, order.batch_size // workers))).items():
        part = data.train.store.parts[number]
        if isinstance(part, StreamedStore):
            need += rows * sum(column.row_bytes for column in part.columns.values())
    if not need or not isinstance(spec, ArrowData) or num_bytes(spec.cache) >= need:
        return
    mib = -(-need // MIB)
    raise UserError(
        f"data.cache={spec.cache} is smaller than the current and the next window of the lanes of one worker of "
        f"{workers}, which take {mib:,} MiB; set data.cache to {mib}MiB or more, or lower data.order.window."
    )
