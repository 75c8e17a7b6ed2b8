"""Distance of rebuilt averages from those that were kept all along, by number of snapshots.

    python benchmarks/runs/average_errors.py [--steps 2000] [--spec SPEC]

One training run. After every step the weights go into averages in float64: five of power-function
profile, and moving averages of some decays, which begin with the initial weights. The two averages
that the engine keeps are copied at the steps of every number of snapshots; then each of the others
is rebuilt from them, as `ditlab evaluate --ema` does. Figures are distances of all weights
together, over the size of the average kept directly. Nothing is asserted here.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

import pytest
import torch
from torch import Tensor

from benchmarks.rounds import report
from ditlab.averages import (
    AverageProfile,
    ExponentialProfile,
    KeptAverage,
    PowerProfile,
    combine,
    length_of,
    snapshot_steps,
)
from ditlab.engine.engine import Engine
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from support.trainings.workers import tiny, train_here

LENGTHS = (0.06, 0.10, 0.15, 0.20, 0.25)
DECAYS = (0.9, 0.98, 0.99, 0.995)
NUMBERS = (4, 8, 12, 16, 24, 48, 96)
DEFAULT = 24
"""`training.averages.snapshots` of a spec that says nothing of it."""
TOLERANCE = 1e-3
"""Error that rebuilt averages of power-function profile are to stay below."""


class Recorded:
    """Averages in float64 over the steps of a run, and copies of those that its engine keeps."""

    def __init__(self, steps: int, numbers: Sequence[int]) -> None:
        self.copied = {
            steps,
            *(step for number in numbers for step in snapshot_steps(0, steps, number)),
        }
        self.direct: dict[AverageProfile, Tensor] = {}
        self.kept: dict[KeptAverage, Tensor] = {}

    def add(self, engine: Engine, update: int) -> None:
        """Take the state after an update (from 1)."""
        fields: dict[str, list[Tensor]] = {}
        for (field, *_), values in engine.state():
            fields.setdefault(field, []).append(values)
        weights = torch.cat(fields["master"]).double()
        for profile in (*map(PowerProfile, LENGTHS), *map(ExponentialProfile, DECAYS)):
            if isinstance(profile, PowerProfile):
                beta = (1 - 1 / update) ** (profile.gamma + 1)
            else:
                beta = min(profile.decay, update / (9 + update))  # update n + 1
            before = self.direct.get(profile, self.first)
            self.direct[profile] = beta * before + (1 - beta) * weights
        for field, values in fields.items():
            if update in self.copied and (length := length_of(field)) is not None:
                self.kept[KeptAverage(length, update)] = torch.cat(values).clone()

    def begin(self, engine: Engine) -> None:
        """Take the initial weights."""
        self.first = torch.cat(
            [values for (field, *_), values in engine.state() if field == "master"]
        ).double()

    def error(self, profile: AverageProfile, steps: int, number: int) -> float:
        """Return the distance of an average that is rebuilt from so many snapshots, relative."""
        ends = {*snapshot_steps(0, steps, number), steps}
        kept = [each for each in self.kept if each.updates in ends]
        combination = combine(kept, profile, steps)
        rebuilt = torch.zeros_like(self.first)
        for each, share in zip(kept, combination.coefficients.tolist(), strict=True):
            rebuilt.add_(self.kept[each].double(), alpha=share)
        return float((rebuilt - self.direct[profile]).norm() / self.direct[profile].norm())


def record(experiment: Experiment, steps: int, numbers: Sequence[int]) -> Recorded:
    """Train a run, and record its averages."""
    recorded, original = Recorded(steps, numbers), Engine.step

    def step(engine: Engine, number: int, *arguments: Any) -> Tensor:
        if number == 0:
            recorded.begin(engine)
        norm = original(engine, number, *arguments)
        recorded.add(engine, number + 1)
        return norm

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "step", step)
        outcome, recorder = train_here(experiment, Path(folder), Path(folder) / "run")
    assert outcome.status == "finished", recorder.warnings
    return recorded


def table(
    recorded: Recorded,
    profiles: Sequence[AverageProfile],
    steps: int,
    heads: Callable[[AverageProfile], str],
) -> None:
    print(f"{'snapshots':>10}{'(number)':>9}" + "".join(f"{heads(each):>13}" for each in profiles))
    for number in NUMBERS:
        errors = "".join(f"{recorded.error(each, steps, number):13.1e}" for each in profiles)
        print(f"{number:>10}{len(snapshot_steps(0, steps, number)):>9}{errors}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    training = {"steps": options.steps, "averages": {}}
    experiment = tiny(
        training=training, checkpoint={"every": None}, batch={"size": 64, "micro": 64}
    )
    if options.spec:
        changed = [
            f"training.steps={options.steps}",
            "training.epochs=null",
            "training.averages={}",
        ]
        experiment = load_experiment(
            options.spec, [*changed, "evaluation.every=null", "checkpoint.every=null"]
        )
    recorded = record(experiment, options.steps, NUMBERS)
    lengths, decays = [*map(PowerProfile, LENGTHS)], [*map(ExponentialProfile, DECAYS)]
    size = recorded.first.numel()
    print(
        f"{experiment.name}, {options.steps} steps, {size:,} weights: error by "
        "training.averages.snapshots"
    )
    table(recorded, lengths, options.steps, lambda each: each.label)
    table(recorded, decays, options.steps, lambda each: each.label)
    for profile in lengths:
        error = recorded.error(profile, options.steps, DEFAULT) / TOLERANCE
        report(
            f"error of length {profile.label} with {DEFAULT} snapshots, over {TOLERANCE:g} of "
            "the average",
            [error],
        )


if __name__ == "__main__":
    main()
