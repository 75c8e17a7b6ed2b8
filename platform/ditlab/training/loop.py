"""The body of every worker: build, take up a checkpoint if there is one, step, evaluate, save."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.data.fields import to_device
from ditlab.data.loader import Loader
from ditlab.data.sampler import SampleOrder, worker_micro_indices
from ditlab.data.sources import DataSplits
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment
from ditlab.training.checkpoint import CheckpointReader, CheckpointWriter, Manifest, newest_checkpoint, prune
from ditlab.training.evaluation import held_out_metrics, sample_grid
from ditlab.training.networks import RootedNetwork, named_parameters, persistent_buffers, whole_shape
from ditlab.training.noise import KeyedNoise, derived_seed
from ditlab.training.plan import plan_run
from ditlab.training.reporting import Outcome, Progress, Reporter, StepMetrics
from ditlab.training.schedules import learning_rate
from ditlab.training.speed import Speedometer


class Worker:
    """One worker of a run, from the first weight to the last checkpoint."""

    def __init__(
        self, experiment: Experiment, data: DataSplits, checkpoints: Path, rank: Rank, reporter: Reporter
    ) -> None:
        self.experiment, self.data, self.checkpoints = experiment, data, checkpoints
        self.rank, self.reporter = rank, reporter
        self.plan = plan_run(experiment, data)
        self.channel = ControlChannel(rank)
        self.fields = experiment.model.batch_fields()
        self.objective: Any = experiment.objective.build(experiment.model)
        torch.manual_seed(derived_seed(experiment.seed, "weights"))
        network: Any = experiment.model.build()
        self.engine = Engine(TrainingModule(network, self.objective), experiment, rank)
        self.network = RootedNetwork(self.engine, network)
        owners = {"network": network, "objective": self.objective.modules or nn.Module()}
        self._buffers = dict(persistent_buffers(owners))
        named = [*named_parameters(owners), *self._buffers.items()]
        self.shapes = {name: list(whole_shape(value)) for name, value in named}
        self.step, self.position = 0, 0
        self.metrics: dict[str, float] = {}
        self.saved: Path | None = None

    def resume(self) -> int:
        """Takes up the newest whole checkpoint, if any; returns the step to go on from."""
        found = newest_checkpoint(self.checkpoints, self.reporter.warn) if self.rank.is_first else None
        path = self.channel.gather(str(found.path) if found else None)[0]
        if path is None:
            return 0
        reader = found or CheckpointReader(Path(str(path)), verify=False)
        manifest = reader.manifest
        self.engine.load_state(reader.read, manifest.scalars, reader.has("ema"))
        for name, buffer in self._buffers.items():
            buffer.copy_(reader.read("buffer", name, 0, buffer.numel()).reshape(buffer.shape))
        self.step, self.position = manifest.step, manifest.position
        self.metrics, self.saved = dict(manifest.metrics), reader.path
        return self.step

    def run(self) -> Outcome:
        """Steps to the end of the plan, or until somebody asks to stop. Raises RunFailed for a loss of NaN."""
        experiment, total = self.experiment, self.plan.total_steps
        stopped = False
        with self._loader() as loader:
            micro_batches = iter(loader)
            meter, steps = Speedometer(experiment.batch.size), StepMetrics(self.rank.world_size)
            if self.step == 0 and experiment.evaluation.every is not None:
                with meter.paused():
                    self._evaluate()  # what chance gives; and a sampler that fails does so before hours of training
            while self.step < total and not stopped:
                self._one_step(next(micro_batches), steps)
                meter.tick()
                self._log(steps, meter)
                last = self.step == total
                stopped = self.channel.any(self.reporter.should_stop()) and not last
                if not stopped and _due(self.step, experiment.evaluation.every, last):
                    self._log(steps, meter, wait=True)
                    with meter.paused():
                        self._evaluate()
                if stopped or last or _due(self.step, experiment.checkpoint.every, last):
                    self._log(steps, meter, wait=True)
                    with meter.paused():
                        self.save()
        return Outcome(
            "interrupted" if stopped else "finished",
            self.step,
            self.metrics,
            str(self.saved) if self.saved else None,
        )

    def _loader(self) -> Loader:
        experiment, rank = self.experiment, self.rank
        order = SampleOrder(len(self.data.train), experiment.batch.size, experiment.seed)
        mine = worker_micro_indices(rank.rank, rank.world_size, experiment.batch.size, experiment.micro_size)
        return Loader(
            self.data.train,
            self.fields,
            order,
            self.position,
            experiment.micro_size,
            mine,
            steps=self.plan.total_steps - self.step,
            pin=rank.device.type == "cuda",  # a CPU run takes no memory of a GPU that is there
        )

    def _one_step(self, micro_batches: list[dict[str, Tensor]], steps: StepMetrics) -> None:
        experiment, rank = self.experiment, self.rank
        first = rank.rank * experiment.accumulation * experiment.micro_size
        for number, raw in enumerate(micro_batches):
            batch = to_device(raw, self.fields, self.data.train.columns, rank.device)
            # Without a micro-batch size of its own, an experiment draws for the whole batch and each worker takes its
            # slice, or the number of workers would decide the numbers.
            unit = experiment.batch.micro or experiment.batch.size
            index, start = divmod(first + number * experiment.micro_size, unit)
            noise = KeyedNoise(experiment.seed, "train", self.step, index, unit, rank.device, start)
            last = number == experiment.accumulation - 1
            steps.add(self.engine.forward_backward(batch, noise, last), 1 / experiment.accumulation)
        lr = learning_rate(
            experiment.schedule, experiment.optimizer.lr, self.step, self.plan.total_steps, self.plan.epoch_steps
        )
        norm = self.engine.step(self.step, lr)
        self.step += 1
        self.position += experiment.batch.size
        # A step that is saved is always looked at first: no checkpoint shall hold what has diverged.
        wanted = _due(self.step, experiment.tracking.every, self.step in (1, self.plan.total_steps)) or _due(
            self.step, experiment.checkpoint.every, last=False
        )
        steps.finish(self.step, {"grad_norm": norm, "lr": lr}, wanted)

    def _log(self, steps: StepMetrics, meter: Speedometer, wait: bool = False) -> None:
        for step, values in steps.read(wait):
            if not math.isfinite(values["loss"]):
                raise RunFailed(
                    f"the loss is {values['loss']} at step {step}: training diverged; lower optimizer.lr "
                    f"(now {self.experiment.optimizer.lr}) or training.clip.max_norm, or use training.precision=fp32."
                )
            if self.experiment.training.precision != "fp16" and not 0 <= values["grad_norm"] < math.inf:
                # float16 overflows now and then and leaves the update out; DeepSpeed says -1 for bfloat16's NaN.
                raise RunFailed(
                    f"the gradient at step {step} is not finite: training diverged; lower optimizer.lr "
                    f"(now {self.experiment.optimizer.lr}) or training.clip.max_norm."
                )
            named = {f"train/{name}": value for name, value in values.items()}
            named["train/samples_per_second"] = meter.samples_per_second
            self.metrics.update(named)
            if self.rank.is_first:
                self.reporter.metrics(step, named)
        if self.rank.is_first and meter.due(self.step == self.plan.total_steps):
            self._progress("training", meter.samples_per_second)

    def _progress(self, phase: Any, speed: float = 0.0) -> None:
        left = (self.plan.total_steps - self.step) * self.experiment.batch.size / speed if speed else None
        self.reporter.progress(Progress(self.step, self.plan.total_steps, speed, dict(self.metrics), phase, left))

    def _evaluate(self) -> None:
        evaluation, rank = self.experiment.evaluation, self.rank
        if rank.is_first:
            self._progress("evaluating")
        with self.engine.evaluating():
            found = held_out_metrics(
                self.network, self.objective, self.data.held_out, self.fields,
                self.experiment.micro_size, evaluation.limit, rank, self.channel,
            )  # fmt: skip
            # Under ZeRO-3 every forward pass needs every worker; otherwise the first one draws alone.
            if evaluation.samples and (rank.is_first or self.engine.stage == 3):
                figure = sample_grid(self.network, self.experiment, evaluation.samples, rank.device)
                if rank.is_first:
                    self.reporter.samples(self.step, figure)
        values = {f"eval/{name}": value for name, value in found.items()}
        self.metrics.update(values)
        if rank.is_first and values:
            self.reporter.metrics(self.step, values)
        self.channel.barrier()

    def save(self) -> None:
        """One checkpoint, written by all workers; then the oldest ones beyond `checkpoint.keep` go."""
        rank, experiment = self.rank, self.experiment
        if rank.is_first:
            self._progress("saving")
        writer = CheckpointWriter(self.checkpoints, self.step)
        tensors = {(kind, piece.name, piece.start): values for kind, piece, values in self.engine.state()}
        if self.engine.stage == 0 and not rank.is_first:
            tensors = {}  # every worker holds the same whole state
        if rank.is_first:
            tensors.update({("buffer", name, 0): buffer.float().view(-1) for name, buffer in self._buffers.items()})
        written: list[Any] = self.channel.gather(writer.write_shard(rank.rank, rank.world_size, tensors))
        if rank.is_first:
            hashes = {name: digest for _, shard in written for name, digest in shard.items()}
            manifest = Manifest(
                step=self.step, position=self.position, spec=experiment.to_dict(),
                spec_hash=experiment.content_hash(), scalars=self.engine.scalars(), shapes=self.shapes,
                buffers=list(self._buffers), pieces=[piece for pieces, _ in written for piece in pieces],
                hashes=hashes, metrics=self.metrics,
            )  # fmt: skip
            writer.commit(manifest)
            for _ in prune(self.checkpoints, experiment.checkpoint.keep, writer.path):
                pass
        self.channel.barrier()
        self.saved = writer.path
        self.reporter.checkpoint(self.step, writer.path, self.metrics)


def train(experiment: Experiment, data: DataSplits, checkpoints: Path, rank: Rank, reporter: Reporter) -> Outcome:
    """Runs one worker to the end, from the newest checkpoint if there is one."""
    worker = Worker(experiment, data, checkpoints, rank, reporter)
    try:
        worker.resume()
        return worker.run()
    finally:
        worker.engine.close()


def _due(step: int, every: int | None, last: bool) -> bool:
    """Whether something that happens every so many steps, and at the last one, happens now; never for None."""
    return every is not None and (last or step % every == 0)
