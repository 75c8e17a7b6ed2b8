"""Order of the samples that an experiment's spec names."""

from collections.abc import Mapping, Sequence

from ditlab.data.loading.full_order import FullOrder
from ditlab.data.loading.lanes_order import LanesOrder
from ditlab.data.loading.order import Order
from ditlab.data.mixtures.draws import PartDraws, part_seed
from ditlab.data.mixtures.joined_store import JoinedStore
from ditlab.data.mixtures.order import MixtureOrder, PartOrder
from ditlab.data.splits import DataSplits, Mixture
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.spec.composition.mixture import DataSpec, MixtureData, in_part
from ditlab.spec.data import LanesOrderSpec, OrderSpec, order_of


def training_order(
    spec: DataSpec,
    data: DataSplits,
    batch_size: int,
    seed: int,
    known_draws: Mapping[int, Sequence[int]] | None = None,
) -> Order:
    """Return the order in which a run takes its training samples: of a mixture, draws over the orders of its parts.

    `known_draws`: `MixtureOrder.counts` of some positions, from which later ones are replayed. Raises UserError as
    `open_order` does.
    """
    if not isinstance(spec, MixtureData):
        return open_order(order_of(spec), data.train, batch_size, seed)
    assert data.mixture is not None and isinstance(data.train.store, JoinedStore)
    parts, first = [], 0
    for name, part in data.mixture.parts.items():
        order = _part_order(name, spec, data.mixture, batch_size, part_seed(seed, name))
        parts.append(PartOrder(order, first, len(part.train), data.train.store.first_number(name)))
        first += len(part.train)
    return MixtureOrder(
        parts,
        PartDraws(seed, list(data.mixture.shares.values())),
        batch_size,
        data.mixture.draw,
        is_uniform=data.train.store.is_uniform,
        known={position // batch_size: counts for position, counts in (known_draws or {}).items()},
    )


def _part_order(name: str, spec: MixtureData, mixture: Mixture, batch_size: int, seed: int) -> Order:
    """Return a part's own order: of batches, or where samples draw of a sample for each lane."""
    view, order = mixture.parts[name].train, order_of(spec.parts[name])
    if mixture.draw == "sample":
        batch_size = order.lanes if isinstance(order, LanesOrderSpec) else 1
        if len(view) < batch_size:
            raise UserError(
                f"data.parts.{name}.order.lanes={batch_size} is more than the {len(view)} training samples of that "
                "part; lower it."
            )
    try:
        return open_order(order, view, batch_size, seed)
    except UserError as error:
        raise UserError(f"data.parts.{name}: {in_part(str(error), name, type(spec.parts[name]))}") from error


def open_order(spec: OrderSpec, view: View, batch_size: int, seed: int) -> Order:
    """Return the order in which a run takes the samples of its training view. Raises UserError where they fill no
    batch."""
    if isinstance(spec, LanesOrderSpec):
        return LanesOrder.from_view(view, batch_size, seed, spec.lanes, spec.window)
    return FullOrder.from_view(view, batch_size, seed)
