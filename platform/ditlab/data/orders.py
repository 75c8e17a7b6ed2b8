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
from ditlab.spec.data import LanesOrderSpec, OrderSpec, order_of
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
        own = order_of(spec.parts[name])
        size = batch_size
        num = len(part.train)
        if data.mixture.draw == "sample":  # a batch of a part's own order is a sample for each lane
            size = own.lanes if isinstance(own, LanesOrderSpec) else 1
            if num < size:
                raise UserError(
                    f"data.parts.{name}.order.lanes={size} is more than the {num} training samples of that part; lower "
                    "it."
                )
        try:
            order = open_order(own, part.train, size, part_seed(seed, name))
        except UserError as error:
            raise UserError(f"data.parts.{name}: {in_part(str(error), name, type(spec.parts[name]))}") from error
        parts.append(PartOrder(order, first, data.train.store.first_numbers[name]))
        first += num
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
    need = _window_bytes(data, order, np.arange(max(1, order.batch_size // workers)))
    if not need:
        return
    sources = {"data": spec}
    if isinstance(spec, MixtureData):
        sources = {f"data.parts.{name}": part for name, part in spec.parts.items()}
    for option, source in sources.items():
        if getattr(source, "access", "copy") == "copy":
            continue
        size = getattr(source, "cache", "")
        if size and num_bytes(size) < need:
            mib = -(-need // MIB)
            raise UserError(
                f"{option}.cache={size} is smaller than the current and the next window of the lanes of one worker of "
                f"{workers}, which take {mib:,} MiB; set {option}.cache to {mib}MiB or more, or lower "
                f"{option}.order.window."
            )


def _window_bytes(data: DataSplits, order: Order, places: np.ndarray) -> int:
    """Return the bytes of the streamed rows that are read ahead for places of the batches."""
    parts = [(data.train, order, places)]
    if data.mixture is not None and isinstance(order, MixtureOrder):
        views = [part.train for part in data.mixture.parts.values()]
        parts = [(view, *own) for view, own in zip(views, order.part_columns(places), strict=True)]
    num_bytes = 0
    for view, own_order, own_places in parts:
        for number, rows in own_order.rows_ahead(own_places).items():
            part = view.store.parts[number]
            if isinstance(part, StreamedStore):
                num_bytes += rows * sum(column.row_bytes for column in part.columns.values())
    return num_bytes
