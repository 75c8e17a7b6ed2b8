"""A step of each family's network over its plain published form's, and their utilisation.

    python tests/benchmarks/step/family_step.py [--only mnist/dit] [--rounds 8] [--set batch.size=16] [--quick]

Three trainings take turns in one process, in an order that moves on every round: the plain form
(tests/benchmarks/plain), our network and loss as they are, and the same with blocks compiled as under
`engine.compile: true`. All three have fused AdamW, clipping, a moving average, a read of the loss, float32 and one
generated batch; what the platform adds to a step is `step_time.py`'s. In each round a product of two matrices of
2048 x 2048 is timed as well, the fastest of a few. Utilisation is the operations of the plain network and loss a
second, over those of the round's product. The figure to quote is the compiled step over the plain one. Nothing is
asserted here. `CASES` says which sizes two cores bear.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.plain.networks import plain_loss, plain_network
from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import describe_ratios
from ditlab.engine.compilation import compile_blocks
from ditlab.inputs.noise import KeyedNoise
from ditlab.planning.data_shape import DataShape
from ditlab.spec.experiment import Experiment
from ditlab.spec.loading import load_experiment

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
TRAININGS = ("plain", "eager", "compiled")
PRODUCT = 2048


@dataclass(frozen=True)
class Case:
    """A shipped experiment, and what makes it bearable for two cores."""

    spec: str
    changes: tuple[str, ...] = ()

    def load(self, changes: list[str]) -> Experiment:
        """Load the experiment with further changes."""
        return load_experiment(EXPERIMENTS / f"{self.spec}.yaml", [*self.changes, *changes])


CASES = {
    "mnist/dit": Case("mnist/dit"),
    "mnist/unet": Case("mnist/unet"),
    "digits/dit": Case("digits/dit"),
    "region": Case("region/get", ("model={family: region, width: 384, depth: 6, num_heads: 6}", "batch={size: 4}")),
    "dlm": Case(
        "dlm/small",
        (
            "model={family: dlm, length: 1024, vocabulary: 50257, width: 512, depth: 6, num_heads: 8}",
            "data.length=1024", "batch={size: 1}", "training.precision=fp32",
        ),
    ),
    "pixelhdm": Case(
        "pixelhdm/base",
        (
            "model={family: pixelhdm, width: 256, pixel_width: 16, patch_depth: 8, pixel_depth: 2, num_heads: 4, "
            "num_kv_heads: 1, bottleneck_width: 64, text_length: 64}",
            "objective.weights.alignment=0.0", "batch={size: 4, micro: 4}", "engine.activation_checkpointing=false",
            "training.precision=fp32",
        ),
    ),
}  # fmt: skip
"""Experiments by the names that `--only` takes."""
QUICK = {"region": ["batch.size=2", "model.depth=2", "model.width=96"]}


def generated_batch(experiment: Experiment, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Draw a batch of the model's fields: numbers in [-1, 1), tokens of the vocabulary, everything present."""
    batch, shapes = {}, DataShape().of_experiment(experiment)
    for each in experiment.batch_fields():
        shape = (experiment.batch.size, *shapes[each.name])
        if each.dtype == "bool":
            batch[each.name] = torch.ones(shape, dtype=torch.bool, device=device)
        elif each.dtype == "int64":
            batch[each.name] = torch.randint(each.num_classes or 1, shape, device=device)
        else:
            batch[each.name] = torch.rand(shape, device=device) * 2 - 1
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


def build_training(experiment: Experiment, name: str, batch: dict[str, torch.Tensor]) -> PlainTraining:
    """Build one of `TRAININGS`."""
    ema = experiment.training.ema
    network: Any
    if name == "plain":
        network = plain_network(experiment.model)
        loss = plain_loss(experiment, network, batch)
    else:
        network = experiment.family.build_network(experiment.model)
        if name == "compiled":
            compile_blocks(network, torch.device("cpu"), whole_gathers=False)
        loss = our_loss(experiment, network, batch)
    return PlainTraining(
        network,
        loss,
        lr=experiment.optimizer.lr,
        weight_decay=experiment.optimizer.weight_decay,
        max_norm=getattr(experiment.training.clip, "max_norm", None),
        ema_decay=None if ema is None else ema.decay,
    )


def plain_flops(experiment: Experiment) -> int:
    """Count the operations of the plain network's step, forward and backward, on the meta device."""
    batch = generated_batch(experiment, "meta")
    with torch.device("meta"):
        network = plain_network(experiment.model)
        loss = plain_loss(experiment, network, batch)
        with FlopCounterMode(display=False) as counter:
            loss().backward()
    return counter.get_total_flops()


def product_rate(repeats: int = 3) -> float:
    """Measure the operations a second of a product of two float32 matrices, the fastest of some."""
    a, b = torch.randn(2, PRODUCT, PRODUCT)
    return 2 * PRODUCT**3 / min(timed(lambda: a @ b) for _ in range(repeats))


def timed(call: Callable[[], object]) -> float:
    """Time a call, in seconds."""
    since = time.perf_counter()
    call()
    return time.perf_counter() - since


@dataclass(frozen=True)
class Round:
    """One round: the seconds of a step of each training, and the product's operations a second."""

    seconds: dict[str, float]
    rate: float


def measure(experiment: Experiment, rounds: int) -> list[Round]:
    """Measure rounds behind two that do not count, in which blocks are compiled and memory is taken."""
    batch = generated_batch(experiment)
    trainings = {name: build_training(experiment, name, batch) for name in TRAININGS}
    found = []
    for number in range(rounds + 2):
        shift = number % len(TRAININGS)
        order = TRAININGS[shift:] + TRAININGS[:shift]
        seconds = {name: timed(trainings[name].step) for name in order}
        found.append(Round(seconds, product_rate()))
    return found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(CASES), help="this family alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--quick", action="store_true", help="one family at a size that measures nothing")
    options = parser.parse_args()
    figures = []
    for name in list(QUICK) if options.quick else options.only or list(CASES):
        experiment = CASES[name].load([*(QUICK[name] if options.quick else []), *options.changes])
        rounds, work = measure(experiment, options.rounds), plain_flops(experiment)
        rate = statistics.median(each.rate for each in rounds)
        print(f"{name}: {work / 1e9:.1f} GFLOP a step, product {rate / 1e9:.0f} GFLOP/s")
        for training in TRAININGS:
            milliseconds = statistics.median(each.seconds[training] for each in rounds) * 1e3
            used = statistics.median(work / each.seconds[training] / each.rate for each in rounds)
            ratios = [each.seconds[training] / each.seconds["plain"] for each in rounds]
            print(
                f"  {training:8} {milliseconds:8.1f} ms, utilisation {used:.2f}, over plain: {describe_ratios(ratios)}"
            )
        figures.append(
            f"{name} {statistics.median(each.seconds['compiled'] / each.seconds['plain'] for each in rounds):.3f}"
        )
    print(f"ratio compiled over plain, median of {options.rounds} rounds: {', '.join(figures)}")


if __name__ == "__main__":
    main()
