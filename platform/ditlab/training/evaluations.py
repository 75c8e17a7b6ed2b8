"""Evaluations of a run in its step loop: those beside the training, and the early stop that follows from them.

Beside the training, the first worker asks once a checkpoint is complete, and takes answers in at a step's end. An
evaluator that the launcher starts (`runs.evaluator`) answers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed
from ditlab.training.early_stop import STOP_TAG, StopDecision, decision_of, recorded_stop
from ditlab.training.hooks import StepHook
from ditlab.training.mailbox import EvaluationAnswer, EvaluationMailbox, EvaluationRequest
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter

TAKEN_TAG = "ditlab.evaluated_beside"
"""Tag with the newest step whose evaluation beside the training is in the journal."""
PASSED_TAG = "ditlab.evaluations_passed_over"
"""Tag with the steps that were not evaluated, as a newer checkpoint was there."""
LOOK_INTERVAL = 0.5
"""Seconds between looks for an answer, while steps go on."""
WAIT_ROUND = 10.0
"""Seconds of one wait for an answer, where steps do not go on: the other workers wait in a collective meanwhile."""
WAIT_INTERVAL = 0.1
"""Seconds between looks in such a wait."""


class BesideEvaluations(StepHook):
    """The first worker's side: what is asked for, what has come, which checkpoints must stay."""

    def __init__(self, mailbox: EvaluationMailbox, every: int, total_steps: int, reporter: Reporter) -> None:
        self._mailbox, self._every, self._reporter = mailbox, every, reporter
        self._taken = int(reporter.recorded.tags().get(TAKEN_TAG, -1))
        self._request: EvaluationRequest | None = None
        self._is_refused = False
        """True if the disk refused the latest request."""
        self._next_look = 0.0
        self.last_step = total_steps
        """Step whose checkpoint is evaluated whether or not that is due."""

    def begin(self, step: int, is_saved: bool) -> None:
        """Go on after `step` steps, whose checkpoint `is_saved`: evaluations of later ones come again."""
        self._taken = min(self._taken, step)
        for answer in self._mailbox.answers():
            if not self._taken < answer.step <= step:
                self._mailbox.drop(answer.step)
        asked = set(self._asked(self._mailbox.request())) | ({step} if is_saved and self._is_due(step) else set())
        self._ask(sorted(each for each in asked if self._taken < each <= step))

    def saved(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        """Ask for the evaluation of a checkpoint, which is complete now, where one is due."""
        if self._is_due(step) and step > self._taken:
            self._ask(sorted({*self._asked(self._request), step}))

    def needed(self) -> list[int]:
        """Return the steps whose checkpoints must stay for an evaluation."""
        request = self._request  # of another thread, which saves
        return [request.step] if request else []

    def lacks(self, step: int) -> bool:
        """Return True while the evaluation of a step is asked for, and has not come."""
        return step > self._taken

    def take(self, at_once: bool = False) -> list[EvaluationAnswer]:
        """Return the evaluations that have come, by step, for the journal; `settle` each once it is there.

        Looks now and then; with `at_once` now. Answers that are known already are dropped.
        """
        if not at_once and time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + LOOK_INTERVAL
        if self._is_refused:
            self._ask(sorted(self._asked(self._request)))
        found = self._mailbox.answers() if self._request else []
        for answer in found:
            if answer.step <= self._taken:
                self._mailbox.drop(answer.step)
        return [answer for answer in found if answer.step > self._taken]

    def refuse(self, answer: EvaluationAnswer) -> None:
        """Drop an answer without values; what it answers stays asked for, by the next attempt."""
        self._mailbox.drop(answer.step)

    def settle(self, answer: EvaluationAnswer) -> None:
        """Take note that an answer is in the journal, and say what it leaves out."""
        self._taken, reporter, asked = answer.step, self._reporter, self._asked(self._request)
        tags = {TAKEN_TAG: str(answer.step), **answer.tags}
        if passed := sorted(step for step in asked if step < answer.step):
            steps = f"step{'s' if len(passed) > 1 else ''} {', '.join(map(str, passed))}"
            reporter.warn(f"{steps} passed over: the newer checkpoint of step {answer.step} was evaluated instead.")
            tags[PASSED_TAG] = ", ".join(filter(None, [reporter.recorded.tags().get(PASSED_TAG), *map(str, passed)]))
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
        self._ask(sorted(step for step in asked if step > answer.step))
        self._mailbox.drop(answer.step)

    def _is_due(self, step: int) -> bool:
        return step % self._every == 0 or step == self.last_step

    @staticmethod
    def _asked(request: EvaluationRequest | None) -> list[int]:
        return [request.step, *request.older] if request else []

    def _ask(self, steps: list[int]) -> None:
        self._request = EvaluationRequest(steps[-1], steps[:-1]) if steps else None
        try:
            if self._request:
                self._mailbox.ask(self._request)
            else:
                self._mailbox.withdraw()
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                self._reporter.warn(f"an evaluation cannot be asked for ({error.strerror}); it is tried again.")
            self._is_refused = True


class Evaluations:
    """State of a run's evaluations on one worker; all workers call the methods that say so together."""

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._run, self._rank, self._reporter = run, rank, reporter
        self._stop = run.experiment.training.stop
        self._decision: StopDecision | None = None
        self.asking: BesideEvaluations | None = None
        """Hook of the first worker that asks for evaluations beside the training."""
        if run.mailbox and rank.is_first and (every := run.experiment.evaluation.every):
            self.asking = BesideEvaluations(run.mailbox, every, run.plan.total_steps, reporter)
        self.are_beside = False
        """True if checkpoints are evaluated, and not the workers' state."""
        self.last_step = run.plan.total_steps
        """Step after which the run ends."""
        self.end_run = False
        """This worker's vote for an end of the run now, as its evaluations get no better."""

    def needed_checkpoints(self) -> Collection[int]:
        """Steps whose checkpoints must stay for an evaluation."""
        return self.asking.needed() if self.asking else ()

    # Any: `training.trainer.Trainer`, which imports this module
    def begin(self, trainer: Any, saves: bool) -> None:
        """Begin an attempt, together: a stop that evaluations led to before is done again after the same step."""
        self._trainer, step, reporter = trainer, trainer.state.step, self._reporter
        self.are_beside = self._run.mailbox is not None and saves
        self.last_step, self.end_run, self._decision = self._run.plan.total_steps, False, None
        recorded = recorded_stop(reporter.recorded.tags()) if self._rank.is_first else None
        if self._stop and self._rank.is_first and recorded is None:
            # Points that were asked for do not count, and those that workers measured after a later step come again.
            known = [each for each in reporter.recorded.history(self._stop.metric) if self._is_due(each[0])]
            self._decision = decision_of(self._stop, (each for each in known if self.are_beside or each[0] <= step))
            self.end_run = self._decision.holds()
        if recorded is not None and not self._stop:
            reporter.tags({STOP_TAG: ""})
        if self._stop:
            recorded, ends = trainer.channel.gather((recorded, self.end_run))[0]
            if recorded is not None:
                self.last_step = min(self.last_step, max(step, recorded))
            elif ends:
                self.end_after(step)
        if self.asking:
            self.asking.last_step = self.last_step
            self.asking.begin(step, trainer.checkpoints.last is not None)

    def _is_due(self, step: int) -> bool:
        every = self._run.experiment.evaluation.every
        return step == self._run.plan.total_steps or (every is not None and step % every == 0)

    def end_after(self, step: int) -> None:
        """End the run after a step, together; the journal has that before a checkpoint has."""
        if step >= self.last_step:
            return
        self.last_step, self.end_run = step, False
        if self._decision:
            text = self._decision.describe(step)
            self._reporter.tags({STOP_TAG: text})
            self._reporter.warn(f"training ends early, after step {text}.")
        if self.asking:
            self.asking.last_step = step

    def record(self, step: int, values: dict[str, float]) -> None:
        """Take in and report the metrics of an evaluation, on this worker."""
        self._trainer.metrics.add(step, values)
        if self._decision:
            self._decision.add(step, values)
            self.end_run = self._decision.holds()

    def take(self, at_once: bool = False) -> None:
        """Take in what has come from beside, on the first worker. Raises RunFailed where a scheduler gets no value."""
        for answer in self.asking.take(at_once) if self.asking else ():
            assert self.asking
            if self._run.waits_for_values and answer.error:
                self.asking.refuse(answer)
                raise RunFailed(
                    f"step {answer.step} has no evaluation for the sweep's scheduler ({answer.error}); repair that, or "
                    "set evaluation.where=inline.",
                    kind="crash",
                )
            if answer.metrics:
                self.record(answer.step, answer.metrics)
            self.asking.settle(answer)
            if not self._run.waits_for_values and 0 < answer.step < self.last_step:
                for evaluated in self._trainer.hooks.evaluated:
                    evaluated(answer.step, self._trainer.metrics.latest)

    def waits_still(self) -> bool:
        """Return True, together, if a scheduler waits for an evaluation of the state that was loaded."""
        if not (self.are_beside and self._run.waits_for_values and self._trainer.state.step):
            return False
        return bool(self._trainer.channel.gather(self._lacks_value())[0])

    def _lacks_value(self) -> bool:
        return self.asking is not None and self.asking.lacks(self._trainer.state.step)

    def is_stopped_waiting(self) -> bool:
        """Wait, together, for the evaluation of the newest checkpoint; return True for a request to stop."""
        reporter, step, channel = self._reporter, self._trainer.state.step, self._trainer.channel
        reporter.marker.begin(step, "waiting for the evaluation beside the training", is_untimed=True)
        self._trainer.metrics.report_progress(step, "evaluating")
        while True:  # in rounds, as the others' wait in a collective has a limit
            deadline = time.monotonic() + WAIT_ROUND
            while self._lacks_value() and not reporter.should_stop() and time.monotonic() < deadline:
                self.take(at_once=True)
                time.sleep(WAIT_INTERVAL)
            votes = channel.gather_numbers([self._lacks_value(), reporter.should_stop()])
            lacks, stops = (any(each) for each in zip(*votes, strict=True))
            if stops or not lacks:
                return stops

    def is_stopped(self) -> bool:
        """Report an evaluation, together, and wait as long as a sweep's scheduler wants.

        Returns True for a request to stop; `last_step` says whether the run ends here.
        """
        trainer = self._trainer
        step = trainer.state.step
        if self.are_beside:
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
