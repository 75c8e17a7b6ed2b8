"""The body of every worker: build, take up a checkpoint if there is one, step, evaluate, save."""

import gc
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from denoisers.contract import RetiringObjective
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.loading.loader import Loader
from ditlab.data.loading.order import SampleOrder
from ditlab.data.splits import DataSplits
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs, ignore
from ditlab.quality.evaluator import QualityMeter
from ditlab.spec.experiment import Experiment
from ditlab.training.checkpointing import Saving
from ditlab.training.evaluation import held_out_metrics, sample_grid
from ditlab.training.memory import OutOfMemory, Room, is_out_of_memory
from ditlab.training.nonfinite import NonFiniteWatch
from ditlab.training.plan import plan_run
from ditlab.training.reporting import Outcome, Progress, Reporter, StepMetrics
from ditlab.training.shares import share_out
from ditlab.training.speed import Speedometer
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper


class _RollBack(Exception):
    """Step `step` (from 1) was no number, and the policy is to return to the last checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Worker:
    """One worker of a run, from the first weight to the last checkpoint."""

    def __init__(
        self,
        experiment: Experiment,
        data: DataSplits,
        checkpoints: CheckpointStore,
        rank: Rank,
        reporter: Reporter,
        room: Room,
        swap: Path,
        home: Home,
    ) -> None:
        self.experiment, self.data, self.rank, self.reporter = experiment, data, rank, reporter
        self.room, self._swap = room, swap
        self.plan = plan_run(experiment, data)
        self.channel = ControlChannel(rank)
        self.inputs = ModelInputs.of(
            experiment, data.train.columns, rank.device, reporter.warn if rank.is_first else ignore, home
        )
        self.watch = NonFiniteWatch(experiment)
        self.metrics: dict[str, float] = {}
        self.quality = QualityMeter(
            experiment, data, home, rank.device, reporter.warn, reporter.pulse.beat, self.inputs
        )
        self.saving = Saving(experiment, checkpoints, rank, self.channel, reporter)
        self._steps, self._meter = StepMetrics(rank.world_size), Speedometer(experiment.batch.size)
        self._bad_step = 0
        self.state = self._build()

    def _build(self) -> TrainingState:
        self._share = share_out(self.experiment, self.rank.rank, self.rank.world_size, self.room.halvings)
        return TrainingState(self.experiment, self.rank, self._share, self._swap, self.reporter.pulse, self.data.text)

    def _rebuild(self) -> None:
        """Lets the old state go before the new one comes: memory may hold one only."""
        self._let_go()
        self.state = self._build()

    def _let_go(self) -> None:
        if hasattr(self, "state"):
            self.state.close()
            del self.state
        gc.collect()
        if self.rank.device.type == "cuda":
            torch.cuda.empty_cache()

    def resume(self) -> int:
        """Takes up the newest whole checkpoint, if any; returns the step to go on from."""
        self.metrics = dict(self.saving.load_newest(self.state))
        self.saving.reserve(self.state)
        return self.state.step

    def run(self) -> Outcome:
        """Steps to the end of the plan, or until somebody asks to stop. Raises RunFailed where it cannot go on."""
        while True:
            try:
                return self._run()
            except _RollBack as wish:
                bad, tight = wish.step, None
            except OutOfMemory as error:
                if self.rank.world_size > 1:
                    raise  # the others wait for this worker in the middle of a step: all begin anew
                bad, tight = 0, error.step
            # Out here the exception is gone, and with it every activation that its traceback held on to.
            if tight is not None:
                self._make_room(tight)
            else:
                self._roll_back(bad)

    def close(self) -> None:
        self.saving.close()
        self._let_go()

    def release(self) -> None:
        """Gives back what the process keeps for its workers, for the next run in it."""
        self.saving.release()
        self.channel.close()

    def _run(self) -> Outcome:
        experiment, total, state = self.experiment, self.plan.total_steps, self.state
        stopped = False
        self._retire()
        self.inputs.open()
        with ExitStack() as opened:
            loader = opened.enter_context(self._loader())
            meter, pulse = self._meter, self.reporter.pulse
            stepper = Stepper(
                experiment, self.plan, self.rank, state, self._share, self.inputs, self.data.train.columns, self._steps
            )
            meter.restart()
            if state.step == 0 and experiment.evaluation.every is not None:
                with meter.paused():
                    self._evaluate()  # what chance gives; and a sampler that fails does so before hours of training
            while state.step < total and not stopped:
                pulse.at(state.step, "waiting for data")
                if self._retire():
                    loader.close()
                    loader = opened.enter_context(self._loader())
                batch = next(loader)
                pulse.at(state.step, "training")
                if state.step in self.room.left_out:
                    stepper.pass_over()
                else:
                    stepper.step(batch, _due(state.step + 1, experiment.tracking.every, state.step + 1 in (1, total)))
                meter.tick()
                self._log()
                last = state.step == total
                stop, bad = self.channel.largest(self.reporter.should_stop(), self._bad_step > 0)
                stopped = bool(stop) and not last
                evaluates = not stopped and _due(state.step, experiment.evaluation.every, last)
                saves = stopped or last or _due(state.step, experiment.checkpoint.every, last)
                if evaluates or saves or bad:
                    # What is saved is looked at first: no checkpoint shall hold what has diverged. Once all numbers
                    # are there, every worker has seen the same.
                    self._log(wait=True)
                if (evaluates or saves or bad) and self._bad_step:
                    raise _RollBack(self._bad_step)
                with meter.paused():
                    if evaluates:
                        self._evaluate()
                    if saves:
                        self._save()
                    if evaluates and not last:
                        stopped = self._is_over_after_evaluation()
                        if stopped and not saves:
                            self._save()
                self.saving.report()
        pulse.at(state.step, "saving", is_patient=True)
        self.saving.finish()
        status = "interrupted" if stopped else "finished"
        return Outcome(status, state.step, self.metrics, self.saving.last)  # type: ignore[arg-type]

    def _save(self) -> None:
        self.reporter.pulse.at(self.state.step, "saving", is_patient=True)
        self._progress("saving")
        self.saving.begin(self.state, self.metrics)

    def _is_over_after_evaluation(self) -> bool:
        """Passes an evaluation on; a sweep may end the run because of it."""
        while True:  # in rounds, as the others' wait in a collective has a limit
            is_held = self.rank.is_first and self.reporter.evaluated(self.state.step, self.metrics)
            waits, stops = self.channel.largest(is_held, self.reporter.should_stop())
            if stops or not waits:
                return bool(stops)

    def _retire(self) -> bool:
        """Leaves out the fields that the loss reads no more, and whatever makes them; whether there was a change."""
        objective, step = self.state.objective, self.state.step
        return isinstance(objective, RetiringObjective) and self.inputs.retire(objective.retired_fields(step))

    def _loader(self) -> Loader:
        experiment = self.experiment
        return Loader(
            self.data.train,
            self.inputs.fields,
            SampleOrder.of(self.data.train, experiment.batch.size, experiment.seed),
            self.state.position,
            experiment.micro_size,
            self._share.micro_indices,
            steps=self.plan.total_steps - self.state.step,
            pin=self.rank.device.type == "cuda",  # a CPU run takes no memory of a GPU that is there
        )

    def _make_room(self, step: int) -> None:
        """A rung down the ladder for a step that did not fit, with the state as it is."""
        self._log(wait=True)
        self.room = self.room.after(step, self.experiment)
        message = self.room.sentence(step, self.experiment)
        self.reporter.warn(message)
        self.reporter.tags({"ditlab.failure": "out_of_memory", "ditlab.out_of_memory": message})
        self.reporter.pulse.at(step, "building anew", is_patient=True)
        left = self.state.leave()
        self._rebuild()
        self.state.load(left, left.scalars, left.step, left.position)

    def _roll_back(self, step: int) -> None:
        """Back to the last checkpoint, or the beginning; the step is left out when it comes by again."""
        self._bad_step, self._steps = 0, StepMetrics(self.rank.world_size)  # what is done again is measured again
        self.room = replace(self.room, left_out=(*self.room.left_out, step - 1))
        self.reporter.pulse.at(step, "rolling back", is_patient=True)
        self.saving.settle()
        self._rebuild()
        at = self.resume()
        self.watch.rolled_back(step, at)
        if self.rank.is_first:
            self.reporter.warn(f"step {step} was no number: rolled back to step {at}; its batch will be left out.")
            self.reporter.tags({"ditlab.failure": "non_finite", "ditlab.left_out_steps": _listed(self.room.left_out)})

    def _log(self, wait: bool = False) -> None:
        """Looks at every step whose numbers are there, and passes on those that are wanted."""
        is_fp16 = self.experiment.training.precision == "fp16"  # whose gradients overflow until the scale fits
        for read in self._steps.read(wait):
            values = {f"train/{name}": value for name, value in read.values.items()}
            values["train/samples_per_second"] = self._meter.samples_per_second
            is_bad = self.watch.is_bad(read.step, read.values["loss"], 0.0 if is_fp16 else read.values["grad_norm"])
            if is_bad:
                self._left_out(read.step)
            else:
                self.metrics = _renewed(self.metrics, values)
            if self.rank.is_first and (read.wanted or is_bad):
                self.reporter.metrics(read.step, values)
        if self._meter.due(self.state.step == self.plan.total_steps):
            self._progress("training", self._meter.samples_per_second)

    def _left_out(self, step: int) -> None:
        if self.experiment.training.non_finite.policy == "rollback":
            self._bad_step = self._bad_step or step  # the first one: those after it come by again
        elif self.rank.is_first:
            self.reporter.warn(f"step {step} was left out: its loss or gradient was no number.")
            self.reporter.tags({"ditlab.failure": "non_finite", "ditlab.skipped_steps": str(self.watch.skipped)})

    def _progress(self, phase: Any, speed: float = 0.0) -> None:
        step, total = self.state.step, self.plan.total_steps
        if self.rank.is_first:
            left = (total - step) * self.experiment.batch.size / speed if speed else None
            self.reporter.progress(Progress(step, total, speed, dict(self.metrics), phase, left))

    def _evaluate(self) -> None:
        evaluation, rank, state = self.experiment.evaluation, self.rank, self.state
        self.reporter.pulse.at(state.step, "evaluating")
        self._progress("evaluating")
        with state.engine.evaluating():
            found = held_out_metrics(
                state.network, state.objective, self.data.held_out, self.inputs,
                self._share.slice_size, evaluation.limit, rank, self.channel,
            )  # fmt: skip
            # Under ZeRO-3 every forward pass needs every worker; otherwise the first one draws alone.
            if evaluation.samples and (rank.is_first or state.engine.stage == 3):
                figure = sample_grid(state.network, self.experiment, self.data, evaluation.samples, self.inputs)
                if rank.is_first:
                    self.reporter.samples(state.step, figure)
            if evaluation.quality and (rank.is_first or state.engine.stage == 3):
                at_once = max(self._share.slice_size, evaluation.samples)  # both of which have been seen to fit
                drawn = self.quality.draw(state.network, evaluation.quality, at_once)
        values = {f"eval/{name}": value for name, value in found.items()}
        if evaluation.quality:
            self.reporter.pulse.at(state.step, "measuring samples")
            values |= self.quality.measure(drawn) if rank.is_first else {}
        self.metrics = _renewed(self.metrics, values)
        if rank.is_first and values:
            self.reporter.metrics(state.step, values)
        self.reporter.pulse.at(state.step, "waiting for the other workers")
        self.channel.barrier()


def train(
    experiment: Experiment,
    data: DataSplits,
    checkpoints: CheckpointStore,
    rank: Rank,
    reporter: Reporter,
    room: Room | None = None,
    swap: Path | None = None,
    home: Home | None = None,
) -> Outcome:
    """Runs one worker to the end, from the newest checkpoint if there is one.

    `room` says what an earlier try found out about memory; `swap` is where state that is offloaded to NVMe lies;
    `home` where the classifier of quality figures does (None: DITLAB_HOME).

    Raises:
        RunFailed: it diverged, does not fit, or cannot save its last checkpoint.
        OutOfMemory: a worker among several ran out of memory; `Room.after` says what to try next.
    """
    try:
        home = home or Home.from_environment()
        worker = Worker(experiment, data, checkpoints, rank, reporter, room or Room(), swap or Path("swap"), home)
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
        doing, step = reporter.pulse.doing, reporter.pulse.step
        raise RunFailed(
            f"out of memory while {doing} at step {step}: lower evaluation.samples or the model's size, set "
            "checkpoint.write=blocking, or raise engine.zero.stage.",
            kind="out_of_memory",
        ) from error


def _renewed(metrics: dict[str, float], values: dict[str, float]) -> dict[str, float]:
    """The metrics with new values; none but new ones of their groups (`train`, `eval`): a loss that has come to an end
    has no value."""
    groups = {name.partition("/")[0] for name in values}
    return {name: value for name, value in metrics.items() if name.partition("/")[0] not in groups} | values


def _listed(steps: tuple[int, ...]) -> str:
    return ", ".join(str(step + 1) for step in steps)


def _due(step: int, every: int | None, last: bool) -> bool:
    """Whether something that happens every so many steps, and at the last one, happens now; never for None."""
    return every is not None and (last or step % every == 0)
