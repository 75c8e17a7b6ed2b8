"""Kinds of errors that MLflow's client raises, told apart by their codes."""

from __future__ import annotations

from ditlab.tracking.database_damage import is_damage

_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
_DENIALS = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}


class RunGoneError(Exception):
    """The run was deleted in MLflow; the journal keeps everything."""


def is_refusal(error: Exception) -> bool:
    """Return True if MLflow answered that the data is wrong; any other error may pass and is tried again.

    It says the same of data for which its local database has a damaged page.
    """
    return _code(error) in _REFUSALS and not is_damage(str(error))


def is_missing(error: Exception) -> bool:
    """Return True if the run or experiment does not exist."""
    return _code(error) == "RESOURCE_DOES_NOT_EXIST"


def is_unknown_call(error: Exception) -> bool:
    """Return True if the server is of an MLflow that does not know this call."""
    return _code(error) in ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED")


def already_exists(error: Exception) -> bool:
    """Return True if another process has made it first."""
    return _code(error) == "RESOURCE_ALREADY_EXISTS"


def denial_status(error: Exception) -> int | None:
    """HTTP status, 401 or 403, of an answer that refuses this process's name or password; None for any other error."""
    answer = getattr(error, "response", None)  # of an artifact's upload
    status = _DENIALS.get(_code(error)) or getattr(answer, "status_code", None)
    return status if status in (401, 403) else None


def _code(error: Exception) -> str:
    return str(getattr(error, "error_code", None))
