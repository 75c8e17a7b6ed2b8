"""Drives engines alone, without loop, loader or checkpoint: each worker follows a script of passes
and steps.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ditlab.engine.distributed import single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment, class_for
from ditlab_models.finetuning import fine_tune
from support.garbage import exempt_imports
from support.trainings.groups import joined, run_group
from support.trainings.workers import same_tensors


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass."""

    micro: int
    """Index of the micro-batch in its step."""
    weight: float = 1.0
    poison: bool = False
    """True for a batch that holds a NaN."""
    start: int = 0
    """First sample, where only a part of the micro-batch is taken."""
    stop: int = 4


@dataclass(frozen=True)
class Step:
    """One optimiser step: each worker's passes, by rank."""

    passes: Sequence[Sequence[Pass]]
    healthy: bool | None = None
    number: int | None = None
    """Number of the step, which draws depend on; null: its place in the script."""


@dataclass(frozen=True)
class Job:
    """A script for an engine; `load` continues a state."""

    experiment: Experiment
    steps: Sequence[Step]
    load: Path | None = None
    save: Path | None = None
    kept: Sequence[int] = ()
    """Places in the script of steps after which one worker's whole state is kept."""


@dataclass
class State:
    """Whole tensors by (field, name), put together from the pieces of all workers; and the engine's
    scalars.
    """

    tensors: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)

    def read(self, name, owner, start, stop):
        return self.tensors[name, owner][start:stop]

    def equals(self, other):
        """Bit for bit."""
        return self.scalars == other.scalars and same_tensors(self.tensors, other.tensors)


@dataclass
class Trace:
    """Results of a script."""

    losses: list[float]
    norms: list[float]
    state: State
    states: dict[int, State]
    """After each step of `kept`."""


def pieces_of(engine):
    return [(*key, values.clone()) for key, values in engine.state()]


def put_together(workers, scalars):
    """Pieces of all workers as whole tensors (at stage 0 every worker has them all)."""
    places = {
        (kind, name, start): values for pieces in workers for kind, name, start, values in pieces
    }
    state = State(scalars=dict(scalars))
    for kind, name, start in sorted(places):
        values = places[kind, name, start]
        before = state.tensors.get((kind, name), values.new_empty(0))
        assert before.numel() == start, (kind, name, start)
        state.tensors[kind, name] = torch.cat([before, values])
    return state


def state_of(engine):
    """The state of a group's only worker."""
    return put_together([pieces_of(engine)], engine.scalars())


def steps_of(workers=1, numbers=range(4), poisoned=None, spoiled=None):
    """Steps of two passes a worker, with the draws of their numbers; the last worker's first batch
    of step `poisoned` holds a NaN, and step `spoiled` is called unhealthy.
    """
    found = []
    for number in numbers:
        passes = [[Pass(2 * rank), Pass(2 * rank + 1)] for rank in range(workers)]
        if number == poisoned:
            passes[-1][0] = Pass(2 * workers - 2, poison=True)
        found.append(Step(passes, False if number == spoiled else None, number))
    return found


def batch_of(step, part):
    generator = torch.Generator().manual_seed(1000 * step + part.micro)
    image = torch.rand(4, 1, 8, 8, generator=generator)[part.start : part.stop] * 2 - 1
    if part.poison:
        image[0, 0, 3, 3] = torch.nan
    return {"image": image}


def noise_of(step, part):
    return KeyedNoise(0, "train", step, part.micro, 4, torch.device("cpu"), part.start)


def module_for(experiment):
    torch.manual_seed(0)
    objective = experiment.family.build_objective(experiment.objective, experiment.model)
    network = experiment.family.build_network(experiment.model)
    with torch.no_grad():
        # layers that begin at zero would hide half of the network
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    fine_tune(network, objective.modules, experiment.training, seed=len)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(".lora_B"):
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return TrainingModule(network, objective)


def engine_for(experiment, rank, accumulation, micro_size=4, module=None):
    return Engine(module or module_for(experiment), experiment, rank, micro_size, accumulation)


def run_step(engine, number, passes, healthy=None):
    """(loss of the passes by their weights, norm)."""
    total = 0.0
    for at, part in enumerate(passes):
        values = engine.forward_backward(
            batch_of(number, part),
            noise_of(number, part),
            at == len(passes) - 1,
            weight=part.weight,
        )
        total += part.weight * float(values["loss"]) / len(passes) if part.weight else 0.0
    flag = None if healthy is None else torch.tensor(healthy)
    return total, float(engine.step(number, 1e-3, flag))


def drive(rank, job):
    """One worker's part: (losses, norms, pieces, scalars, states)."""
    engine = engine_for(job.experiment, rank, len(job.steps[0].passes[0]))
    if job.load:
        start = torch.load(job.load, weights_only=False)
        engine.load_state(start.read, start.scalars, has_ema=True)
    losses, norms, states = [], [], {}
    for place, step in enumerate(job.steps):
        number = place if step.number is None else step.number
        loss, norm = run_step(engine, number, step.passes[rank.rank], step.healthy)
        losses.append(loss)
        norms.append(norm)
        if place in job.kept:
            states[place] = state_of(engine)
    result = losses, norms, pieces_of(engine), engine.scalars(), states
    engine.close()
    return result


def drive_here(job):
    """One worker, in this process."""
    with single_process(use_gpu=False) as rank:
        trace = _trace(job, [drive(rank, job)])
    exempt_imports()
    return trace


def drive_workers(jobs, world_size):
    """Several scripts, one after the other, on the same `world_size` processes."""
    with tempfile.TemporaryDirectory() as folder:
        plain = [
            (job.experiment.to_dict(), (job.steps, job.load, job.save, job.kept)) for job in jobs
        ]
        run_group(_body, (world_size, plain, folder), world_size)
        parts = [
            torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(world_size)
        ]
    return [_trace(job, [part[number] for part in parts]) for number, job in enumerate(jobs)]


def _body(rank, world_size, jobs, folder):
    with joined(rank, world_size, folder) as place:
        found = [
            drive(place, Job(class_for(spec).model_validate(spec), *rest)) for spec, rest in jobs
        ]
        torch.save(found, Path(folder, f"{rank}.pt"))


def _trace(job, parts):
    state = put_together([part[2] for part in parts], parts[0][3])
    if job.save:
        torch.save(state, job.save)
    losses = [sum(values) / len(parts) for values in zip(*(part[0] for part in parts), strict=True)]
    for part in parts:
        assert part[3] == parts[0][3], "workers disagree on the scalars"
        assert str(part[1]) == str(parts[0][1]), "workers disagree on the norms"
    return Trace(losses, parts[0][1], state, parts[0][4])
