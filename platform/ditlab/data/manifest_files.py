"""Reading the manifest in a store's folder."""

import json
from pathlib import Path
from typing import TypeVar

from ditlab.data.manifest import FORMAT_VERSION, Record
from ditlab.errors import UserError

Kind = TypeVar("Kind", bound=Record)


def read_record(file: Path, kind: type[Kind]) -> Kind:
    """The record of a kind in a file. Raises UserError where it is missing, unreadable or of another version."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file.parent} holds no store ({file.name}: {error.strerror}); name the folder of one, or one below "
            "DITLAB_HOME/stores, or write one with `ditlab data import`."
        ) from None
    try:
        version = json.loads(text)["version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{file} is of format version {version}, and this ditlab reads version {FORMAT_VERSION}; "
                "import the data again with `ditlab data import`."
            )
        return kind.model_validate_json(text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        problem = str(error).splitlines()[0]
        raise UserError(f"{file} is not a store's manifest ({problem}); import the data again.") from error


def altered(file: Path, what: str) -> UserError:
    """The complaint about a manifest whose `what` do not give its fingerprint."""
    return UserError(f"{file} was altered: its {what} do not give its fingerprint; import the data again.")
