"""Stores of the data sources of other packages."""

from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.plain_names import plain_name
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.data_sources import DATA_SOURCES, DataSource


def open_source(spec: DataSource, home: Home, verify: bool = True) -> AnyStore:
    """Open the store of a source under `home.stores`, written at its first use.

    Raises UserError where the source's package writes no store.
    """
    path = home.stores / plain_name(spec.store_name())
    if not holds_store(path):
        home.ensure()
        spec.write(path)
        if not holds_store(path):
            plugin = DATA_SOURCES.find(spec.kind)
            origin = plugin.origin if plugin else "its package"
            raise UserError(f"data.kind={spec.kind}: {origin} has written no store to {path}; update that package.")
    return open_store(path, verify)
