"""The errors that a user sees, and their exit codes."""

from collections.abc import Sequence
from pathlib import Path

from ditlab.secrets import hide

_LONGEST = 300
"""Characters of an error in a line."""


class UserError(Exception):
    """An error that the user can correct (exit code 2, no traceback). The message names the field
    or option, its value and the remedy: `batch.size=100 is no multiple of batch.micro=64; set
    batch.size to 64 or 128.` `kind` is the class of the error, as `--json` prints it."""

    exit_code = 2
    kind = "user_error"


class BudgetUsedUp(UserError):
    """A budget of device hours has nothing left, or too little for what was asked for: nothing was
    started.
    """

    kind = "budget"


class Unreachable(UserError):
    """A store does not answer or refuses access; it may answer later, and its content is
    unknown.
    """


class StorageOutage(Unreachable):
    """A store that answered before does not answer for too long (exit code 1): the input is right,
    and the run failed. Its kind of failure is `storage_unreachable` (`ditlab.runs.failures`)."""

    exit_code = 1
    kind = "storage_unreachable"


class RunFailed(Exception):
    """A run started and failed (exit code 1); the message gives the reason in one paragraph. `kind`
    is the class of the failure, as the run's tag `ditlab.failure` has it (`ditlab.runs.failures`).
    """

    exit_code = 1

    def __init__(self, message: str, kind: str = "crash") -> None:
        super().__init__(message)
        self.kind = kind


def shortened(names: Sequence[str], most: int) -> str:
    """List the first names for people: `a, b and 3 more`; empty for none."""
    shown = ", ".join(names[:most])
    if len(names) > most:
        return f"{shown} and {len(names) - most:,} more"
    return shown


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """Suggest the valid name nearest to `name`: `did you mean 'depth'?`; list all where none is
    near.
    """
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    if known:
        return "known: " + ", ".join(sorted(known))
    return "there are none"


def nearest_file(path: Path) -> str:
    """Suggest the file beside a missing one whose name is nearest: ` (did you mean
    'pictures.yaml'?)`; else empty.
    """
    import difflib

    try:
        stems = {
            each.stem: each.name for each in path.parent.iterdir() if each.suffix == path.suffix
        }
    except (OSError, ValueError):  # ValueError: a NUL character
        return ""
    close = difflib.get_close_matches(path.stem, [*stems], n=1, cutoff=0.7)
    if close:
        return f" (did you mean '{stems[close[0]]}'?)"
    return ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without secrets and full stop: pyarrow's hold a
    request's whole answer.
    """
    reason = error.strerror if isinstance(error, OSError) else None  # some libraries' is a number
    text = reason if reason and isinstance(reason, str) else str(error)
    lines = [line for line in hide(text).splitlines() if line.strip()]
    if lines:
        return lines[0].strip()[:_LONGEST].rstrip(".")
    return type(error).__name__
