"""Asynchronous evaluation in the step loop of a run, and the early stop that follows from evaluations of any kind.

The first worker posts a request once a checkpoint is complete, and takes in answers at a step's end. An evaluator that
the launcher starts (`runs.evaluator`) answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed, UserError
from ditlab.spec.optimization import EarlyStop
from ditlab.training.decisions import is_due
from ditlab.training.early_stop import STOP_TAG, StopDecision, recorded_stop
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import EVALUATE, EvaluationAnswer, Inbox, Request
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter

TAKEN_TAG = "ditlab.evaluated_beside"
"""Tag with the newest step whose asynchronous evaluation is in the journal."""
PASSED_TAG = "ditlab.evaluations_passed_over"
"""Tag with the steps that were not evaluated, as a newer checkpoint was there."""
LOOK_INTERVAL = 0.5
"""Seconds between looks for an answer, while steps go on."""
WAIT_ROUND = 10.0
"""Seconds of one wait for an answer, where steps do not go on: the other workers wait in a collective meanwhile."""
WAIT_INTERVAL = 0.1
"""Seconds between looks in such a wait."""


class AsyncEvaluation(StepHook):
    """Part of the first worker: which checkpoints are to be evaluated, what has come, which ones must stay."""

    def __init__(self, inbox: Inbox, every: int, total_steps: int, reporter: Reporter) -> None:
        self._inbox = inbox
        self._every = every
        self._reporter = reporter
        self._taken = int(reporter.recorded.tags().get(TAKEN_TAG, -1))
        self._wanted: list[int] = []
        """Steps whose evaluation has not come, sorted."""
        self._is_refused = False
        """True if the disk refused the latest request."""
        self._next_look = 0.0
        self.last_step = total_steps
        """Step whose checkpoint is evaluated whether or not that is due."""

    def begin(self, step: int, is_saved: bool) -> None:
        """Go on after `step` steps, whose checkpoint `is_saved`: evaluations of later ones come again."""
        self._taken = min(self._taken, step)
        wanted = {step} if is_saved and self._is_due(step) and step > self._taken else set[int]()
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
        """Return the steps whose checkpoints must stay for an evaluation. Another thread, which saves, calls it."""
        return self._wanted[-1:]

    def lacks(self, step: int) -> bool:
        """Return True while the evaluation of a step has not come."""
        return step > self._taken

    def take(self, at_once: bool = False) -> list[EvaluationAnswer]:
        """Return the evaluations that have come, by step, for the journal; `settle` each once it is there.

        Looks now and then; with `at_once` now.
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
        """Take note that an answer is in the journal, and say what it leaves out."""
        reporter = self._reporter
        passed = [step for step in self._wanted if step < answer.step]
        tags = {TAKEN_TAG: str(answer.step), **answer.tags}
        if passed:
            names = ", ".join(map(str, passed))
            steps = f"steps {names}" if len(passed) > 1 else f"step {names}"
            reporter.warn(f"{steps} passed over: the newer checkpoint of step {answer.step} was evaluated instead.")
            before = reporter.recorded.tags().get(PASSED_TAG)
            tags[PASSED_TAG] = f"{before}, {names}" if before else names
        if answer.error:
            reporter.warn(
                f"the checkpoint of step {answer.step} was not evaluated ({answer.error}); the run goes on, and "
                "`ditlab evaluate` measures its newest checkpoint."
            )
            tags["ditlab.evaluation_error"] = f"step {answer.step}: {answer.error}"[:1000]
        reporter.tags(tags)
        if answer.pictures:
            reporter.log_samples(answer.step)
        for warning in answer.warnings:
            reporter.warn(warning)
        self._taken = answer.step
        self._wanted = [step for step in self._wanted if step > answer.step]
        for step in (*passed, answer.step):
            self._inbox.remove(Request(step, EVALUATE))

    def _is_due(self, step: int) -> bool:
        return is_due(step, self._every, step == self.last_step)

    def _read(self, step: int) -> EvaluationAnswer | None:
        request = Request(step, EVALUATE)
        try:
            return self._inbox.read(request, EvaluationAnswer)
        except UserError as error:
            self._reporter.warn(f"{error} Step {step} is evaluated again.")
            self._inbox.remove(request)
            return None

    def _post(self) -> dict[Request, bool]:
        """Post the requests that are not there, new ones and those that the disk refused; return the others."""
        listed = self._inbox.listed()
        try:
            for step in self._wanted:
                if Request(step, EVALUATE) not in listed:
                    self._inbox.post(Request(step, EVALUATE))
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                self._reporter.warn(f"an evaluation cannot be asked for ({error.strerror}); it is tried again.")
            self._is_refused = True
        return listed


class Evaluations:
    """State of a run's evaluations on one worker; all workers call the methods that say so together."""

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._run = run
        self._rank = rank
        self._reporter = reporter
        self._stop = run.experiment.training.stop
        self._decision: StopDecision | None = None
        self.asynchronous: AsyncEvaluation | None = None
        """Hook of the first worker that asks for asynchronous evaluations."""
        if run.inbox and rank.is_first and (every := run.experiment.evaluation.every):
            self.asynchronous = AsyncEvaluation(run.inbox, every, run.plan.total_steps, reporter)
        self.are_async = False
        """True if checkpoints are evaluated, and not the workers' state."""
        self.last_step = run.plan.total_steps
        """Step after which the run ends."""
        self.end_run = False
        """This worker's vote for an end of the run now, as its evaluations get no better."""

    def needed_checkpoints(self) -> list[int]:
        """Steps whose checkpoints must stay for an evaluation."""
        return self.asynchronous.needed() if self.asynchronous else []

    # Any: `training.trainer.Trainer`, which imports this module
    def begin(self, trainer: Any, saves: bool) -> None:
        """Begin an attempt, together: a stop that evaluations led to before is done again after the same step."""
        step = trainer.state.step
        self._trainer = trainer
        self.are_async = self._run.inbox is not None and saves
        self.last_step = self._run.plan.total_steps
        self.end_run = False
        self._decision = None
        recorded = recorded_stop(self._reporter.recorded.tags()) if self._rank.is_first else None
        if self._stop:
            if self._rank.is_first and recorded is None:
                self._decision = self._known_decision(self._stop, step)
                self.end_run = self._decision.holds()
            recorded, ends = trainer.channel.gather((recorded, self.end_run))[0]
            if recorded is not None:
                self.last_step = min(self.last_step, max(step, recorded))
            elif ends:
                self.end_after(step)
        elif recorded is not None:
            self._reporter.tags({STOP_TAG: ""})
        if self.asynchronous:
            self.asynchronous.last_step = self.last_step
            self.asynchronous.begin(step, trainer.checkpoints.last is not None)

    def _known_decision(self, stop: EarlyStop, step: int) -> StopDecision:
        """Return the decision after the evaluations in the journal.

        Points that were asked for do not count, nor those that workers measured after `step`, which come again.
        """
        decision = StopDecision(stop)
        every = self._run.experiment.evaluation.every
        for at, value in self._reporter.recorded.history(stop.metric):
            counts = is_due(at, every, at == self._run.plan.total_steps)
            if counts and (self.are_async or at <= step):
                decision.add(at, {stop.metric: value})
        return decision

    def end_after(self, step: int) -> None:
        """End the run after a step, together; the journal has that before a checkpoint has."""
        if step >= self.last_step:
            return
        self.last_step = step
        self.end_run = False
        if self._decision:
            text = self._decision.describe(step)
            self._reporter.tags({STOP_TAG: text})
            self._reporter.warn(f"training ends early, after step {text}.")
        if self.asynchronous:
            self.asynchronous.last_step = step

    def record(self, step: int, values: dict[str, float]) -> None:
        """Take in and report the metrics of an evaluation, on this worker."""
        self._trainer.metrics.add(step, values)
        if self._decision:
            self._decision.add(step, values)
            self.end_run = self._decision.holds()

    def take(self, at_once: bool = False) -> None:
        """Take in answers of the evaluator, on the first worker. Raises RunFailed where a scheduler gets no value."""
        asynchronous = self.asynchronous
        if asynchronous is None:
            return
        for answer in asynchronous.take(at_once):
            if self._run.waits_for_values and answer.error:
                asynchronous.refuse(answer)
                raise RunFailed(
                    f"step {answer.step} has no evaluation for the sweep's scheduler ({answer.error}); repair that, or "
                    "set evaluation.where=inline.",
                    kind="crash",
                )
            if answer.metrics:
                self.record(answer.step, answer.metrics)
            asynchronous.settle(answer)
            if not self._run.waits_for_values and 0 < answer.step < self.last_step:
                for evaluated in self._trainer.hooks.evaluated:
                    evaluated(answer.step, self._trainer.metrics.latest)

    def waits_still(self) -> bool:
        """Return True, together, if a scheduler waits for an evaluation of the state that was loaded."""
        if not (self.are_async and self._run.waits_for_values and self._trainer.state.step):
            return False
        return bool(self._trainer.channel.gather(self._lacks_value())[0])

    def _lacks_value(self) -> bool:
        return self.asynchronous is not None and self.asynchronous.lacks(self._trainer.state.step)

    def is_stopped_waiting(self) -> bool:
        """Wait, together, for the evaluation of the newest checkpoint; return True for a request to stop."""
        reporter = self._reporter
        step = self._trainer.state.step
        reporter.marker.begin(step, "waiting for the evaluation beside the training", is_untimed=True)
        self._trainer.metrics.report_progress(step, "evaluating")
        while True:  # in rounds, as the others' wait in a collective has a limit
            deadline = time.monotonic() + WAIT_ROUND
            while self._lacks_value() and not reporter.should_stop() and time.monotonic() < deadline:
                self.take(at_once=True)
                time.sleep(WAIT_INTERVAL)
            votes = self._trainer.channel.gather_numbers([self._lacks_value(), reporter.should_stop()])
            lacks, stops = (any(each) for each in zip(*votes, strict=True))
            if stops or not lacks:
                return stops

    def is_stopped(self) -> bool:
        """Report an evaluation, together, and wait as long as a sweep's scheduler wants.

        Returns True for a request to stop; `last_step` says whether the run ends here.
        """
        trainer = self._trainer
        step = trainer.state.step
        if self.are_async:
            trainer.checkpoints.wait()
            if self.is_stopped_waiting():
                return True
        while True:  # in rounds, as the others' wait in a collective has a limit
            waits = max((each(step, trainer.metrics.latest) for each in trainer.hooks.evaluated), default=False)
            votes = trainer.channel.gather_numbers([waits, self._reporter.should_stop(), self.end_run])
            waits_still, stops, ends = (any(each) for each in zip(*votes, strict=True))
            if stops or not waits_still:
                if ends:
                    self.end_after(step)
                return stops
