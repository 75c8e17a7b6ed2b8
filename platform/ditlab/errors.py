"""The errors that a user sees, and their exit codes."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ditlab.secrets import hide

_LONGEST = 300
"""Characters of an error in a line."""
DISK_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "delete files of yours there, or have your quota raised",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f unlimited`)",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "correct its permissions",
    errno.EPERM: "correct its permissions",
    errno.EMFILE: "raise the limit of open files (`ulimit -n 65536`)",
    errno.ENFILE: "end programs that hold many files open",
    errno.EIO: "check that disk or its connection (`dmesg` has its errors)",
    errno.ESTALE: "mount that file system again",
    errno.ENOTCONN: "mount that file system again",
}
"""Remedies where a file system refuses, by the error's number. Any other number is a mistake of
ours, or of a path.
"""


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


def disk_remedy(error: BaseException | str, other: str = "") -> str:
    """Remedy where a file system refuses, by the error's number, or by its text where that is all
    there is; beside it `other`, which always helps.
    """
    number = getattr(error, "errno", None)
    text = str(error)
    for each, remedy in DISK_REMEDIES.items():
        if number == each or (number is None and os.strerror(each) in text):
            return f"{remedy}, or {other}" if other else remedy
    return other or "correct its path"


def cannot_write(place: object, error: BaseException, other: str) -> UserError:
    """UserError for a place that cannot be written: `runs cannot be written (Read-only file
    system); mount that file system writable, or name another folder.`
    """
    reason = first_line(error)
    return UserError(f"{place} cannot be written ({reason}); {disk_remedy(error, other)}.")


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
