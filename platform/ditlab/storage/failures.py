"""What is said of a place that does not answer."""

from ditlab.errors import UserError


class Unreachable(UserError):
    """A store does not answer or refuses; that says nothing about what lies there, and may pass."""


def first_line(error: BaseException) -> str:
    """An error in a line: pyarrow's hold a request's whole answer."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error.strerror, int):
        return str(error.strerror).splitlines()[0][:300]
    lines = str(error).splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
