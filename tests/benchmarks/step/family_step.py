"""A step of each family's network over its plain published form's, and their utilisation.

    python tests/benchmarks/step/family_step.py [--spec experiments/mnist/dit.yaml] [--rounds 6] [--quick]

Four sides take turns in one process: our network and loss as they are, the same with blocks compiled as under
`engine.compile: true`, the plain form (tests/benchmarks/plain) and a product of two matrices of 2048 x 2048. The three
trainings share everything else: fused AdamW, clipping, moving average, a read of the loss, float32, one generated
batch. What the platform adds to a step is `step_time.py`'s. Utilisation is the operations that the model needs, counted
on our network (ditlab/planning/flops.py), a second, over those of the round's product. The figure to quote is the
compiled step over the plain one. Nothing is asserted here; pixelhdm, whose plain form stands beside the others, is not
among the sides.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.plain.networks import plain_loss, plain_network
from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import describe_ratios
from ditlab.engine.compilation import compile_blocks
from ditlab.inputs.noise import KeyedNoise
from ditlab.planning.flops import step_flops
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SPECS = ["mnist/dit", "mnist/unet", "digits/dit", "dlm/small", "region/small"]
SIDES = ("eager", "compiled", "plain", "product")


def generated_batch(experiment: Experiment) -> dict[str, torch.Tensor]:
    """Draw a batch of the model's fields: numbers in [-1, 1), tokens of the vocabulary, everything present."""
    batch = {}
    for each in experiment.batch_fields():
        shape = (experiment.batch.size, *each.shape)
        if each.dtype == "bool":
            batch[each.name] = torch.ones(shape, dtype=torch.bool)
        elif each.dtype == "int64":
            batch[each.name] = torch.randint(each.num_classes or 1, shape)
        else:
            batch[each.name] = torch.rand(shape) * 2 - 1
    return batch


def our_loss(experiment: Experiment, network: Any, batch: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return the weighted loss of a batch by the family's objective, with new noise at each call."""
    objective = experiment.family.build_objective(experiment.objective, experiment.model, None)
    steps = itertools.count()

    def loss() -> torch.Tensor:
        noise = KeyedNoise(0, "train", next(steps), 0, experiment.batch.size, torch.device("cpu"))
        parts = objective.loss(network, batch, noise)
        return sum((objective.weights[name] * value for name, value in parts.items()), torch.zeros(()))

    return loss


def build_sides(experiment: Experiment) -> dict[str, Callable[[], object]]:
    """Build the three trainings and the product."""
    batch, ema = generated_batch(experiment), experiment.training.ema
    settings: dict[str, Any] = {
        "lr": experiment.optimizer.lr,
        "weight_decay": experiment.optimizer.weight_decay,
        "max_norm": getattr(experiment.training.clip, "max_norm", None),
        "ema_decay": None if ema is None else ema.decay,
    }
    eager, compiled = (experiment.family.build_network(experiment.model) for _ in range(2))
    compile_blocks(compiled, torch.device("cpu"), False)
    plain: Any = plain_network(experiment.model)
    a, b = torch.randn(2, 2048, 2048)
    return {
        "eager": PlainTraining(eager, our_loss(experiment, eager, batch), **settings).step,
        "compiled": PlainTraining(compiled, our_loss(experiment, compiled, batch), **settings).step,
        "plain": PlainTraining(plain, plain_loss(experiment, plain, batch), **settings).step,
        "product": lambda: a @ b,
    }


def measure(experiment: Experiment, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side by round; a first round, which compiles, is not counted."""
    sides = build_sides(experiment)
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(rounds + 1):
        for name in SIDES:
            since = time.perf_counter()
            sides[name]()
            if number:
                seconds[name].append(time.perf_counter() - since)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, action="append")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--quick", action="store_true", help="one family at a size that measures nothing")
    options = parser.parse_args()
    specs = options.spec or [EXPERIMENTS / f"{name}.yaml" for name in SPECS]
    changes = [] if options.batch is None else [f"batch.size={options.batch}"]
    if options.quick:
        specs, changes = [EXPERIMENTS / "region/small.yaml"], ["batch.size=2", "model.depth=2"]
    over_plain: list[float] = []
    for spec in specs:
        experiment = load_experiment(spec, changes)
        seconds, work = measure(experiment, options.rounds), step_flops(experiment).model
        rates = [2 * 2048**3 / each for each in seconds["product"]]
        print(f"{experiment.name}: {work / 1e9:.1f} GFLOP a step, product {statistics.median(rates) / 1e9:.0f} GFLOP/s")
        for name in SIDES[:3]:
            used = statistics.median(work / each / rate for each, rate in zip(seconds[name], rates, strict=True))
            ratios = [one / plain for one, plain in zip(seconds[name], seconds["plain"], strict=True)]
            milliseconds = statistics.median(seconds[name]) * 1e3
            print(f"  {name:8} {milliseconds:8.1f} ms, utilisation {used:.2f}, over plain: {describe_ratios(ratios)}")
        ratios = [one / plain for one, plain in zip(seconds["compiled"], seconds["plain"], strict=True)]
        over_plain.append(statistics.median(ratios))
    names = ", ".join(
        f"{spec.parent.name}/{spec.stem} {each:.3f}" for spec, each in zip(specs, over_plain, strict=True)
    )
    print(f"ratio compiled over plain, median of {options.rounds} rounds: {names}")


if __name__ == "__main__":
    main()
