"""The errors that a person sees, and the exit code that each becomes."""

from ditlab.secrets import hide

_LONGEST = 300
"""Characters of an error in a line."""


class UserError(Exception):
    """Something in the user's hands is wrong (exit code 2, no traceback).

    The message names the knob, its value and the remedy:
    `batch.size=100 is no multiple of batch.micro=64; set batch.size to 64 or 128.`
    """

    exit_code = 2


class Unreachable(UserError):
    """A store does not answer or refuses; that says nothing about what lies there, and may pass."""


class RunFailed(Exception):
    """A run started and failed (exit code 1); the message says why, in one paragraph.

    `kind` is the class of the failure, as the run's tag `ditlab.failure` has it (`ditlab.runs.failures`).
    """

    exit_code = 1

    def __init__(self, message: str, kind: str = "crash") -> None:
        super().__init__(message)
        self.kind = kind


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """Names the valid name nearest to `name`: `did you mean 'depth'?`; all of them where none is near."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(sorted(known)) if known else "there are none"


def first_line(error: BaseException) -> str:
    """An error's message in one line, without secrets and full stop: pyarrow's hold a request's whole answer."""
    is_named = isinstance(error, OSError) and isinstance(error.strerror, str) and error.strerror
    text = error.strerror if isinstance(error, OSError) and is_named else str(error)
    lines = [line for line in hide(str(text)).splitlines() if line.strip()]
    return lines[0].strip()[:_LONGEST].rstrip(".") if lines else type(error).__name__
