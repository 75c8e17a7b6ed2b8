"""Making of a graph, for `ditlab make` and for scripts: commands in processes of their own, in
order, several at once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab_addons.steps.graph import Graph, GraphStep, load_graph
from ditlab_addons.steps.ledger import STEP_VARIABLE
from ditlab_addons.steps.page import write_page
from ditlab_addons.steps.states import Status, StepState, find_made, state_of, survey
from ditlab_addons.steps.tasks import Task, TaskMaker

POLL = 0.05
"""Seconds between two looks at the processes."""
INTERRUPTED = 130
_log = logging.getLogger("ditlab")


@dataclass
class Printed:
    """Lines of a process that are kept."""

    result: str = "{}"
    """Object of `--json`."""
    mistake: str = ""
    """Sentence of an error."""


@dataclass
class Running:
    """A task's process."""

    name: str
    task: Task
    process: subprocess.Popen[str]
    locks: ExitStack
    reader: threading.Thread
    begin: float
    """Time by the monotonic clock."""
    printed: Printed


Run = Callable[[Sequence[str], IO[bytes], str], "subprocess.Popen[str]"]
"""Function of a command's words, of the file whose lock its process holds, and of the step."""


def start_command(arguments: Sequence[str], lock: IO[bytes], step: str) -> subprocess.Popen[str]:
    """Start a command of `ditlab` in a session of its own, so that Ctrl-C reaches it once."""
    return subprocess.Popen(
        [sys.executable, "-m", "ditlab", *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, STEP_VARIABLE: step},
        pass_fds=[lock.fileno()],
    )


class Making:
    """A graph that is made."""

    def __init__(
        self,
        steps: Sequence[GraphStep],
        maker: TaskMaker,
        at_once: int,
        say: Callable[[str], None],
        run: Run = start_command,
    ) -> None:
        """`at_once`: processes at most; `say` receives lines, `NAME | text`."""
        self._steps = {each.name: each for each in steps}
        self._maker = maker
        self._at_once = at_once
        self._say = say
        self._run = run
        self._running: dict[str, Running] = {}
        self._signal: int | None = None
        self.states: dict[str, StepState] = {}
        self.page: Path | None = None
        """Page of the graph, once it is written."""

    def make(self) -> int:
        """Make what is missing; return the exit code: 0, 1 where a step failed, 130 after a
        signal.
        """
        with self._signals():
            for each in self._steps.values():
                self._look_at(each)
            while self._signal is None and (self._start_some() or self._running):
                self._wait()
            while self._running:
                self._wait()
        self._show()
        if self._signal is not None:
            return INTERRUPTED
        return int(any(state.status is not Status.DONE for state in self.states.values()))

    def _show(self) -> None:
        """Renew the page. A disk that refuses costs the page alone."""
        with suppress(OSError):
            self.page = write_page(
                self._maker.graph.name,
                self.states,
                self._maker.ledger.pages(self._maker.graph.name),
            )

    def _look_at(self, each: GraphStep) -> None:
        """Find the state of a step, whose own mistakes make it fail."""
        try:
            self.states[each.name] = state_of(each, self._maker, self.states)
        except UserError as error:
            self._fail(each, str(error))

    def _fail(self, each: GraphStep, why: str) -> None:
        self.states[each.name] = StepState(each, Status.FAILED, why)
        self._say(f"{each.name} | failed: {why}")
        self._look_at_waiting()

    def _start_some(self) -> bool:
        """Start tasks as far as there is room; return True where some are left to start."""
        startable = (Status.MISSING, Status.ELSEWHERE)
        for state in self.states.values():
            if len(self._running) < self._at_once and state.status in startable:
                self._start(state)
        return any(state.status in startable for state in self.states.values())

    def _start(self, state: StepState) -> None:
        """Start the next task of a step, unless another process makes it, or has made it."""
        task = state.next_task
        assert task is not None
        name = state.each.name
        with ExitStack() as locks:
            lock = locks.enter_context(self._maker.ledger.locked(task.identity))
            if lock is None:
                if state.status is not Status.ELSEWHERE:
                    self._say(f"{name} | another process makes it")
                state.status = Status.ELSEWHERE
                return
            self._maker.look_again()
            made = find_made(task, self._maker)
            if made is not None:
                state.made[task.identity] = made
                self._go_on(state)
                return
            self._say(f"{name} | ditlab {' '.join(task.arguments)}")
            needs = ", ".join(dict.fromkeys(state.each.needed))
            step = f"{self._maker.graph.name}/{name}{f', needs {needs}' if needs else ''}"
            process = self._run(task.arguments, lock, step)
            printed = Printed()
            reader = threading.Thread(target=self._read, args=(name, process, printed), daemon=True)
            reader.start()
            begin = time.monotonic()
            running = Running(name, task, process, locks.pop_all(), reader, begin, printed)
        state.status = Status.RUNNING
        self._running[name] = running
        self._show()

    def _read(self, name: str, process: subprocess.Popen[str], printed: Printed) -> None:
        """Show the lines of a process, and keep its result, or what was wrong."""
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            if text.startswith("{"):
                printed.result = text
            elif text:
                self._say(f"{name} | {text}")
            if text.startswith("ditlab: "):
                printed.mistake = text.removeprefix("ditlab: ")

    def _wait(self) -> None:
        """Wait for processes, and take the results of those that have ended."""
        ended = [each for each in self._running.values() if each.process.poll() is not None]
        if not ended:
            time.sleep(POLL)
        for running in ended:
            running.reader.join()
            self._end(running)
            running.locks.close()
            del self._running[running.name]
        if ended:
            self._show()

    def _end(self, running: Running) -> None:
        """Take the result of a process that has ended."""
        state = self.states[running.name]
        state.seconds = (state.seconds or 0.0) + time.monotonic() - running.begin
        code = running.process.returncode
        if code != 0:
            if self._signal is None:
                why = running.printed.mistake or f"its command ended with {code}"
                self._fail(state.each, why)
            return
        try:
            made = running.task.read(json.loads(running.printed.result))
        except (UserError, KeyError, ValueError) as error:
            self._fail(state.each, str(error))
            return
        self._maker.ledger.add(running.task.identity, made)
        state.made[running.task.identity] = made
        self._go_on(state)

    def _go_on(self, state: StepState) -> None:
        """Note that a task of a step is done, and look at the steps that waited for it."""
        if state.next_task is not None:
            state.status = Status.MISSING
            return
        state.status = Status.DONE
        state.reason = ""
        content = {key: value for task in state.tasks for key, value in task.content.items()}
        self._maker.ledger.note_content(self._maker.graph.name, state.each.name, content)
        self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        for name, state in list(self.states.items()):
            if state.status is Status.WAITING:
                self._look_at(self._steps[name])

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on to the processes, which end after a checkpoint; a second one kills."""

        def stop(number: int, _: Any) -> None:
            for each in self._running.values():
                each.process.send_signal(number if self._signal is None else signal.SIGKILL)
            self._signal = number

        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class MadeGraph:
    """States of a graph's steps."""

    graph: Graph
    states: dict[str, StepState]
    code: int = 0
    """Exit code of `ditlab make`: 1 where a step failed, 130 after a signal."""
    page: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab make --json`."""
        return {
            "name": self.graph.name,
            "steps": [each.to_dict() for each in self.states.values()],
            "page": str(self.page) if self.page else None,
        }


def make(
    file: str | Path,
    *steps: str,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    local: bool = False,
    at_once: int = 1,
    say: Callable[[str], None] | None = None,
) -> MadeGraph:
    """Make the steps of a file that are not done, and those that they need; without names all.

    Args:
        file: path of the YAML.
        steps: names of steps.
        overrides: `steps.NAME.FIELD=value` changes of the file, as `--set` takes them.
        dry_run: True to find each step's state, and start nothing.
        local: True to train in one process, without Ray.
        at_once: steps that run at the same time at most.
        say: receives the lines that the commands print; None: the logger `ditlab`.

    Raises:
        UserError: the file is wrong; the message names the field, its value and the remedy.
    """
    graph = load_graph(Path(file), overrides)
    wanted: list[GraphStep] = graph.with_needed(steps)
    maker = TaskMaker(graph, Home.from_environment(), ["--local"] if local else [])
    if dry_run:
        return MadeGraph(graph, survey(wanted, maker))
    making = Making(wanted, maker, at_once, say or _log.info)
    code = making.make()
    return MadeGraph(graph, making.states, code, making.page)
