"""Trainer: the body of every worker, its step loop, and its recovery from lack of memory and
divergence.

`train` builds or loads the state and runs the step loop, which trains, logs, evaluates and saves. A
step that does not fit into memory, or is not finite, ends the loop; the trainer rebuilds the state
and enters it again. Whatever observes the loop is a hook (`training.hooks`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import torch

from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.transfer import TransferredSteps, copy_stream
from ditlab.data.mixture_order import MixtureOrder
from ditlab.data.orders import training_order
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.phase_clock import phase_clock
from ditlab.errors import RunFailed
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.progress import ignore
from ditlab.receipts.records import STOP_VERB
from ditlab.training.checkpointing import CheckpointManager
from ditlab.training.decisions import Action, Intervals, StepFacts, decide, is_due
from ditlab.training.early_stop import Evaluations
from ditlab.training.evaluation import RunEvaluation
from ditlab.training.hooks import Hooks, StepHook
from ditlab.training.metrics import MetricLog
from ditlab.training.plan import TrainingRun, worker_share
from ditlab.training.receipts import StepReceipts
from ditlab.training.recovery import OutOfMemory, is_out_of_memory
from ditlab.training.reporting import AgreedRequest, Reporter, RunOutcome
from ditlab.training.state import CopiedState, TrainingState
from ditlab.training.stepping import Stepper
from ditlab.training.timing import PhaseLog
from ditlab_models.contract import RetiringObjective


def train(
    run: TrainingRun, rank: Rank, reporter: Reporter, hooks: Sequence[StepHook] = ()
) -> RunOutcome:
    """Train one worker to the end of the run's plan, from the newest checkpoint if there is one.

    Raises:
        RunFailed: training diverged, does not fit into memory, or cannot save its last checkpoint.
        OutOfMemory: a worker among several ran out of memory; `MemoryPlan.next_attempt` gives the
            next measure.
    """
    try:
        with Trainer(run, rank, reporter, hooks) as trainer:
            trainer.resume()
            return trainer.train()
    except Exception as error:
        if not is_out_of_memory(error) or isinstance(error, RunFailed):
            raise
        activity = reporter.marker.activity
        step = reporter.marker.step
        raise RunFailed(
            f"out of memory while {activity} at step {step}: lower evaluation.samples or the "
            "model's size, set checkpoint.write=blocking, or raise engine.zero.stage.",
            kind="out_of_memory",
        ) from error


@dataclass(eq=False)
class RollBack(Exception):
    """Step `step` (from 1) was not finite, and the policy is to return to the last checkpoint."""

    step: int


class Trainer:
    """One worker of a run, from the first weight to the last checkpoint.

    As a context it ends training: it stops saving and frees the state, in whatever condition an
    exception left them. After an orderly end the worker's process groups are destroyed too, for the
    next run of the process.
    """

    state: TrainingState
    stepper: Stepper
    _intervals: Intervals
    _last_facts: StepFacts | None
    """Facts about the last step of the attempt; None before its first."""

    def __init__(
        self, run: TrainingRun, rank: Rank, reporter: Reporter, hooks: Sequence[StepHook] = ()
    ) -> None:
        """Build the parts that outlive the training state, and a state of fresh weights."""
        self.run = run
        self.rank = rank
        self.reporter = reporter
        self.memory = run.memory
        self.channel = ControlChannel(rank)
        self.clock = phase_clock(rank.device)
        self.inputs = ModelInputs.from_experiment(
            run.experiment,
            run.data.train.columns,
            rank.device,
            reporter.warn if rank.is_first else ignore,
            run.home,
        )
        phases = PhaseLog(run, rank, reporter, self.clock)
        self.request = AgreedRequest(reporter.requests)
        self.evaluations = Evaluations(run, rank, reporter)
        receipts = StepReceipts(run, rank, reporter.receipts, self.request)
        asynchronous = filter(None, [self.evaluations.asynchronous])
        self.hooks = Hooks([self.request, receipts, phases, reporter, *asynchronous, *hooks])
        self.metrics = MetricLog(run, rank, reporter, phases, self.hooks)
        self.evaluation = RunEvaluation(run, rank, self.channel, self.inputs, reporter)
        self.checkpoints = CheckpointManager(
            run, rank, self.channel, reporter, self.hooks, self.evaluations.needed_checkpoints
        )
        self._build()

    def resume(self) -> int:
        """Load the newest complete checkpoint, if there is one; return the step to continue
        from.
        """
        self.metrics.latest = dict(self.checkpoints.load_newest(self.state))
        self.checkpoints.begin(self.state)
        return self.state.step

    def train(self) -> RunOutcome:
        """Train to the end of the plan, or until a stop request. Raises RunFailed where the run
        cannot continue.
        """
        saved = self.checkpoints.loaded_receipt
        while True:
            try:
                return self.train_span(saves=True, saved=saved)
            except RollBack as request:
                recover = self._roll_back
                step = request.step
            except OutOfMemory as error:
                if self.rank.world_size > 1:
                    # the others wait for this worker in the middle of a step: all start again
                    raise
                recover = self._reduce_memory
                step = error.step
            # Out here the exception is gone, and with it every activation that its traceback held
            # on to.
            saved = recover(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.checkpoints.close()
        self._free_state()
        if kind is None:
            self.checkpoints.release()
            self.channel.close()

    def _build(self) -> None:
        """Build the training state, after freeing the old one: memory may hold one only."""
        if hasattr(self, "state"):
            self._free_state()
        experiment = self.run.experiment
        rank = self.rank
        share = worker_share(
            experiment.num_micro,
            experiment.micro_size,
            rank.rank,
            rank.world_size,
            self.memory.microbatch_splits,
        )
        self.state = TrainingState(self.run, rank, share, self.reporter.marker, self.clock)
        self.stepper = Stepper(
            self.run,
            rank,
            self.state,
            share,
            self.inputs,
            self.metrics.steps,
            self.clock,
            self.hooks,
        )

    def _free_state(self) -> None:
        if hasattr(self, "state"):
            self.state.engine.close()
            del self.state, self.stepper
        gc.collect()
        torch.cuda.empty_cache()  # nothing, without a GPU in use

    def _reduce_memory(self, step: int) -> Mapping[str, str]:
        """Take the next measure for a step (from 0) that did not fit, and continue with the state
        as it is.

        Returns what the hooks would have a checkpoint of it hold.
        """
        self.metrics.read_steps(self.state.step, wait=True)
        self.memory = self.memory.next_attempt(step, self.run.experiment)
        message = self.memory.describe(step, self.run.experiment)
        self.reporter.warn(message)
        self.reporter.tags({"ditlab.failure": "out_of_memory", "ditlab.out_of_memory": message})
        self.reporter.marker.begin(step, "rebuilding the engine", is_untimed=True)
        host = CopiedState.of(self.state)
        self._build()
        self.state.load(host, host.scalars, host.step, host.position)
        return self.hooks.held()

    def _roll_back(self, step: int) -> Mapping[str, str]:
        """Return to the last checkpoint, or to the start; `step` (from 1) is skipped when it comes
        again.

        Returns what that checkpoint holds of the hooks.
        """
        self.metrics.discard_pending()
        self.memory = replace(self.memory, skipped_steps=(*self.memory.skipped_steps, step - 1))
        self.reporter.marker.begin(step, "rolling back", is_untimed=True)
        self.checkpoints.wait()
        self._build()
        to = self.resume()
        self.metrics.monitor.record_rollback(step, to)
        if self.rank.is_first:
            skipped = ", ".join(str(number + 1) for number in self.memory.skipped_steps)
            self.reporter.warn(
                f"step {step} had a NaN or infinite loss or gradient: rolled back to step "
                f"{to}; its batch will be skipped."
            )
            self.reporter.tags({"ditlab.failure": "non_finite", "ditlab.left_out_steps": skipped})
        return self.checkpoints.loaded_receipt

    def train_span(
        self,
        until: int | None = None,
        saves: bool = False,
        saved: Mapping[str, str] = MappingProxyType({}),
    ) -> RunOutcome:
        """Train to the end of the plan, or until a stop request, without recovery.

        With `until` the steps end after that one, with no checkpoint before it; without `saves` no
        checkpoint is saved at all. `saved` is what the checkpoint that the state was loaded from
        holds of the hooks.

        Raises:
            RollBack: a step was not finite, and the run is to return to its last checkpoint.
            OutOfMemory: a step did not fit.
            RunFailed: training diverged, or the last checkpoint could not be saved.
        """
        self._last_facts = None
        self.evaluations.begin(self, saves)
        experiment = self.run.experiment
        self._intervals = Intervals(
            evaluation=experiment.evaluation.every,
            checkpoint=experiment.checkpoint.every,
            until=until,
            saves=saves,
            is_async=self.evaluations.are_async,
            waits_for_values=self.run.waits_for_values,
        )
        for begun in self.hooks.attempt_begun:
            begun(self.stepper, self.memory, saved)
        try:
            stopped = self._train_steps()
            self.reporter.marker.begin(self.state.step, "saving", is_untimed=True)
            with self.clock.phase("checkpoint"):
                self.checkpoints.finish()
            if self.evaluations.are_async and not stopped:
                with self.clock.phase("evaluation"):
                    stopped = self.evaluations.is_stopped_waiting()
            # The times since the last logged step, to the end of the run.
            self.metrics.phases.read(is_over=True)
            self.hooks.exchange(self.state.step, self.channel)
            self.metrics.finish(self.state.step)
        finally:
            for ended in self.hooks.attempt_ended:
                ended()
        facts = self._last_facts
        return RunOutcome(
            "interrupted" if stopped else "finished",
            self.state.step,
            self.metrics.latest,
            self.checkpoints.last,
            is_asked=stopped and facts is not None and facts.request == STOP_VERB,
        )

    def _train_steps(self) -> bool:
        """Do the steps; return True if training stopped before the end of the plan."""
        experiment = self.run.experiment
        state = self.state
        marker = self.reporter.marker
        throughput = self.metrics.throughput
        every = experiment.tracking.every
        evaluations = self.evaluations
        skipped = self.memory.skipped_steps
        self._retire_fields()
        self.inputs.open()
        with ExitStack() as opened:
            loader = opened.enter_context(self._open_loader())
            throughput.restart()
            self.metrics.phases.restart()
            if state.step == 0 and experiment.evaluation.every is not None:
                self._evaluate_start()
            if experiment.engine.compile:
                self.metrics.report_progress(state.step, "compiling")
            # True of an attempt that was killed while a scheduler waited for its evaluation
            stopped = evaluations.waits_still() and evaluations.is_stopped()
            while state.step < evaluations.last_step and not stopped:
                marker.begin(state.step, "waiting for data")
                if self._retire_fields():
                    loader.close()
                    loader = opened.enter_context(self._open_loader())
                with self.clock.phase("data"):
                    batch = next(loader)
                marker.begin(state.step, "training")
                if state.step in skipped:
                    self.stepper.skip()
                else:
                    number = state.step + 1
                    self.stepper.step(
                        batch, is_due(number, every, number in (1, self.evaluations.last_step))
                    )
                throughput.count_step()
                stopped = self._after_step()
        return stopped

    def _evaluate_start(self) -> None:
        """Measure the level of chance; a sampler that fails does so before hours of training."""
        throughput = self.metrics.throughput
        if not self.evaluations.are_async:
            with throughput.paused("evaluation"):
                self.evaluations.record(self.state.step, self._evaluate())
        elif not self.checkpoints.last:
            with throughput.paused("checkpoint"):
                self._save()

    def _after_step(self) -> bool:
        """Check, evaluate, answer and save as decided after a step; return True if training stops
        here.
        """
        step = self.state.step
        metrics = self.metrics
        paused = metrics.throughput.paused
        metrics.read_steps(step)
        self.evaluations.take()
        facts = self._exchange_facts()
        self._last_facts = facts
        actions = decide(facts, self._intervals)
        if Action.CHECK in actions:
            # Checked before it is saved: no checkpoint may hold what has diverged. Once all numbers
            # are there, every worker has seen the same.
            metrics.read_steps(step, wait=True)
            if metrics.bad_step:
                raise RollBack(metrics.bad_step)
            if facts.is_last:
                metrics.monitor.check_end(step, "train/loss" in metrics.latest)
        snapshots = self.checkpoints.snapshots
        if snapshots and snapshots.is_due(step):
            with self.clock.phase("checkpoint"):
                snapshots.save(self.state)
        values: dict[str, float] | None = None
        if Action.EVALUATE in actions:
            with paused("evaluation"):
                values = self._evaluate()
                self.evaluations.record(step, values)
        if Action.REQUEST in actions:
            with paused():
                self._begin_request(facts.request, values)
        if Action.SAVE in actions:
            with paused("checkpoint"):
                self._save()
        stopped = Action.STOP in actions
        if Action.JUDGE in actions:
            with paused():
                stopped = self._judge(is_saved=Action.SAVE in actions)
        if self.checkpoints.num_pending:
            self.checkpoints.report_finished()
        return stopped

    def _exchange_facts(self) -> StepFacts:
        """Agree with the other workers on the facts about the step that has ended."""
        step = self.state.step
        votes = self.reporter.should_stop(), self.metrics.bad_step > 0, self.evaluations.end_run
        with self.clock.phase("reduce"):  # where a worker waits for those that are behind it
            stop, bad, ends = self.hooks.exchange(step, self.channel, *votes)
        if ends and not bad:
            self.evaluations.end_after(step)
        return StepFacts(
            step, step == self.evaluations.last_step, bool(bad), bool(stop), self.request.verb
        )

    def _judge(self, is_saved: bool) -> bool:
        """Ask the scheduler and early stopping about the evaluation of this step; return True if
        training stops.
        """
        with self.clock.phase("evaluation"):
            stopped = self.evaluations.is_stopped()
        is_end = stopped or self.state.step == self.evaluations.last_step
        if is_end and not is_saved:
            self._save()
        return stopped

    def _begin_request(self, verb: str, values: Mapping[str, float] | None) -> None:
        """Do what a request asks for, except saving a checkpoint and ending the run, which follow.

        `values` are those of the evaluation that is due at this step. An evaluation that only a
        request asks for is reported to neither a sweep's scheduler nor early stopping.
        """
        step = self.state.step
        problem = ""
        answer: Mapping[str, float] = {}
        self.request.begin(step)
        if verb in ("evaluate", STOP_VERB):
            if values is None:
                values = self._evaluate(is_recorded=not self.evaluations.are_async)
                if verb == STOP_VERB and not self.evaluations.are_async:  # the run's latest
                    self.metrics.add(step, values)
            answer = values
        elif verb == "sample":
            with self._evaluating():
                problem = self.evaluation.sample(self.state)
        self.reporter.requests.done(step, answer, problem)

    def _evaluate(self, is_recorded: bool = True) -> dict[str, float]:
        with self._evaluating():
            return self.evaluation.evaluate(self.state, self.stepper.share.pass_size, is_recorded)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        step = self.state.step
        marker = self.reporter.marker
        marker.begin(step, "evaluating")
        self.metrics.report_progress(step, "evaluating")
        with self.clock.phase("evaluation"):
            yield
            marker.begin(step, "waiting for the other workers")
            self.channel.barrier()

    def _save(self) -> None:
        state = self.state
        self.reporter.marker.begin(state.step, "saving", is_untimed=True)
        self.metrics.report_progress(state.step, "saving")
        if isinstance(self._order, MixtureOrder):
            counts = self._order.counts(self._order.batch_number(state.position))
            state.draw_counts = {state.position: counts.tolist()}
        with self.clock.phase("checkpoint"):
            self.checkpoints.save(state, self.metrics.latest, self.hooks.held())

    def _retire_fields(self) -> bool:
        """Drop batch fields that the loss no longer reads; return True if they changed."""
        objective = self.state.objective
        if not isinstance(objective, RetiringObjective):
            return False
        return self.inputs.retire(objective.retired_fields(self.state.step))

    def _open_loader(self) -> TransferredSteps:
        experiment = self.run.experiment
        data = self.run.data
        state = self.state
        inputs = self.inputs
        self._order = training_order(
            experiment.data, data, experiment.batch.size, experiment.seed, state.draw_counts
        )
        fields = tuple(field.name for field in inputs.fields)
        share = self.stepper.share.micro_indices
        batches = WorkerBatches(
            data.train, fields, self._order, experiment.micro_size, share, experiment.seed
        )
        for opened in self.hooks.loader_opened:
            opened(batches, state.position)
        stream = copy_stream(self.rank.device)
        loader = Loader(
            batches,
            state.position,
            steps=self.run.plan.total_steps - state.step,
            pin=stream is not None,  # a CPU run takes no memory of a GPU that is there
        )
        return TransferredSteps(loader, inputs.names_read, stream)
