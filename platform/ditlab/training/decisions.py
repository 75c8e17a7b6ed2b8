"""Decisions after a step: what is checked, measured, answered and saved, and whether training ends.

`decide` is a pure function of the facts that all workers share, so all decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ditlab.receipts.records import STOP_VERB


class Action(Enum):
    """Something that follows a step, in the order in which it is done."""

    CHECK = auto()
    """Wait for the numbers of all steps: what has diverged is neither evaluated nor saved."""
    EVALUATE = auto()
    """Measure the held-out metrics here."""
    REQUEST = auto()
    """Do what a request to the run asks for."""
    SAVE = auto()
    """Save a checkpoint."""
    JUDGE = auto()
    """Ask the sweep's scheduler and early stopping about the evaluation of this step."""
    STOP = auto()
    """End this attempt before the end of the plan."""


@dataclass(frozen=True)
class Intervals:
    """Settings of an attempt that `decide` reads."""

    evaluation: int | None
    """Steps from one evaluation to the next; None for none."""
    checkpoint: int | None
    """Steps from one checkpoint to the next; None for none but the last."""
    until: int | None = None
    """Step after which the attempt ends, which then saves at no interval; None for the plan's
    end.
    """
    saves: bool = True
    """False where no checkpoint is saved at all."""
    is_async: bool = False
    """True where another process evaluates checkpoints."""
    waits_for_values: bool = False
    """True where training waits for the values of evaluations that another process measures."""


@dataclass(frozen=True)
class StepFacts:
    """Facts about a step that has ended, alike on all workers."""

    step: int
    """From 1."""
    is_last: bool
    """True for the last step of the plan."""
    is_bad: bool = False
    """True where a worker knows of a step that was not finite."""
    must_stop: bool = False
    """True for a signal or another demand with a time limit: a request stays for the next
    attempt.
    """
    verb: str = ""
    """Verb of the request that the workers agreed on; empty for none."""

    @property
    def request(self) -> str:
        """Verb of the request that is done after this step; empty for none."""
        return "" if self.must_stop else self.verb


def decide(facts: StepFacts, intervals: Intervals) -> set[Action]:
    """Return what follows a step."""
    actions = set[Action]()
    if _is_stopped(facts, intervals):
        actions.add(Action.STOP)
    is_evaluated = Action.STOP not in actions and is_due(
        facts.step, intervals.evaluation, facts.is_last
    )
    if is_evaluated and not intervals.is_async:
        actions.add(Action.EVALUATE)
    if facts.request:
        actions.add(Action.REQUEST)
    if _is_saved(facts, intervals, Action.STOP in actions, is_evaluated):
        actions.add(Action.SAVE)
    if actions or facts.is_bad or facts.is_last:
        actions.add(Action.CHECK)
    has_values = not intervals.is_async or intervals.waits_for_values
    if is_evaluated and has_values and not facts.is_last:
        actions.add(Action.JUDGE)
    return actions


def _is_stopped(facts: StepFacts, intervals: Intervals) -> bool:
    if facts.is_last:
        return False
    return facts.must_stop or facts.request == STOP_VERB or facts.step == intervals.until


def _is_saved(facts: StepFacts, intervals: Intervals, is_stopped: bool, is_evaluated: bool) -> bool:
    if not intervals.saves:
        return False
    if facts.is_last or is_stopped or facts.request == "checkpoint":
        return True
    if is_evaluated and intervals.is_async:
        return True  # its checkpoint is what the other process evaluates
    return intervals.until is None and is_due(facts.step, intervals.checkpoint, facts.is_last)


def is_due(step: int, every: int | None, is_last: bool) -> bool:
    """Return True if something that happens every so many steps, and at the last one, happens now;
    never for None.
    """
    return every is not None and (is_last or step % every == 0)
