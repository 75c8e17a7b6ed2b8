"""Check that a node's cache holds what a worker's lanes need at a time."""

from collections.abc import Iterator

import numpy as np

from ditlab.data.loading.order import Order
from ditlab.data.mixtures.order import MixtureOrder
from ditlab.data.remote.streamed_store import StreamedStore
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.composition.mixture import DataSpec, MixtureData
from ditlab.spec.sizes import num_bytes

MIB = 2**20


def check_cache_room(spec: DataSpec, data: DataSplits, order: Order, workers: int) -> None:
    """Raise UserError where `data.cache` is smaller than the current and the next window of a worker's lanes.

    `workers`: most workers of the run. Stores that are not streamed need no cache.
    """
    places = np.arange(max(1, order.batch_size // workers))
    if data.mixture is not None and isinstance(order, MixtureOrder):
        views = [part.train for part in data.mixture.parts.values()]
        pairs = zip(views, order.part_columns(places), strict=True)
        need = sum(_bytes_ahead(view, own, columns) for view, (own, columns) in pairs)
    else:
        need = _bytes_ahead(data.train, order, places)
    for knob, size in _caches(spec, "data") if need else ():
        if num_bytes(size) < need:
            mib = -(-need // MIB)
            raise UserError(
                f"{knob}.cache={size} is smaller than the current and the next window of the lanes of one worker of "
                f"{workers}, which take {mib:,} MiB; set {knob}.cache to {mib}MiB or more, or lower "
                f"{knob}.order.window."
            )


def _bytes_ahead(view: View, order: Order, places: np.ndarray) -> int:
    """Return the bytes of the windows that these places of a batch read, as far as their stores are streamed."""
    parts = view.store.parts
    return sum(
        rows * sum(column.row_bytes for column in parts[number].columns.values())
        for number, rows in order.rows_ahead(places).items()
        if isinstance(parts[number], StreamedStore)
    )


def _caches(spec: DataSpec, knob: str) -> Iterator[tuple[str, str]]:
    """Yield the size of each cache by the path of its data in the spec; nothing for copied data."""
    if isinstance(spec, MixtureData):
        for name, part in spec.parts.items():
            yield from _caches(part, f"{knob}.parts.{name}")
    elif getattr(spec, "access", "copy") != "copy":
        yield knob, getattr(spec, "cache", "")
