"""Order of the samples that an experiment's spec names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ditlab.data.loading.order import FullOrder, Order
from ditlab.data.mixture_order import MixtureOrder, PartDraws, PartOrder, part_seed
from ditlab.data.mixture_store import JoinedStore
from ditlab.data.splits import DataSplits
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.data import FullOrderSpec, OrderSpec, order_of
from ditlab.spec.mixture import DataSpec, MixtureData, in_part


def training_order(
    spec: DataSpec,
    data: DataSplits,
    batch_size: int,
    seed: int,
    draw_counts: Mapping[int, Sequence[int]] | None = None,
) -> Order:
    """Return the order in which a run takes its training samples: of a mixture, draws over the
    orders of its parts.

    `draw_counts`: `MixtureOrder.counts` of some positions, to replay later ones. Raises UserError
    as `open_order` does.
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
            raise UserError(
                f"data.parts.{name}: {in_part(str(error), name, type(spec.parts[name]))}"
            ) from error
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
    """Return the order in which a run takes the samples of its training view. Raises UserError
    where they fill no batch."""
    if isinstance(spec, FullOrderSpec):
        return FullOrder.from_view(view, batch_size, seed)
    order: Order = spec.sample_order(view, batch_size, seed)
    return order
