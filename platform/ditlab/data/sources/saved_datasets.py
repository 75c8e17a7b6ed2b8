"""Folders that the Hugging Face library `datasets` has saved to a disk (`save_to_disk`), found without the library."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from ditlab.data.block_imports.listing import SourceFile, SourceListing
from ditlab.data.block_imports.opening import read_source
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, parse_json

STATE, SPLITS = "state.json", "dataset_dict.json"
_MOST_BYTES = 64 * MIB


def saved_files(state: SourceFile, files: Mapping[str, SourceFile]) -> list[SourceFile] | None:
    """Return the data files that a `state.json` names, in its order; None for another program's file of this name.

    Raises UserError for a file that is not there, and for rows in an order of their own, which older versions wrote.
    """
    content = _json(state)
    named = content.get("_data_files") if isinstance(content, dict) else None
    if not isinstance(named, list):
        return None
    if content.get("_indices_data_files") or content.get("_indices_files"):
        raise UserError(f"{state.place} orders its rows by a file of indices; save it again with a newer `datasets`.")
    found = []
    for each in named:
        name = str(each.get("filename") if isinstance(each, dict) else each)
        file = files.get(str(PurePosixPath(state.name).parent / name))
        if file is None:
            raise UserError(f"{state.place} names {name}, which is not there; copy the folder whole.")
        found.append(file)
    return found


def refuse_splits(knob: str, listing: SourceListing) -> None:
    """Raise UserError for a folder of several data sets by split, with their names: one is read."""
    splits = next((file for file in listing.files if file.name == SPLITS), None)
    if splits is None:
        return
    content = _json(splits)
    names = content.get("splits") if isinstance(content, dict) else None
    if isinstance(names, list) and names:
        listed = ", ".join(map(str, names))
        one = f"{knob}={listing.source.rstrip('/')}/{names[0]}"
        raise UserError(f"{knob}={listing.source} holds splits ({listed}); name one of them, such as {one}.")


def _json(file: SourceFile) -> Any:
    try:
        return parse_json(read_source(file, _MOST_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{file.place} cannot be read ({first_line(error)}); copy it again.") from error
