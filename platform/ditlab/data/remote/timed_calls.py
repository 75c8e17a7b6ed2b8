"""Calls that are given up after a while, though nothing can end them."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class TimedCalls:
    """Threads that run calls. One whose call lasts too long is left to itself, and another takes its place."""

    def __init__(self) -> None:
        self._idle: list[_Runner] = []
        self._lock = threading.Lock()

    def run(self, call: Callable[[], Result], timeout: float) -> Result:
        """Return the result of `call()`, or raise its error; TimeoutError after `timeout` seconds."""
        with self._lock:
            runner = self._idle.pop() if self._idle else _Runner()
        pending: _Pending[Result] = _Pending(call)
        runner.calls.put(pending)
        if not pending.done.wait(timeout):
            runner.calls.put(None)  # it ends once the call does
            raise TimeoutError(f"no answer within {timeout:.0f} s")
        with self._lock:
            self._idle.append(runner)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def close(self) -> None:
        """End the threads that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for runner in idle:
            runner.calls.put(None)


class _Pending(Generic[Result]):
    """A call that is running, and its end."""

    result: Result

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call, self.done = call, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # raised where its result is asked for
            self.error = error
        finally:
            self.done.set()


class _Runner:
    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_Pending[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ditlab-request", daemon=True).start()

    def _run(self) -> None:
        while (pending := self.calls.get()) is not None:
            pending.run()
            del pending  # holds the content
