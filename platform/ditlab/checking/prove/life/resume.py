"""A kill and a resume in the middle of an epoch, against the same run never stopped: equal to the bit."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ditlab.checking.prove.findings import Compared
from ditlab.checking.prove.life.comparing import equal_values, exact
from ditlab.checking.prove.life.observed_steps import (
    BEFOREHAND,
    CopiedState,
    ObservedTraining,
    StepRecord,
    observe_training,
)
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import Rank
from ditlab.training.plan import RunPlan, TrainingRun

RESUME = "resume"
"""Phase of these comparisons."""
DRAWS = "draws"
"""Phase of the comparison of draws with one another."""
MOST_STEPS = 4
"""Steps of the run that is never stopped, where it has as many."""
STATE = {
    "master": "master weights", "exp_avg": "first moments", "exp_avg_sq": "second moments", "momentum": "momentum",
    "ema": "average", "buffer": "buffers",
}  # fmt: skip
"""Fields of a state, in words."""


@dataclasses.dataclass(frozen=True)
class StopSteps:
    """Steps after which a run is stopped."""

    last: int
    """For good."""
    middle: int
    """For a resume."""


@dataclasses.dataclass(frozen=True)
class ResumedRun:
    """One run, never stopped, and the same stopped and resumed."""

    whole: ObservedTraining
    stopped: ObservedTraining
    resumed: ObservedTraining


def stop_steps(plan: RunPlan) -> StopSteps | None:
    """Return the steps after which a run is stopped, None for a run of one step.

    The resume is in the middle of an epoch where an epoch has several steps.
    """
    last = min(MOST_STEPS, plan.total_steps)
    if last < 2:
        return None
    middle = last // 2
    if plan.epoch_steps > 1 and middle % plan.epoch_steps == 0:
        middle = middle + 1 if middle + 1 < last else middle - 1
    return StopSteps(last, max(1, middle))


def train_resumed(run: TrainingRun, rank: Rank, folder: Path, whole: ObservedTraining, middle: int) -> ResumedRun:
    """Train to step `middle`, then go on from the checkpoint in a state built anew to where `whole` has ended."""
    own = dataclasses.replace(run, checkpoints=CheckpointStore.at(folder / "stopped"))
    stopped = observe_training(own, rank, middle, process_seed=1)
    resumed = observe_training(own, rank, whole.ended.step, process_seed=2)
    return ResumedRun(whole, stopped, resumed)


def compare_resume(runs: ResumedRun) -> Iterator[Compared]:
    """Yield the comparisons of one worker: what was loaded, then the steps, then the state at the end."""
    yield from compare_states(runs.stopped.ended, runs.resumed.begun, "after loading")
    yield from _compare_steps(runs)
    failures = [f"{runs.resumed.failure}"] if runs.resumed.failure else []
    yield exact(RESUME, "trainings that ended early", len(failures), 1, "trainings", *failures)
    yield from compare_states(runs.whole.ended, runs.resumed.ended, f"after step {runs.whole.ended.step}")


def compare_states(one: CopiedState, two: CopiedState, when: str) -> Iterator[Compared]:
    """Yield one comparison for each field of two states, naming the first tensor that differs; then the scalars."""
    every = {**one.tensors, **two.tensors}
    for field in dict.fromkeys(key[0] for key in every):
        words, keys = STATE.get(field, field), [key for key in every if key[0] == field]
        differing = [key for key in keys if not _same(one.tensors.get(key), two.tensors.get(key))]
        where = [f"first in {key[1]}" for key in differing[:1]]
        yield exact(RESUME, f"{words} {when}", len(differing), len(keys), "tensors", *where)
    places = {"step": (one.step, two.step), "position": (one.position, two.position)}
    scalars = {name: (one.scalars.get(name), two.scalars.get(name)) for name in {**one.scalars, **two.scalars}}
    wrong = [f"{name} {first} and {second}" for name, (first, second) in (places | scalars).items() if first != second]
    yield exact(RESUME, f"counters {when}", len(wrong), len(places | scalars), "numbers", "; ".join(wrong))


def compare_draws(steps: Mapping[int, StepRecord]) -> Compared:
    """Compare the draws of a training's steps and passes with one another: none may come again."""
    seen: dict[str, str] = {}
    again = []
    for number, record in sorted(steps.items()):
        for name, draw in record.draws.items():
            if draw.key != BEFOREHAND and draw.digest in seen:
                again.append(f"step {number}, {name}, is {seen[draw.digest]} again")
            seen.setdefault(draw.digest, f"step {number}, {name}")
    num = sum(len(record.draws) for record in steps.values())
    return exact(DRAWS, "draws that came before", len(again), num, "draws", *again[:1])


def compare_fields(run: TrainingRun, state: CopiedState) -> Compared:
    """Compare the fields that a worker's part of a state holds with those that the spec asks for."""
    moments = ["momentum"] if run.experiment.optimizer.kind == "muon" else ["exp_avg", "exp_avg_sq"]
    wanted = ["master", *moments, *(["ema"] if run.experiment.training.ema else [])]
    missing = [STATE[field] for field in wanted if state.tensors and not any(key[0] == field for key in state.tensors)]
    return exact(RESUME, "parts of the state saved", len(missing), len(wanted), "parts", "; ".join(missing))


def _same(one: Tensor | None, two: Tensor | None) -> bool:
    return one is not None and two is not None and equal_values(one, two)


def _compare_steps(runs: ResumedRun) -> Iterator[Compared]:
    """Yield the comparisons of what the steps after the resume took and gave."""
    steps = range(runs.stopped.ended.step + 1, runs.whole.ended.step + 1)
    parts = [(number, runs.whole.steps.get(number), runs.resumed.steps.get(number)) for number in steps]
    missing = [number for number, one, two in parts if one is None or two is None]
    yield exact(RESUME, "steps trained", len(missing), len(parts), "steps", *(f"step {n} lacks" for n in missing[:1]))
    pairs = [(number, one, two) for number, one, two in parts if one is not None and two is not None]
    earlier = {draw.digest: number for number, record in runs.whole.steps.items() for draw in record.draws.values()}
    places = {digest: number for number, record in runs.whole.steps.items() for digest in record.samples}
    samples, draws, rates, values = [], [], [], []
    for number, one, two in pairs:
        for place in range(max(len(one.samples), len(two.samples))):
            fed = two.samples[place] if place < len(two.samples) else ""
            if one.samples[place : place + 1] != [fed]:
                source = f", which the run never stopped was fed at step {places[fed]}" if fed in places else ""
                samples.append(f"step {number} was fed another sample at place {place + 1}{source}")
        for name in {**one.draws, **two.draws}:
            own = two.draws.get(name)
            if one.draws.get(name) != own:
                step = earlier.get(own.digest) if own else None
                source = f", those of step {step} again" if step not in (None, number) else ""
                draws.append(f"step {number} drew other numbers in {name}{source}")
        rates += [f"step {number}: {a} and {b}" for a, b in zip(one.rates, two.rates, strict=False) if a != b]
        for name in one.values:
            if name.startswith("train/") and name not in TIMES and not _equal(one.values[name], two.values.get(name)):
                values.append(f"{name} of step {number}: {one.values[name]} and {two.values.get(name)}")
    num_samples = sum(len(one.samples) for _, one, _ in pairs)
    yield exact(RESUME, "samples fed", len(samples), num_samples, "samples", *samples[:1])
    yield exact(RESUME, "draws", len(draws), sum(len(one.draws) for _, one, _ in pairs), "draws", *draws[:1])
    yield exact(RESUME, "learning rates", len(rates), sum(len(one.rates) for _, one, _ in pairs), "rates", *rates[:1])
    num_values = sum(name.startswith("train/") for _, one, _ in pairs for name in one.values)
    if num_values:
        yield exact(RESUME, "losses", len(values), num_values, "values", *values[:1])


TIMES = ("train/samples_per_second", "train/data_wait")
"""Metrics that a clock decides."""


def _equal(one: float, two: float | None) -> bool:
    return two is not None and (one == two or (math.isnan(one) and math.isnan(two)))
