"""Signals that ask a command to end: for a final checkpoint first, then for its end at once.

SIGINT, SIGTERM and SIGHUP are one request, and so are SIGUSR1, SIGUSR2 and SIGXCPU, by which batch
systems announce that they will kill a job. One that is ignored as the process starts, as under
nohup, stays ignored.
"""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

GRACE = 25.0
"""Seconds from the first signal to the end of a training run, with its final checkpoint."""
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that batch systems send before they kill: Slurm's `--signal`, SGE's `-notify`, a soft
limit of CPU time.
"""
WORKER_SIGNALS = (signal.SIGTERM, signal.SIGHUP, *WARNINGS)
"""Signals that ask a worker of Ray to save. SIGINT is Ray's own way to cancel its work."""
SIGNALS = (signal.SIGINT, *WORKER_SIGNALS)
END_TIMEOUT = 5.0
"""Seconds to tidy up in, after a signal that ends a run at once."""
# seconds in which several signals are one request: `timeout` sends each twice, a terminal HUP and
# TERM
_SAME = 0.5


class Interruption(KeyboardInterrupt):
    """Error that a signal raises, a class of its own.

    KeyboardInterrupt itself, where it passes through `exec` of a text, as a dataclass is made,
    marks the interpreter, which under `python -m` then ends by SIGINT instead of with exit code
    130.
    """


class StopRequests:
    """Number of requests to stop a run, and their reason."""

    count = 0
    reason = "interrupted"
    """Value of the topic `stop` that workers read."""
    message = "stopping after a final checkpoint; once more ends at once."
    """Warning that answers the first request; empty for none."""

    def request(self) -> None:
        """Ask for the end of the run from within, for a reason that has been said."""
        self.message = ""
        self.count = self.count + 1


class _Command:
    """State of the command that this process runs."""

    is_running = False
    """False in a notebook or a script, whose process is not ours to end."""
    last_signal = 0.0
    """Monotonic time."""
    is_interrupted = False
    """True once a signal has raised an error in this command."""
    skips_exit = False
    """True where what libraries do at the process's end would wait."""
    timers: list[threading.Timer]


_command = _Command()
_command.timers = []


@contextmanager
def command_signals() -> Iterator[None]:
    """Make a signal raise KeyboardInterrupt in the block; the next, or no end in `GRACE`, ends the
    process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _cancel_timers()  # of an interrupted command before this one: they would end this one
    before = _handle(_interrupt)
    hook = sys.unraisablehook
    sys.unraisablehook = _show_unraisable
    _command.is_running = True
    _command.is_interrupted = False
    _command.last_signal = 0.0
    try:
        yield
    except SystemExit as end:
        if _command.skips_exit:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 0)
        raise
    finally:
        sys.unraisablehook = hook
        if not is_ending():  # else they bound what libraries do at the process's end as well
            _command.is_running = False
            _cancel_timers()
        _restore(before)


@contextmanager
def stop_signals(grace: float = GRACE) -> Iterator[StopRequests]:
    """Count a first signal in the main thread, and raise KeyboardInterrupt from the second on.

    It is raised, too, shortly before `grace` seconds have passed since the first: what can be saved
    by then is saved.
    """
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    deadline: list[threading.Timer] = []

    def count(number: int, frame: Any) -> None:
        if _is_same_request(number):
            return
        requests.count += 1
        if requests.count > 1:
            _interrupt_within(END_TIMEOUT)
        main = threading.get_ident()
        again = number
        if number == signal.SIGXCPU:  # ignored by now
            again = signal.SIGTERM
        deadline.append(
            _call_later(
                grace - min(END_TIMEOUT, grace / 2), lambda: signal.pthread_kill(main, again)
            )
        )
        _call_later(grace, end_process)

    before = _handle(count)
    try:
        yield requests
    finally:
        for timer in deadline:
            timer.cancel()
        if requests.count < 2 or not _command.is_running:
            _restore(before)


def is_ending() -> bool:
    """Return True once a signal has asked this command to end."""
    return _command.last_signal > 0


def is_interrupted() -> bool:
    """Return True once a signal has raised an error in this command, which a library may have made
    another one of.
    """
    return _command.is_interrupted


def abandon_exit() -> None:
    """Make this command end without what libraries do at a process's end."""
    _command.skips_exit = True


def end_process(sentence: str = "interrupted.") -> None:
    """End this command and the processes it started, without a wait; does nothing where no command
    runs.
    """
    if not _command.is_running:
        return
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    with suppress(OSError):
        shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a cursor that a progress display hid
        os.write(2, f"{shown}ditlab: {sentence}\n".encode())
    os._exit(130 if is_ending() else 1)


def _show_unraisable(unraisable: Any) -> None:
    """Show an exception of a destructor, but for an interruption that came in one: the process ends
    in time anyhow.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _interrupt(number: int, frame: Any) -> None:
    if not _is_same_request(number):
        _interrupt_within(GRACE)


def _interrupt_within(seconds: float) -> None:
    """Raise KeyboardInterrupt; the next signal, or `seconds` without an end, end the process."""

    def end(number: int, frame: Any) -> None:
        if not _is_same_request(number):
            end_process()

    _handle(end)
    _call_later(seconds, end_process)
    _command.is_interrupted = True
    raise Interruption


def ignore_signals() -> None:
    """Ignore them from now on: one more, while Ray and torch are unloaded, would take the process
    its exit code.
    """
    _handle(signal.SIG_IGN)


def renew_handlers() -> None:
    """Set the handler of each signal again: a library's C code may have put its own in its place,
    unseen by Python.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def _handle(handler: Any) -> dict[int, Any]:
    """Set the handler of each signal that is not left alone; returns those before."""
    heeded = [number for number in SIGNALS if not _is_left_alone(number)]
    return {number: signal.signal(number, handler) for number in heeded}


def _is_left_alone(number: int) -> bool:
    """Return True for a signal that is ignored, and for a warning that the program around us
    handles itself, as a script under submitit, which puts its job back into the queue."""
    handler = signal.getsignal(number)
    if handler is signal.SIG_IGN:
        return True
    is_ours = getattr(handler, "__module__", "") == __name__
    return number in WARNINGS and handler is not signal.SIG_DFL and not is_ours


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _is_same_request(number: int) -> bool:
    """Return True for a signal that comes with the one before. After SIGHUP nothing is written to
    the terminal.
    """
    # the kernel repeats it for each second of CPU time, which is no second request
    if number == signal.SIGXCPU:
        signal.signal(number, signal.SIG_IGN)
    if number == signal.SIGHUP:
        for descriptor in (0, 1, 2):
            with suppress(OSError):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    before = _command.last_signal
    _command.last_signal = time.monotonic()
    return _command.last_signal - before < _SAME


def _cancel_timers() -> None:
    while _command.timers:
        _command.timers.pop().cancel()


def _call_later(seconds: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    _command.timers.append(timer)
    return timer
