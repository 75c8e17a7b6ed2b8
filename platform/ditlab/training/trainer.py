"""Trainer: the body of every worker, its step loop, and its recovery from lack of memory and divergence.

`train` builds or loads the state and runs the step loop, which trains, logs, evaluates and saves. A step that does not
fit into memory, or is not finite, ends the loop; the trainer rebuilds the state and enters it again.
"""

import gc
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from denoisers.contract import RetiringObjective
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.transfer import TransferredSteps, copy_stream
from ditlab.data.mixture_order import MixtureOrder
from ditlab.data.orders import training_order
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.phase_clock import PhaseClock, phase_clock
from ditlab.errors import RunFailed
from ditlab.inputs.model_inputs import ModelInputs, ignore
from ditlab.training.checkpointing import CheckpointManager
from ditlab.training.evaluation import RunEvaluation
from ditlab.training.metrics import MetricLog
from ditlab.training.plan import TrainingRun, WorkerShare, worker_share
from ditlab.training.receipts import StepReceipts
from ditlab.training.recovery import OutOfMemory, is_out_of_memory
from ditlab.training.reporting import Reporter, RunOutcome
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper


class RollBack(Exception):
    """Step `step` (from 1) was not finite, and the policy is to return to the last checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class WorkerParts:
    """Parts of a worker that outlive the training state, which a roll-back or lack of memory builds anew."""

    run: TrainingRun
    rank: Rank
    channel: ControlChannel
    inputs: ModelInputs
    metrics: MetricLog
    evaluation: RunEvaluation
    checkpoints: CheckpointManager
    reporter: Reporter
    clock: PhaseClock
    receipts: StepReceipts


class StepLoop:
    """Steps of one training state, to the end of the plan or until a stop request."""

    def __init__(
        self, parts: WorkerParts, state: TrainingState, share: WorkerShare, skipped_steps: Collection[int]
    ) -> None:
        """Prepare to train `state`; batches of `skipped_steps` (from 0) are taken from the order and not trained on."""
        self._parts, self._state, self._share, self._skipped_steps = parts, state, share, skipped_steps
        self._experiment, self._total_steps = parts.run.experiment, parts.run.plan.total_steps
        self._metrics, self._checkpoints, self._reporter = parts.metrics, parts.checkpoints, parts.reporter
        self._clock = parts.clock
        self._stepper = Stepper(parts.run, parts.rank, state, share, parts.inputs, parts.metrics.steps, parts.clock)

    def run(self) -> RunOutcome:
        """Train to the end of the plan, or until a stop request, and save the last checkpoint.

        Raises:
            RollBack: a step was not finite, and the run is to return to its last checkpoint.
            OutOfMemory: a step did not fit.
            RunFailed: training diverged, or the last checkpoint could not be saved.
        """
        experiment, state, marker = self._experiment, self._state, self._reporter.marker
        throughput, every, stopped = self._metrics.throughput, experiment.tracking.every, False
        self._retire_fields()
        self._parts.inputs.open()
        with ExitStack() as opened:
            loader = opened.enter_context(self._open_loader())
            throughput.restart()
            self._metrics.phases.restart()
            if state.step == 0 and experiment.evaluation.every is not None:
                with throughput.paused():
                    self._evaluate()  # the level of chance; and a sampler that fails does so before hours of training
            while state.step < self._total_steps and not stopped:
                marker.begin(state.step, "waiting for data")
                if self._retire_fields():
                    loader.close()
                    loader = opened.enter_context(self._open_loader())
                with self._clock.phase("data"):
                    batch = next(loader)
                marker.begin(state.step, "training")
                if state.step in self._skipped_steps:
                    self._stepper.skip()
                else:
                    number = state.step + 1
                    self._stepper.step(batch, _is_due(number, every, number in (1, self._total_steps)))
                throughput.count_step()
                stopped = self._after_step()
        marker.begin(state.step, "saving", is_untimed=True)
        with self._clock.phase("checkpoint"):
            self._checkpoints.finish()
        self._log_rest()
        return RunOutcome(
            "interrupted" if stopped else "finished", state.step, self._metrics.latest, self._checkpoints.last
        )

    def _after_step(self) -> bool:
        """Log, evaluate and save what is due after a step; return True if training stops here."""
        experiment, step, metrics = self._experiment, self._state.step, self._metrics
        metrics.read_steps(step)
        last = step == self._total_steps
        with self._clock.phase("reduce"):  # where a worker waits for those that are behind it
            receipts, num_workers = self._parts.receipts, self._parts.rank.world_size
            stop, bad, *rest = self._parts.channel.largest(
                self._reporter.should_stop(), metrics.bad_step > 0,
                *receipts.row(self._stepper.samples), *metrics.phases.row(),
            )  # fmt: skip
        receipts.take(step, rest[:num_workers])
        metrics.phases.take(rest[num_workers:])
        stopped = bool(stop) and not last
        evaluates = not stopped and _is_due(step, experiment.evaluation.every, last)
        saves = stopped or last or _is_due(step, experiment.checkpoint.every, last)
        if evaluates or saves or bad:
            # Checked before it is saved: no checkpoint may hold what has diverged. Once all numbers are there, every
            # worker has seen the same.
            metrics.read_steps(step, wait=True)
            if metrics.bad_step:
                raise RollBack(metrics.bad_step)
        if self._checkpoints.snapshots.is_due(step):
            with self._clock.phase("checkpoint"):
                self._checkpoints.snapshots.save(self._state)
        with metrics.throughput.paused():
            if evaluates:
                self._evaluate()
            if saves:
                self._save()
            if evaluates and not last:
                with self._clock.phase("evaluation"):
                    stopped = self._is_stopped_by_evaluation()
                if stopped and not saves:
                    self._save()
        if self._checkpoints.num_pending:
            self._checkpoints.report_finished()
        return stopped

    def _evaluate(self) -> None:
        step, marker = self._state.step, self._reporter.marker
        marker.begin(step, "evaluating")
        self._metrics.report_progress(step, "evaluating")
        with self._clock.phase("evaluation"):
            self._metrics.add_evaluation(step, self._parts.evaluation.evaluate(self._state, self._share.pass_size))
            marker.begin(step, "waiting for the other workers")
            self._parts.channel.barrier()

    def _save(self) -> None:
        self._reporter.marker.begin(self._state.step, "saving", is_untimed=True)
        self._metrics.report_progress(self._state.step, "saving")
        if isinstance(self._order, MixtureOrder):
            counts = self._order.counts(self._order.batch_number(self._state.position))
            self._state.known_draws = {self._state.position: counts.tolist()}
        with self._clock.phase("checkpoint"):
            self._checkpoints.save(self._state, self._metrics.latest, self._parts.receipts.receipt())

    def _log_rest(self) -> None:
        """Log the times since the last logged step, to the end of the run."""
        phases = self._metrics.phases
        phases.read(is_over=True)
        phases.take(self._parts.channel.largest(*phases.row()))
        self._metrics.finish(self._state.step)

    def _is_stopped_by_evaluation(self) -> bool:
        """Report an evaluation, and wait as long as a sweep's scheduler wants; return True if the run ends there."""
        while True:  # in rounds, as the others' wait in a collective has a limit
            waits = self._parts.rank.is_first and self._reporter.evaluated(self._state.step, self._metrics.latest)
            waits_still, stops = self._parts.channel.largest(waits, self._reporter.should_stop())
            if stops or not waits_still:
                return bool(stops)

    def _retire_fields(self) -> bool:
        """Leave out batch fields that the loss does not read any more; return True if they changed."""
        objective, step = self._state.objective, self._state.step
        return isinstance(objective, RetiringObjective) and self._parts.inputs.retire(objective.retired_fields(step))

    def _open_loader(self) -> TransferredSteps:
        experiment, data, state = self._experiment, self._parts.run.data, self._state
        self._order = training_order(experiment.data, data, experiment.batch.size, experiment.seed, state.known_draws)
        batches = WorkerBatches(
            data.train,
            tuple(field.name for field in self._parts.inputs.fields),
            self._order,
            experiment.micro_size,
            self._share.micro_indices,
        )
        stream = copy_stream(self._parts.rank.device)
        loader = Loader(
            batches,
            self._state.position,
            steps=self._total_steps - self._state.step,
            pin=stream is not None,  # a CPU run takes no memory of a GPU that is there
        )
        return TransferredSteps(loader, self._parts.inputs.names_read, stream)


def _is_due(step: int, every: int | None, last: bool) -> bool:
    """Return True if something that happens every so many steps, and at the last one, happens now; never for None."""
    return every is not None and (last or step % every == 0)


def train(run: TrainingRun, rank: Rank, reporter: Reporter) -> RunOutcome:
    """Train one worker to the end of the run's plan, from the newest checkpoint if there is one.

    Raises:
        RunFailed: training diverged, does not fit into memory, or cannot save its last checkpoint.
        OutOfMemory: a worker among several ran out of memory; `MemoryPlan.next_attempt` gives the next measure.
    """
    try:
        worker = Worker(run, rank, reporter)
        try:
            worker.resume()
            outcome = worker.run()
        finally:
            worker.close()
        worker.release()
        return outcome
    except Exception as error:
        if not is_out_of_memory(error) or isinstance(error, RunFailed):
            raise
        activity, step = reporter.marker.activity, reporter.marker.step
        raise RunFailed(
            f"out of memory while {activity} at step {step}: lower evaluation.samples or the model's size, set "
            "checkpoint.write=blocking, or raise engine.zero.stage.",
            kind="out_of_memory",
        ) from error


class Worker:
    """One worker of a run, from the first weight to the last checkpoint."""

    def __init__(self, run: TrainingRun, rank: Rank, reporter: Reporter) -> None:
        self._run, self._rank, self._reporter = run, rank, reporter
        self._memory = run.memory
        channel, clock = ControlChannel(rank), phase_clock(rank.device)
        inputs = ModelInputs.from_experiment(
            run.experiment, run.data.train.columns, rank.device, reporter.warn if rank.is_first else ignore, run.home
        )
        receipts = StepReceipts(run, rank, reporter.receipts)
        self._parts = WorkerParts(
            run,
            rank,
            channel,
            inputs,
            MetricLog(run, rank, reporter, clock, receipts),
            RunEvaluation(run, rank, channel, inputs, reporter),
            CheckpointManager(run, rank, channel, reporter),
            reporter,
            clock,
            receipts,
        )
        self._state = self._build()

    @property
    def state(self) -> TrainingState:
        """State in training; another one after a roll-back or a halved micro-batch."""
        return self._state

    def resume(self) -> int:
        """Load the newest complete checkpoint, if there is one; return the step to continue from."""
        self._parts.metrics.latest = dict(self._parts.checkpoints.load_newest(self._state))
        self._parts.checkpoints.snapshots.begin(self._state)
        self._parts.checkpoints.reserve(self._state)
        return self._state.step

    def run(self) -> RunOutcome:
        """Train to the end of the plan, or until a stop request. Raises RunFailed where the run cannot continue."""
        saved = self._parts.checkpoints.loaded_receipt
        while True:
            self._parts.receipts.begin(self._state.step, self._memory, saved)
            try:
                return self._step_loop().run()
            except RollBack as request:
                bad_step, failed_step = request.step, None
            except OutOfMemory as error:
                if self._rank.world_size > 1:
                    raise  # the others wait for this worker in the middle of a step: all start again
                bad_step, failed_step = 0, error.step
            # Out here the exception is gone, and with it every activation that its traceback held on to.
            if failed_step is not None:
                self._reduce_memory(failed_step)
                saved = self._parts.receipts.receipt()
            else:
                self._roll_back(bad_step)
                saved = self._parts.checkpoints.loaded_receipt

    def close(self) -> None:
        """Stop saving and free the state, in whatever condition an exception left them."""
        self._parts.checkpoints.close()
        self._free_state()

    def release(self) -> None:
        """Destroy the worker's process groups after an orderly end, for the next run of the process."""
        self._parts.checkpoints.release()
        self._parts.channel.close()

    def _step_loop(self) -> StepLoop:
        return StepLoop(self._parts, self._state, self._share, self._memory.skipped_steps)

    def _build(self) -> TrainingState:
        rank, experiment = self._rank, self._run.experiment
        self._share = worker_share(
            experiment.num_micro, experiment.micro_size, rank.rank, rank.world_size, self._memory.halvings
        )
        return TrainingState(self._run, rank, self._share, self._reporter.marker, self._parts.clock)

    def _rebuild(self) -> None:
        """Free the old state before building the new one: memory may hold one only."""
        self._free_state()
        self._state = self._build()

    def _free_state(self) -> None:
        if hasattr(self, "_state"):
            self._state.close()
            del self._state
        gc.collect()
        torch.cuda.empty_cache()  # nothing, without a GPU in use

    def _reduce_memory(self, step: int) -> None:
        """Take the next measure for a step (from 0) that did not fit, and continue with the state as it is."""
        self._parts.metrics.read_steps(self._state.step, wait=True)
        self._memory = self._memory.next_attempt(step, self._run.experiment)
        message = self._memory.describe(step, self._run.experiment)
        self._reporter.warn(message)
        self._reporter.tags({"ditlab.failure": "out_of_memory", "ditlab.out_of_memory": message})
        self._reporter.marker.begin(step, "rebuilding the engine", is_untimed=True)
        host = self._state.offload_to_host()
        self._rebuild()
        self._state.load(host, host.scalars, host.step, host.position)

    def _roll_back(self, step: int) -> None:
        """Return to the last checkpoint, or to the start; `step` (from 1) is left out when it comes again."""
        self._parts.metrics.discard_pending()
        self._memory = replace(self._memory, skipped_steps=(*self._memory.skipped_steps, step - 1))
        self._reporter.marker.begin(step, "rolling back", is_untimed=True)
        self._parts.checkpoints.wait()
        self._rebuild()
        to = self.resume()
        self._parts.metrics.monitor.record_rollback(step, to)
        if self._rank.is_first:
            skipped = ", ".join(str(number + 1) for number in self._memory.skipped_steps)
            self._reporter.warn(
                f"step {step} had a NaN or infinite loss or gradient: rolled back to step {to}; its batch will be left "
                "out."
            )
            self._reporter.tags({"ditlab.failure": "non_finite", "ditlab.left_out_steps": skipped})
