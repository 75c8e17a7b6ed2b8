"""Order of the samples that an experiment's spec names."""

from ditlab.data.loading.full_order import FullOrder
from ditlab.data.loading.lanes_order import LanesOrder
from ditlab.data.loading.order import Order
from ditlab.data.stores.view import View
from ditlab.spec.data import LanesOrderSpec, OrderSpec


def open_order(spec: OrderSpec, view: View, batch_size: int, seed: int) -> Order:
    """Return the order in which a run takes the samples of its training view. Raises UserError where they fill no
    batch."""
    if isinstance(spec, LanesOrderSpec):
        return LanesOrder.from_view(view, batch_size, seed, spec.lanes, spec.window)
    return FullOrder.from_view(view, batch_size, seed)
