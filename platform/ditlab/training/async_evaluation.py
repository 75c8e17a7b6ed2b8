"""Asynchronous evaluation in the step loop of a run: what is asked for, and what has come.

The first worker posts a request once a checkpoint is complete, and takes in answers at a step's
end. An evaluator that the launcher starts (`runs.evaluator_process`) answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ditlab.errors import UserError
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import EVALUATE, EvaluationAnswer, Inbox, Request
from ditlab.training.reporting import Reporter

TAKEN_TAG = "ditlab.evaluated_async"
"""Tag with the newest step whose asynchronous evaluation is in the journal."""
SKIPPED_EVALUATIONS_TAG = "ditlab.evaluations_skipped"
"""Tag with the steps that were not evaluated, as a newer checkpoint was there."""
LOOK_INTERVAL = 0.5
"""Seconds from one search for answers to the next, while steps go on."""


class AsyncEvaluation(StepHook):
    """Part of the first worker: which checkpoints are to be evaluated, what has come, which ones
    must stay.
    """

    def __init__(self, inbox: Inbox, is_due: Callable[[int], bool], reporter: Reporter) -> None:
        """`is_due` tells whether the checkpoint of a step is evaluated."""
        self._inbox = inbox
        self._is_due = is_due
        self._reporter = reporter
        self._taken = int(reporter.recorded.tags().get(TAKEN_TAG, -1))
        self._wanted: list[int] = []
        """Steps whose evaluation has not come, sorted."""
        self._is_refused = False
        """True if the disk refused the latest request."""
        self._next_look = 0.0

    def begin(self, step: int, is_saved: bool) -> None:
        """Go on after `step` steps, whose checkpoint `is_saved`: later ones are evaluated again."""
        self._taken = min(self._taken, step)
        wanted = set[int]()
        if is_saved and self._is_due(step) and step > self._taken:
            wanted.add(step)
        for request in self._inbox.listed():
            if self._taken < request.number <= step:
                wanted.add(request.number)
            else:
                self._inbox.remove(request)
        self._wanted = sorted(wanted)
        self._post()

    def saved(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        """Ask for the evaluation of a checkpoint, which is complete now, where one is due."""
        if self._is_due(step) and step > self._taken:
            self._wanted = sorted({*self._wanted, step})
            self._post()

    def needed(self) -> list[int]:
        """Return the steps whose checkpoints must stay for an evaluation. Another thread, which
        saves, calls it.
        """
        return self._wanted[-1:]

    def lacks(self, step: int) -> bool:
        """Return True while the evaluation of a step has not come."""
        return step > self._taken

    def take(self, at_once: bool = False) -> list[EvaluationAnswer]:
        """Return the evaluations that have come, by step, for the journal; `settle` each once it is
        there.

        Reads the inbox at intervals; with `at_once` now.
        """
        if not self._wanted or (not at_once and time.monotonic() < self._next_look):
            return []
        self._next_look = time.monotonic() + LOOK_INTERVAL
        listed = self._post()
        answers = [self._read(step) for step in self._wanted if listed.get(Request(step, EVALUATE))]
        return [answer for answer in answers if answer]

    def refuse(self, answer: EvaluationAnswer) -> None:
        """Remove an answer without values: the next attempt asks again."""
        self._inbox.remove(Request(answer.step, EVALUATE))

    def settle(self, answer: EvaluationAnswer) -> None:
        """Take note that an answer is in the journal, and warn of what was not evaluated."""
        reporter = self._reporter
        step = answer.step
        passed = [each for each in self._wanted if each < step]
        tags = {TAKEN_TAG: str(step), **answer.tags}
        if passed:
            names = ", ".join(map(str, passed))
            reporter.warn(
                f"step{'s' if len(passed) > 1 else ''} {names} skipped: the newer checkpoint of "
                f"step {step} was evaluated instead."
            )
            before = reporter.recorded.tags().get(SKIPPED_EVALUATIONS_TAG)
            tags[SKIPPED_EVALUATIONS_TAG] = f"{before}, {names}" if before else names
        if answer.error:
            reporter.warn(
                f"the checkpoint of step {step} was not evaluated ({answer.error}); the run "
                "goes on, and `ditlab evaluate` measures its newest checkpoint."
            )
            tags["ditlab.evaluation_error"] = f"step {step}: {answer.error}"[:1000]
        reporter.tags(tags)
        if answer.pictures:
            reporter.log_samples(step)
        for warning in answer.warnings:
            reporter.warn(warning)
        self._taken = step
        self._wanted = [each for each in self._wanted if each > step]
        for each in (*passed, step):
            self._inbox.remove(Request(each, EVALUATE))

    def _read(self, step: int) -> EvaluationAnswer | None:
        request = Request(step, EVALUATE)
        try:
            return self._inbox.read(request, EvaluationAnswer)
        except UserError as error:
            self._reporter.warn(f"{error} Step {step} is evaluated again.")
            self._inbox.remove(request)
            return None

    def _post(self) -> dict[Request, bool]:
        """Post the requests that are not there, new ones and those that the disk refused; return
        the others.
        """
        listed = self._inbox.listed()
        try:
            for step in self._wanted:
                if Request(step, EVALUATE) not in listed:
                    self._inbox.post(Request(step, EVALUATE))
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                self._reporter.warn(
                    f"an evaluation cannot be asked for ({error.strerror}); it is tried again."
                )
            self._is_refused = True
        return listed
