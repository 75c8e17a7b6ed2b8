"""Stores named by a user: by a URI, a folder's path or a plain name."""

from pathlib import Path

from ditlab.data.remote.access import COPY, RemoteAccess, open_remote
from ditlab.data.remote.node_copy import Notify, write_to_stderr
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.spec.uris import is_uri


def open_named_store(
    knob: str,
    name: str,
    home: Home,
    verify: bool = True,
    notify: Notify = write_to_stderr,
    access: RemoteAccess = COPY,
) -> AnyStore:
    """Open the store that a user names by a URI, a folder's path or a plain name.

    `knob` is the setting that holds the name; `verify` and `notify` are as in `splits.open_data`; `access` is for URIs
    alone. Raises UserError for a store that is missing (with the command that makes it) or altered.
    """
    if is_uri(name):
        return open_remote(knob, name, home, verify, notify, access)
    return open_store(store_folder(name, home), verify)


def store_folder(name: str, home: Home) -> Path:
    """Return the absolute folder of a store: one in the working directory or, for a plain name, below `home.stores`.

    A store in the working directory comes first; a folder there without a store hides no store of the home's. Links in
    the path are followed here, once. Raises UserError for a path that leads nowhere, as a link in a circle does.
    """
    try:
        here = Path(name).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle, or a user without a home
        raise UserError(f"{name[:200]} leads to no folder ({first_line(error)}); name the folder of a store.") from None
    known = home.stores / name
    is_plain = len(Path(name).parts) == 1
    return known if is_plain and holds_store(known) and not holds_store(here) else here
