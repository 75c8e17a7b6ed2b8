"""The engine's own cost at one worker: its step at ZeRO stages 0, 1 and 2 over a plain loop's.

    OMP_NUM_THREADS=1 python benchmarks/step/engine_cost.py [--spec
        experiments/mnist/dit.yaml] [--set P=V]

One process, one generated batch, the same network, loss and draws on all sides, which take turns in
an order that moves on every round. A side is the engine as training builds it (DeepSpeed, clipping,
moving average), without loader and metrics, or the plain loop with clipping, fused AdamW and the
same moving average. The figure to quote is that of the slowest stage; `--profile STAGE` prints
where a stage's steps spend their time instead, by operator. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import Measured, describe_ratios, report
from ditlab.engine.distributed import Rank, single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment

STAGES = (0, 1, 2)
WARM_UP = 3


def module_of(experiment: Experiment) -> Any:
    """Build the network and its objective, with the same weights every time."""
    torch.manual_seed(0)
    objective: Any = experiment.family.build_objective(experiment.objective, experiment.model)
    network: Any = experiment.family.build_network(experiment.model)
    return TrainingModule(network, objective)


def batch_of(experiment: Experiment) -> dict[str, Tensor]:
    """Make a batch of images."""
    model: Any = experiment.model
    return {
        "image": torch.rand(
            experiment.batch.size, model.channels, model.image_size, model.image_size
        )
        * 2
        - 1
    }


def engine_step(
    experiment: Experiment, rank: Rank, batch: dict[str, Tensor]
) -> Callable[[], float]:
    """Build an engine; return its step, which reads the loss."""
    engine, size, done = Engine(module_of(experiment), experiment, rank), experiment.batch.size, [0]

    def step() -> float:
        noise = KeyedNoise(0, "train", done[0], 0, size, rank.device, 0)
        losses = engine.forward_backward(batch, noise, last=True)
        engine.step(done[0], experiment.optimizer.lr, losses["loss"].isfinite())
        done[0] += 1
        return float(losses["loss"])

    return step


def plain_step(experiment: Experiment, rank: Rank, batch: dict[str, Tensor]) -> Callable[[], float]:
    """Build the plain loop of the same network and loss."""
    module, size, ema, done = (
        module_of(experiment),
        experiment.batch.size,
        experiment.training.ema,
        [0],
    )

    def loss() -> Tensor:
        done[0] += 1
        total: Tensor = module(
            "loss", batch, KeyedNoise(0, "train", done[0], 0, size, rank.device, 0)
        )[0]
        return total

    return PlainTraining(
        module,
        loss,
        lr=experiment.optimizer.lr,
        weight_decay=experiment.optimizer.weight_decay,
        max_norm=getattr(experiment.training.clip, "max_norm", None),
        ema_decay=None if ema is None else ema.decay,
    ).step


def seconds_of(
    sides: dict[str, Callable[[], float]], rounds: int, block: int
) -> dict[str, list[float]]:
    """Seconds of a step by side and round."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(WARM_UP + rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            begin = time.perf_counter()
            for _ in range(block):
                sides[name]()
            if number >= WARM_UP:
                found[name].append((time.perf_counter() - begin) / block)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/digits/dit.yaml"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--profile", type=int, choices=STAGES)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()

    def experiment_at(stage: int) -> Experiment:
        return load_experiment(
            options.spec, ["engine.compile=false", *options.overrides, f"engine.zero.stage={stage}"]
        )

    with single_process(use_gpu=False) as rank:
        batch = batch_of(experiment_at(0))
        if options.profile is not None:
            step = engine_step(experiment_at(options.profile), rank, batch)
            seconds_of({"engine": step}, 1, 1)
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                for _ in range(options.rounds):
                    step()
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))
            return
        sides = {
            f"ZeRO {stage}": engine_step(experiment_at(stage), rank, batch) for stage in STAGES
        }
        sides["plain"] = plain_step(experiment_at(0), rank, batch)
        seconds = seconds_of(sides, options.rounds, options.block)
    ratios = {
        name: [ours / plain for ours, plain in zip(seconds[name], seconds["plain"], strict=True)]
        for name in sides
        if name != "plain"
    }
    print(f"plain: {statistics.median(seconds['plain']) * 1e3:.1f} ms a step")
    for name, each in ratios.items():
        print(
            f"{name}: {statistics.median(seconds[name]) * 1e3:.1f} ms a step, "
            f"{describe_ratios(each)}"
        )
    slowest = max(ratios, key=lambda name: statistics.median(ratios[name]))
    report(
        f"engine over a plain loop, {slowest}, the slowest",
        ratios[slowest],
        Measured(seconds=statistics.median(seconds[slowest])),
    )


if __name__ == "__main__":
    main()
