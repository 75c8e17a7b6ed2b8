"""States of a graph's steps: done, or why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ditlab.errors import UserError
from ditlab.reports.formatting import describe_value
from ditlab_addons.steps.graph import GraphStep
from ditlab_addons.steps.ledger import Made
from ditlab_addons.steps.tasks import Task, TaskMaker, is_there

MOST_CHANGES = 3
"""Differences that a reason names."""
HIDDEN = ("hash", "numerics")
"""Parts of what decides a result that say nothing to a person where others differ."""


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
    """Why it is not done."""
    tasks: Sequence[Task] = ()
    made: dict[str, Made] = field(default_factory=dict)
    """Results by the identity of their task."""
    seconds: float | None = None
    """Seconds that its commands took; None where none ran now."""

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
            "needs": list(self.each.needed),
            "identities": [task.identity for task in self.tasks],
            "runs": [each.run for each in made if each.run],
            "places": [each.place for each in made if each.place],
            "metrics": [dict(each.metrics) for each in made if each.metrics],
        }


def state_of(each: GraphStep, maker: TaskMaker, states: Mapping[str, StepState]) -> StepState:
    """Return the state of a step, given those of the steps that it needs. Raises UserError for a
    spec that is wrong.
    """
    failed = [
        name for name in each.needed if states[name].status in (Status.FAILED, Status.SKIPPED)
    ]
    if failed:
        return StepState(each, Status.SKIPPED, f"{failed[0]} is not done")
    waiting = [name for name in each.needed if states[name].status is not Status.DONE]
    if waiting:
        return StepState(each, Status.WAITING, f"{waiting[0]} is not done")
    inputs = {
        field: [made for name in names for made in states[name].results]
        for field, names in each.inputs.items()
    }
    tasks = maker.tasks(each, inputs)
    state = StepState(each, Status.MISSING, tasks=tasks)
    for task in tasks:
        made = find_made(task, maker)
        if made is not None:
            state.made[task.identity] = made
    missing = state.next_task
    if missing is None:
        state.status = Status.DONE
    else:
        last = maker.ledger.last_content(maker.graph.name, each.name)
        state.reason = reason(last, missing.content)
    return state


def find_made(task: Task, maker: TaskMaker) -> Made | None:
    """Return the result of a task that is in the home, whoever made it; None where none is."""
    known = maker.ledger.find(task.identity)
    if known is not None and is_there(known, maker.runs):
        return known
    found = task.find()
    if found is not None:
        maker.ledger.add(task.identity, found)
    return found


def survey(steps: Sequence[GraphStep], maker: TaskMaker) -> dict[str, StepState]:
    """Return the state of each step by name. Raises UserError, naming the step, for a spec that is
    wrong.
    """
    states: dict[str, StepState] = {}
    for each in steps:
        try:
            states[each.name] = state_of(each, maker, states)
        except UserError as error:
            raise UserError(f"step {each.name}: {error}") from None
    return states


def reason(last: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return why something is made: what differs from what it was made of last."""
    if not last:
        return "not made yet"
    changed = [
        path
        for path in sorted({*last, *content})
        if last.get(path) != content.get(path) and path not in HIDDEN
    ]
    if not changed:
        if last == content:
            return "its result is gone"
        return "it was made by another version of the numbers"
    shown = [
        f"{path} {describe_value(last.get(path))} -> {describe_value(content.get(path))}"
        for path in changed[:MOST_CHANGES]
    ]
    more = len(changed) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
