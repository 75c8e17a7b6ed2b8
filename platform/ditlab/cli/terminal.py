"""Text on a terminal or in a log, without secrets and control characters, and progress as plain
lines.
"""

from __future__ import annotations

import io
import math
import os
import sys
import threading
import time
from collections.abc import Callable

import click

from ditlab.errors import UserError
from ditlab.secrets import hide

# Line breaks and tabs are layout. Any other control character moves the cursor, erases lines, sets
# a window's title or reverses what is read; lone surrogates (bytes of a file's name that are no
# UTF-8) cannot be printed at all.
_CONTROLS = (
    *range(0x09),
    *range(0x0B, 0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}
FIRST_LINE = 1.0
"""Seconds after which the first line is printed: with the start of the command before, within 2
s.
"""
INTERVAL_VARIABLE = "DITLAB_PROGRESS_SECONDS"
"""Environment variable with the longest time between two lines in the first hour; 0: no lines."""
INTERVAL = 30.0  # seconds, where the variable is not set
LONGEST_INTERVAL = 20  # times the interval, after days
# of the time since the start: where that is longer than the interval, it takes its place
_SHARE = 0.01
_POLL = 0.25  # seconds


def escape_for_terminal(text: str) -> str:
    """Hide secrets in a text, and make its control characters visible: an escape byte becomes
    `\\x1b`.
    """
    return hide(text).translate(_ESCAPES)


def escape_line(text: str) -> str:
    """Text in one line: line breaks and tabs become `\\n` and `\\t`."""
    return escape_for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def open_closed_streams() -> None:
    """Give a standard stream that is closed (`<&-`) a file that takes all and holds nothing: the
    first files that are opened would take its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def escape_unencodable() -> None:
    """Make standard output and error write `\\xb7` for a character that their encoding lacks, as
    ASCII does `·`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_encodable(text: str, stream: object) -> bool:
    """Return True if a stream's encoding has all characters of a text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Write a text in the encoding of standard output or error, which is told: click alone writes
    UTF-8 where it is ASCII.
    """
    click.echo(text, file=sys.stderr if err else sys.stdout, nl=nl)


class PlainLines:
    """Lines of progress from a thread, also where nothing has been reported since the last. Use as
    a context manager.

    One comes 1, 2, 4, 8, 16, 32 s after the start, then every 30 s, ever more sparsely after an
    hour. It begins with the time since the start: `[0:32] step 120/600 · ...`.
    """

    def __init__(
        self, describe: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Plan the lines; `describe` gives the text of each. Raises UserError where the variable
        holds no number.
        """
        text = os.environ.get(INTERVAL_VARIABLE, "")
        try:
            self._interval = float(text) if text else INTERVAL
        except ValueError:
            self._interval = math.nan
        if not 0 <= self._interval < math.inf:
            raise UserError(
                f"{INTERVAL_VARIABLE}={text} is no time in seconds; set a number, 0 for no "
                "lines of progress, or unset it."
            )
        self._describe = describe
        self._clock = clock
        self._start = clock()
        self._next = self._start + min(FIRST_LINE, self._interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ditlab-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def tick(self) -> None:
        """Print a line if one is due, and plan the next one."""
        # `--help` would wait for all that it imports
        from ditlab.reports.formatting import format_clock

        now = self._clock()
        if self._interval and now >= self._next:
            elapsed = now - self._start
            longest = min(max(self._interval, _SHARE * elapsed), LONGEST_INTERVAL * self._interval)
            self._next = now + min(elapsed, longest)
            print_plain(f"[{format_clock(elapsed)}] {self._describe()}")

    def _run(self) -> None:
        while not self._stop.wait(_POLL):
            self.tick()


def print_plain(message: str) -> None:
    """Print a line on standard error in one write, without secrets and control characters."""
    sys.stderr.write(f"{escape_for_terminal(message)}\n")
    sys.stderr.flush()
