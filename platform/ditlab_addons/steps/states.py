"""States of a graph's steps: done, or why not, and how long they take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.reports.formatting import describe_value
from ditlab.spec.files import resolve_paths
from ditlab.spec.overrides import changed_values
from ditlab_addons.steps.graph import GraphStep
from ditlab_addons.steps.ledger import Made
from ditlab_addons.steps.tasks import Task, TaskMaker, is_there, set_options


class Status(StrEnum):
    """State of a step."""

    DONE = "done"
    MISSING = "missing"
    """All that it needs is done."""
    WAITING = "waiting"
    """A step that it needs is not done."""
    RUNNING = "running"
    ELSEWHERE = "elsewhere"
    """Another process makes it."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A step that it needs has failed."""


@dataclass
class StepState:
    """State of one step."""

    each: GraphStep
    status: Status
    reason: str = ""
    """Why it is not done; of one that is, how its result differs from what its spec has."""
    tasks: Sequence[Task] = ()
    made: dict[str, Made] = field(default_factory=dict)
    """Results by the identity of their task."""
    seconds: float | None = None
    """Seconds that its commands took; None where none ran now."""
    forecast: float | None = None
    """Seconds that its commands are expected to take; None where nobody was asked, or knows."""

    @property
    def results(self) -> list[Made]:
        """Results of a step that is done, in the order of its tasks."""
        return [self.made[task.identity] for task in self.tasks]

    @property
    def next_task(self) -> Task | None:
        """The first task without a result."""
        return next((task for task in self.tasks if task.identity not in self.made), None)

    def to_dict(self) -> dict[str, Any]:
        """The step for `--json`."""
        made = self.results if self.status is Status.DONE else []
        return {
            "step": self.each.name,
            "kind": self.each.kind,
            "status": str(self.status),
            "reason": self.reason,
            "needs": list(dict.fromkeys(self.each.needed)),
            "identities": [task.identity for task in self.tasks],
            "runs": [run for each in made for run in (each.run, *each.members) if run],
            "places": [each.place for each in made if each.place],
            "metrics": [dict(each.metrics) for each in made if each.metrics],
            "seconds": self.seconds,
            "forecast": self.forecast,
        }


def state_of(each: GraphStep, maker: TaskMaker, states: Mapping[str, StepState]) -> StepState:
    """Return the state of a step, given those of the steps that it needs. Raises UserError for a
    spec that is wrong.
    """
    for name in each.needed:
        status = states[name].status
        if status in (Status.FAILED, Status.SKIPPED):
            return StepState(each, Status.SKIPPED, f"{name} is not done")
        if status is not Status.DONE:
            return StepState(each, Status.WAITING, f"{name} is not done")
    inputs = {
        field: [made for name in names for made in states[name].results]
        for field, names in each.inputs.items()
    }
    tasks = maker.tasks(each, inputs)
    state = StepState(each, Status.MISSING, tasks=tasks)
    for task in tasks:
        made = find_made(task, maker)
        if made:
            state.made[task.identity] = made
    missing = state.next_task
    if missing:
        last = dict(enumerate(maker.ledger.last_contents(maker.graph.name, each.name)))
        state.reason = reason(last.get(tasks.index(missing), {}), missing.content)
    else:
        state.status = Status.DONE
    return state


def find_made(task: Task, maker: TaskMaker) -> Made | None:
    """Return the result of a task that is in the home, whoever made it; None where none is."""
    known = maker.ledger.find(task.identity)
    if known and is_there(known, maker.runs):
        return known
    found = task.find()
    if found:
        maker.ledger.add(task.identity, found)
    return found


def survey(steps: Sequence[GraphStep], maker: TaskMaker) -> dict[str, StepState]:
    """Return the state of each step by name, with remarks on those that are done. Raises UserError,
    naming the step, for a spec that is wrong.
    """
    states: dict[str, StepState] = {}
    for each in steps:
        try:
            state = state_of(each, maker, states)
        except UserError as error:
            raise UserError(f"step {each.name}: {error}") from None
        if state.status is Status.DONE:
            remarks = [task.remark(state.made[task.identity]) for task in state.tasks]
            state.reason = ", ".join(filter(None, remarks))
        states[each.name] = state
    return states


def reason(last: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return why something is made: what differs from what it was made of last."""
    if not last:
        return "not made yet"
    if last == content:
        return "its result is gone"
    changed = [
        f"{path} {describe_value(before)} -> {describe_value(now)}"
        for path, before, now in changed_values(last, content)
        if path != "numerics"
    ]
    if not changed:
        return "it was made by another version of the numbers"
    return ", ".join(changed)


def forecast(states: Mapping[str, StepState], folder: Path, say: Callable[[str], None]) -> None:
    """Note the seconds that each training and sweep takes that is not done; of those without a
    figure, `say` says why.

    `folder`: of the graph's file. The values of a sweep and the weights of a step are those of the
    file: they change no time but that of a network of another size.
    """
    commands = {"train": ["plan"], "tune": ["tune", "--dry-run"]}
    for name, state in states.items():
        each = state.each
        if state.status is Status.DONE or each.kind not in commands:
            continue
        words = [*commands[each.kind], str(folder / each.step.value(each.kind))]
        words += set_options(resolve_paths(each.changes(), folder))
        ended = subprocess.run(
            [sys.executable, "-m", "ditlab", *words, "--json"], capture_output=True, text=True
        )
        printed = json.loads((ended.stdout.splitlines() or ["{}"])[-1])
        seconds = printed.get("run_seconds", printed.get("seconds"))
        if seconds is None:
            say(f"{name}: no forecast: {printed.get('message', 'its speed is not known here')}")
        else:
            state.forecast = seconds * getattr(each.step, "seeds", 1)
