"""Evaluations of a run in its step loop, inline or asynchronous, and the early stop that follows
from them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed
from ditlab.spec.optimization import EarlyStop
from ditlab.training.async_evaluation import AsyncEvaluation
from ditlab.training.decisions import is_due
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import Reporter

STOP_TAG = "ditlab.early_stop"
"""Tag with the step after which evaluations ended a run, and the values that did: a resume ends at
the same step.
"""
WAIT_ROUND = 10.0
"""Seconds of one wait for an answer, where steps do not go on: the other workers wait in a
collective meanwhile.
"""
WAIT_INTERVAL = 0.1
"""Seconds from one search for answers to the next in such a wait."""
Point = tuple[int, float]
"""Step and value of an evaluation."""


@dataclass
class StopDecision:
    """Values of the metric so far, and what follows from them."""

    spec: EarlyStop
    points: list[Point] = field(default_factory=list)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the metrics of an evaluation; those of an earlier step, and without the spec's,
        change nothing.
        """
        if self.spec.metric in values and (not self.points or step > self.points[-1][0]):
            self.points.append((step, values[self.spec.metric]))

    def best(self) -> Point:
        """Return the last point that was better than all before it, as NaN never is; step -1
        without any.
        """
        sign = 1 if self.spec.mode == "min" else -1
        best = (-1, math.nan)
        for step, value in self.points:
            if math.isnan(value):
                continue
            if best[0] < 0 or sign * value < sign * best[1] - self.spec.min_delta:
                best = (step, value)
        return best

    def holds(self) -> bool:
        """Return True once `patience` evaluations in a row were no better."""
        best = self.best()[0]
        return sum(step > best for step, _ in self.points) >= self.spec.patience

    def describe(self, step: int) -> str:
        """Text of the tag for a run that ends after `step` steps."""
        spec = self.spec
        at, best = self.best()
        than = f"no better than {best:.6g} at step {at}" if at >= 0 else "NaN"
        return f"{step}: {spec.metric} was {than} in {spec.patience} evaluations"


def recorded_stop(tags: Mapping[str, str]) -> int | None:
    """Return the step after which a run was ended, by its tags; None where it was not."""
    step = tags.get(STOP_TAG, "").partition(":")[0]
    return int(step) if step.isdecimal() else None


class Evaluations:
    """State of a run's evaluations on one worker; all workers call the methods that say so
    together.
    """

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._run = run
        self._rank = rank
        self._reporter = reporter
        self._stop = run.experiment.training.stop
        self._decision: StopDecision | None = None
        self.asynchronous: AsyncEvaluation | None = None
        """Hook of the first worker that asks for asynchronous evaluations."""
        if run.inbox and rank.is_first and run.experiment.evaluation.every:
            self.asynchronous = AsyncEvaluation(run.inbox, self._is_due, reporter)
        self.are_async = False
        """True if checkpoints are evaluated, and not the workers' state."""
        self.last_step = run.plan.total_steps
        """Step after which the run ends."""
        self.end_run = False
        """This worker's vote for an end of the run now, as its evaluations get no better."""

    def needed_checkpoints(self) -> list[int]:
        """Steps whose checkpoints must stay for an evaluation."""
        if self.asynchronous:
            return self.asynchronous.needed()
        return []

    # Any: `training.trainer.Trainer`, which imports this module
    def begin(self, trainer: Any, saves: bool) -> None:
        """Begin an attempt, together; a run that evaluations ended before ends after the same step
        again.
        """
        step = trainer.state.step
        self._trainer = trainer
        self.are_async = self._run.inbox is not None and saves
        self.last_step = self._run.plan.total_steps
        self.end_run = False
        self._decision = None
        recorded = None
        if self._rank.is_first:
            recorded = recorded_stop(self._reporter.recorded.tags())
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
            self.asynchronous.begin(step, trainer.checkpoints.last is not None)

    def _known_decision(self, stop: EarlyStop, step: int) -> StopDecision:
        """Return the decision after the evaluations in the journal.

        Evaluations on request do not count, nor those that workers measured after `step`, which
        are measured again.
        """
        decision = StopDecision(stop)
        for at, value in self._reporter.recorded.history(stop.metric):
            if self._is_due(at) and (self.are_async or at <= step):
                decision.add(at, {stop.metric: value})
        return decision

    def _is_due(self, step: int) -> bool:
        return is_due(step, self._run.experiment.evaluation.every, step == self.last_step)

    def end_after(self, step: int) -> None:
        """End the run after a step, together; the journal says so before a checkpoint exists."""
        if step >= self.last_step:
            return
        self.last_step = step
        self.end_run = False
        if self._decision:
            text = self._decision.describe(step)
            self._reporter.tags({STOP_TAG: text})
            self._reporter.warn(f"training ends early, after step {text}.")

    def record(self, step: int, values: dict[str, float]) -> None:
        """Take in and report the metrics of an evaluation, on this worker."""
        self._trainer.metrics.add(step, values)
        if self._decision:
            self._decision.add(step, values)
            self.end_run = self._decision.holds()

    def take(self, at_once: bool = False) -> None:
        """Take in answers of the evaluator, on the first worker. Raises RunFailed where a scheduler
        gets no value.
        """
        asynchronous = self.asynchronous
        if asynchronous is None:
            return
        for answer in asynchronous.take(at_once):
            if self._run.waits_for_values and answer.error:
                asynchronous.refuse(answer)
                raise RunFailed(
                    f"step {answer.step} has no evaluation for the sweep's scheduler "
                    f"({answer.error}); repair that, or set evaluation.mode=inline.",
                    kind="crash",
                )
            if answer.metrics:
                self.record(answer.step, answer.metrics)
            asynchronous.settle(answer)
            if not self._run.waits_for_values and 0 < answer.step < self.last_step:
                for evaluated in self._trainer.hooks.evaluated:
                    evaluated(answer.step, self._trainer.metrics.latest)

    def waits_still(self) -> bool:
        """Return True, together, if a scheduler waits for an evaluation of the state that was
        loaded.
        """
        if not (self.are_async and self._run.waits_for_values and self._trainer.state.step):
            return False
        return bool(self._trainer.channel.gather(self._lacks_value())[0])

    def _lacks_value(self) -> bool:
        return self.asynchronous is not None and self.asynchronous.lacks(self._trainer.state.step)

    def is_stopped_waiting(self) -> bool:
        """Wait, together, for the evaluation of the newest checkpoint; return True for a request to
        stop.
        """
        reporter = self._reporter
        step = self._trainer.state.step
        reporter.marker.begin(step, "waiting for the asynchronous evaluation", is_untimed=True)
        self._trainer.metrics.report_progress(step, "evaluating")
        while True:  # in rounds, as the others' wait in a collective has a limit
            deadline = time.monotonic() + WAIT_ROUND
            while (
                self._lacks_value() and not reporter.should_stop() and time.monotonic() < deadline
            ):
                self.take(at_once=True)
                time.sleep(WAIT_INTERVAL)
            votes = self._trainer.channel.gather_numbers(
                [self._lacks_value(), reporter.should_stop()]
            )
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
            waits = max(
                (each(step, trainer.metrics.latest) for each in trainer.hooks.evaluated),
                default=False,
            )
            votes = trainer.channel.gather_numbers(
                [waits, self._reporter.should_stop(), self.end_run]
            )
            waits_still, stops, ends = (any(each) for each in zip(*votes, strict=True))
            if stops or not waits_still:
                if ends:
                    self.end_after(step)
                return stops
