"""Stores by name: a folder's name has its fingerprint, `pets@1a2b3c4d5e6f`; a name is a small file
that points to one.

A user names a store by a URI (copied to the node), a folder's path, NAME or NAME@fingerprint.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationError

from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.copies import Notify, open_remote_store, write_to_stderr
from ditlab.data.stores.receipt import ManifestRecord, PlainName
from ditlab.data.stores.writing import WrittenStore
from ditlab.errors import UserError, first_line, shortened
from ditlab.home import Home
from ditlab.spec.uris import is_uri
from ditlab.spec.values import escaped, format_bytes
from ditlab.storage.files import folder_size, sync_folder, write_durably, writing_into

SHOWN = 12
"""Digits of a fingerprint in the name of a store's folder."""
AT = "@"
"""Sign between a name and a fingerprint."""
_MOST_BYTES = 2**16
"""Bytes of a name's file that are read: it holds two short texts, and any file may be given."""


class StoreName(ManifestRecord):
    """Content of the file of a name."""

    format: Literal["ditlab-name"] = "ditlab-name"
    version: Literal[1] = 1
    store: PlainName
    """Folder beside the file: `pets@1a2b3c4d5e6f`."""
    source: Annotated[str, BeforeValidator(escaped)] = ""
    """Folder or URI that it was imported from, by which another one that gives the same name is
    told; empty where the store grew."""


def open_named_store(
    option: str,
    name: str,
    home: Home,
    verify: bool = True,
    notify: Notify = write_to_stderr,
) -> AnyStore:
    """Open the store that a user names by a URI, a folder's path, a plain name or NAME@fingerprint.

    `option` is the setting that holds the name; `verify` and `notify` are as in `splits.open_data`.
    Raises UserError for a store that is missing (with the command that makes it) or altered, and as
    `copies.open_remote_store` does.
    """
    if not is_uri(name):
        folder = store_folder(name, home)
        if not holds_store(folder):
            holds = f"{folder} holds no store"
            if is_plain_name(name):
                holds += f", nor does {home.stores / name}"
            raise UserError(
                f"{option}={name}: {holds}; name the folder of one, or one that `ditlab data "
                "list` lists, or write one with `ditlab data import`."
            )
        return open_store(folder, verify)
    return open_remote_store(option, name, home, verify, notify)


def store_folder(name: str, home: Home) -> Path:
    """Return the absolute folder of a store: one in the working directory or, for a plain name,
    below `home.stores`.

    A store in the working directory comes first; a folder there without a store hides no store of
    the home's. Links in the path are followed here, once, and so is a name. Raises UserError for a
    path that leads nowhere, as a link in a circle does, and for a fingerprint's beginning that
    several stores have.
    """
    try:
        here = Path(name).expanduser().resolve()
    # RuntimeError: a circle, or a user without a home
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{name[:200]} leads to no folder ({first_line(error)}); name the folder of a store."
        ) from None
    if os.path.islink(here):  # noqa: PTH114 - a circle, on which Python 3.13 does not raise; a long name is no error
        raise UserError(
            f"{name[:200]} leads to no folder (a link in a circle); name the folder of a store."
        )
    folder = pointed_folder(here)
    if is_plain_name(name) and not holds_store(folder):
        of_home = pointed_folder(home.stores / name)
        if holds_store(of_home):
            return of_home
    return folder


def is_plain_name(name: str) -> bool:
    """Return True for the name of a store of the home, which is no path."""
    return len(Path(name).parts) == 1


def pointed_folder(path: Path) -> Path:
    """Return the folder that a path names: the path itself, that of a name's file, or of
    NAME@FINGERPRINT's beginning.

    Raises UserError for a file that is no name, and for a beginning that several stores have.
    """
    with suppress(OSError):  # a name that is too long
        if path.is_file():
            return path.with_name(_read_name(path).store)
        name, at, digits = path.name.rpartition(AT)
        if at and digits and not path.exists() and path.parent.is_dir():
            found = sorted(
                path.parent.glob(f"{glob.escape(name)}{AT}{glob.escape(digits[:SHOWN])}*")
            )
            if len(found) > 1:
                listed = ", ".join(each.name for each in found)
                raise UserError(
                    f"{path.name} is the beginning of several stores' names ({listed}); write "
                    "one whole."
                )
            return found[0] if found else path
    return path


def _read_name(path: Path) -> StoreName:
    try:
        with path.open("rb") as file:
            return StoreName.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{path} is no name of a store ({first_line(error)}); name the folder of a store, "
            "or import the data again."
        ) from None


def portable_name(folder: Path, home: Home) -> str:
    """Return what names a store in a spec of any folder: of the home by its folder's name, else by
    its path.
    """
    if folder.parent == home.stores and AT in folder.name:
        return folder.name
    return str(folder)


def publish(
    staged: AnyStore,
    out: Path,
    users: Callable[[Path], Sequence[str]],
    replace: bool,
    say: Callable[[str], None],
    source: str = "",
) -> WrittenStore:
    """Move a store that was written aside to its folder NAME@FINGERPRINT below `out`, and let its
    name point there.

    `users`: the runs that were trained on a store's folder; `source`: what was imported, empty
    where the name says it. A store that the name meant before stays where runs need it, and goes
    otherwise. Raises UserError, with the new store in its folder, where runs need the old one or it
    came from another source, and not `replace`; and where `out` holds a folder of the name.
    """
    name = staged.path.name
    place = out / name
    if place.is_dir():
        raise UserError(
            f"{place} is a folder of its own; choose another name with --name, or remove that "
            "folder."
        )
    meant = _read_name(place) if place.exists() else None
    new = StoreName(store=f"{name}{AT}{staged.fingerprint[:SHOWN]}", source=source)
    target = out / new.store
    is_there = _holds_whole(target, staged.fingerprint)
    with writing_into(out):
        if is_there:
            shutil.rmtree(staged.path)
        else:
            shutil.rmtree(target, ignore_errors=True)
            staged.path.rename(target)
        sync_folder(out)
    store = open_store(target, verify=False)
    if meant and meant.store == new.store:
        return WrittenStore(store, "unchanged" if is_there else "replaced")
    if meant and (before := out / meant.store).exists():
        size = format_bytes(folder_size(before))
        needed = shortened(users(before), 3)
        if not replace:
            _refuse_other_data(name, meant, new, size, needed)
        if needed:
            say(f"{name} now means {new.store}; {meant.store} ({size}) stays for {needed}.")
        else:
            shutil.rmtree(before, ignore_errors=True)
    write_durably(place, json.dumps(new.model_dump()).encode())
    return WrittenStore(store, "replaced" if meant else "written")


def _holds_whole(folder: Path, fingerprint: str) -> bool:
    """Return True for a folder with an unaltered store of a fingerprint."""
    try:
        store = open_store(folder, verify=False)
        store.verify()
    except UserError:
        return False
    return store.fingerprint == fingerprint


def _refuse_other_data(name: str, meant: StoreName, new: StoreName, size: str, needed: str) -> None:
    """Raise UserError where runs (`needed`) were trained on what a name means, or where that came
    from another source.

    `size`: that of the store which the name means.
    """
    if needed:
        raise UserError(
            f"{name} means {meant.store}, on which {needed} trained, and the new data are "
            f"other: they are {new.store}. Name them so in a spec, give another --name, or "
            f"give --replace to let {name} mean them ({size} of the old store stay for those "
            "runs)."
        )
    if new.source and meant.source not in ("", new.source):
        raise UserError(
            f"{name} means {meant.store}, imported from {meant.source}, and {new.source} is "
            f"another source: its store is {new.store}. Give it another --name, or give "
            f"--replace to let {name} mean it ({meant.store}, {size}, on which no run trained, "
            "then goes)."
        )
