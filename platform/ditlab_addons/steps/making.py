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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs.cores import allowed_cores
from ditlab_addons.steps.graph import Graph, GraphStep
from ditlab_addons.steps.ledger import STEP_VARIABLE
from ditlab_addons.steps.page import write_page
from ditlab_addons.steps.states import Status, StepState, find_made, forecast, state_of, survey
from ditlab_addons.steps.tasks import (
    Task,
    TaskMaker,
    experiment_of,
    kind_of_data,
    load_checked_graph,
)

POLL = 0.05
"""Seconds between two looks at the processes."""
PAGE_INTERVAL = 2.0
"""Seconds from one writing of the page to the next: of 500 steps it takes 20 ms of processor."""
MOST_AT_ONCE = 8
"""Steps that a cluster is given at the same time: the process that leads each takes some 500 MB
here."""
_log = logging.getLogger("ditlab")


@dataclass
class Running:
    """A task's process."""

    name: str
    task: Task
    process: subprocess.Popen[str]
    locks: ExitStack
    begin: float
    """Time by the monotonic clock."""
    result: str = "{}"
    """Object of `--json` that it printed."""
    mistake: str = ""
    """Sentence of an error that it printed."""
    reader: threading.Thread = field(init=False)


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
        at_once: int | None,
        say: Callable[[str], None],
        run: Run = start_command,
    ) -> None:
        """`at_once`: processes at most, None: as far as cores go; `say` receives lines, `NAME |
        text`.
        """
        self._steps = steps
        self._maker = maker
        self._at_once = at_once
        self._say = say
        self._run = run
        self._running: dict[str, Running] = {}
        self._signal: int | None = None
        self._shown = 0.0
        self.states: dict[str, StepState] = {}
        self.page: Path | None = None
        """Page of the graph, once it is written."""

    def make(self) -> int:
        """Make what is missing; return the exit code: 0, 1 where a step failed, 130 after a
        signal.
        """
        with self._signals():
            for each in self._steps:
                self._look_at(each)
            while self._signal is None and (self._start_some() or self._running):
                self._wait()
            while self._running:
                self._wait()
        self._show()
        if self._signal is not None:
            return 130  # as of Ctrl-C
        return int(any(state.status is not Status.DONE for state in self.states.values()))

    def _show(self) -> None:
        """Renew the page. A disk that refuses costs the page alone."""
        self._shown = time.monotonic()
        with suppress(OSError):
            steps = [state.to_dict() for state in self.states.values()]
            self.page = write_page(self._maker.graph.name, steps, self._maker.home)

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
        for state in list(self.states.values()):
            task = state.next_task
            if task and state.status in startable and self._has_room(task):
                waits = state.status is Status.ELSEWHERE
                if not (waits and self._maker.ledger.is_made_now(task.identity)):
                    self._start(state)
        return any(state.status in startable for state in self.states.values())

    def _has_room(self, task: Task) -> bool:
        """Return True where a task may start beside those that run."""
        if self._at_once is not None:
            return len(self._running) < self._at_once
        used = sum(each.task.cores for each in self._running.values())
        fits = not (used and task.cores) or used + task.cores <= allowed_cores()[0]
        return fits and len(self._running) < MOST_AT_ONCE

    def _start(self, before: StepState) -> None:
        """Start the next task of a step, unless another process makes it, or has made it."""
        self._maker.runs.refresh()
        experiment_of.cache_clear()
        kind_of_data.cache_clear()
        self._look_at(before.each)  # files and home may have changed since
        state = self.states[before.each.name]
        state.seconds = before.seconds
        task = state.next_task
        if task is None:
            self._look_at_waiting()
            return
        name = state.each.name
        with ExitStack() as locks:
            lock = locks.enter_context(self._maker.ledger.locked(task.identity))
            if lock is None:
                if before.status is not Status.ELSEWHERE:
                    self._say(f"{name} | another process makes it")
                state.status = Status.ELSEWHERE
                return
            self._maker.runs.refresh()  # another process may have made it meanwhile
            made = find_made(task, self._maker)
            if made is not None:
                state.made[task.identity] = made
                self._go_on(state)
                return
            self._say(f"{name} | ditlab {' '.join(task.arguments)}")
            needs = ", ".join(dict.fromkeys(state.each.needed))
            step = f"{self._maker.graph.name}/{name}{f', needs {needs}' if needs else ''}"
            process = self._run(task.arguments, lock, step)
            running = Running(name, task, process, locks.pop_all(), time.monotonic())
        running.reader = threading.Thread(target=self._read, args=[running], daemon=True)
        running.reader.start()
        state.status = Status.RUNNING
        self._running[name] = running

    def _read(self, running: Running) -> None:
        """Show the lines of a process, and keep its result, or what was wrong."""
        for line in running.process.stdout or ():
            text = line.rstrip()
            if text.startswith("{"):
                running.result = text
            elif text:
                self._say(f"{running.name} | {text}")
            if text.startswith("ditlab: "):
                running.mistake = text.removeprefix("ditlab: ")

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
        if time.monotonic() - self._shown >= PAGE_INTERVAL:
            self._show()

    def _end(self, running: Running) -> None:
        """Take the result of a process that has ended."""
        state = self.states[running.name]
        state.seconds = (state.seconds or 0.0) + time.monotonic() - running.begin
        code = running.process.returncode
        if code != 0:
            state.status = Status.MISSING
            state.reason = "it was interrupted"
            if self._signal is None:
                why = running.mistake or f"its command ended with {code}"
                self._fail(state.each, why)
            return
        try:
            made = running.task.read(json.loads(running.result))
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
        contents = [task.content for task in state.tasks]
        self._maker.ledger.note_contents(self._maker.graph.name, state.each.name, contents)
        self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        for state in list(self.states.values()):
            if state.status is Status.WAITING:
                self._look_at(state.each)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass signals on to the processes, which end after a checkpoint; at a second one at
        once.
        """

        def stop(number: int, _: Any) -> None:
            for each in self._running.values():
                each.process.send_signal(number)
            self._signal = number

        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
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
    at_once: int | None = None,
    forecasts: bool = False,
    say: Callable[[str], None] | None = None,
) -> MadeGraph:
    """Make the steps of a file that are not done, and those that they need; without names all.

    Args:
        file: path of the YAML.
        steps: names of steps.
        overrides: `steps.NAME.FIELD=value` changes of the file, as `--set` takes them.
        dry_run: True to find each step's state, and start nothing.
        local: True to train in one process, without Ray.
        at_once: steps that run at the same time at most. None: those that find cores, as far as
            `resources.cpus_per_worker` tells; of a cluster, 8, which Ray holds until there is room.
        forecasts: with `dry_run`, True to ask for the time that trainings and sweeps take.
        say: receives the lines that the commands print; None: the logger `ditlab`.

    Raises:
        UserError: the file is wrong; the message names the field, its value and the remedy.
    """
    graph = load_checked_graph(Path(file), overrides)
    wanted: list[GraphStep] = graph.with_needed(steps)
    maker = TaskMaker(graph, Home.from_environment(), ["--local"] if local else [])
    say = say or _log.info
    if dry_run:
        states = survey(wanted, maker)
        if forecasts:
            forecast(states, graph.folder, say)
        return MadeGraph(graph, states)
    making = Making(wanted, maker, at_once, say)
    code = making.make()
    return MadeGraph(graph, making.states, code, making.page)
