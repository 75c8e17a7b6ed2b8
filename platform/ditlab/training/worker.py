"""Body of every worker: builds or loads the state, trains it, and recovers from lack of memory and divergence."""

import gc
from dataclasses import replace

import torch

from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.phase_clock import phase_clock
from ditlab.errors import RunFailed
from ditlab.inputs.model_inputs import ModelInputs, ignore
from ditlab.training.checkpointing import CheckpointManager
from ditlab.training.evaluation import RunEvaluation
from ditlab.training.loop import RollBack, StepLoop, WorkerParts
from ditlab.training.memory import OutOfMemory, is_out_of_memory
from ditlab.training.metrics import MetricLog
from ditlab.training.plan import TrainingRun
from ditlab.training.receipts.step_receipts import StepReceipts
from ditlab.training.reporting import Reporter, RunOutcome
from ditlab.training.shares import worker_share
from ditlab.training.state import TrainingState


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
