"""A step of each family's network over its plain published form's: time, utilisation, rate and
memory.

    python benchmarks/step/family_step.py [--only mnist/dit] [--rounds 8] [--set
        batch.size=16] [--threads 2]
        [--device cuda] [--precision bf16] [--quick]

Three trainings take turns in one process, in an order that moves on every round: the plain form
(benchmarks/plain), our network and loss as they are, and the same with blocks compiled as
under `engine.compile: true`. All three have fused AdamW, clipping, a moving average, a read of the
loss, and one generated batch; `bf16` is torch's autocast around each loss. What the platform adds
to a step is `step_time.py`'s. In each round a product of two matrices (2048 x 2048, on CUDA 8192 x
8192) is timed as well, the fastest of a few. On a CPU our steps keep memory from step to step, as
the engine does, and the plain one has the C library's own settings; behind each change of these an
untimed step goes before the timed one.

Utilisation is the operations a second of the plain network and loss, over those of the round's
product. Where the plain form computes more than the loss needs (region's last block of every
region, dlm's head of every token), that counts for all three, and the operations that ours counts
are printed beside it. Memory is parameters, optimiser and average, and what a step takes at its
peak. The figure to quote is the compiled step over the plain one. Nothing is asserted here.
`families.py` says which sizes two cores bear.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.families import CASES, QUICK, generated_batch
from benchmarks.peak_memory import step_peak
from benchmarks.plain.networks import plain_loss, plain_network
from benchmarks.plain.training import PlainTraining
from benchmarks.rounds import Measured, report
from ditlab.engine.compilation import compile_blocks
from ditlab.engine.memory import kept_memory
from ditlab.inputs.flops import ALSO_COUNTED, step_flops
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.experiment import Experiment

TRAININGS = ("plain", "eager", "compiled")
PRODUCT = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the product, by type of device."""
CPU = torch.device("cpu")


def our_loss(
    experiment: Experiment, network: Any, batch: dict[str, torch.Tensor], device: torch.device
) -> Callable[[], torch.Tensor]:
    """Return the weighted loss of a batch by the family's objective, with new noise at each
    call.
    """
    objective = experiment.family.build_objective(experiment.objective, experiment.model, None)
    steps = itertools.count()

    def loss() -> torch.Tensor:
        noise = KeyedNoise(0, "train", next(steps), 0, experiment.batch.size, device)
        parts = objective.loss(network, batch, noise)
        return sum(
            (objective.weights[name] * value for name, value in parts.items()),
            torch.zeros((), device=device),
        )

    return loss


@dataclass(frozen=True)
class Training:
    """A network, and the step that trains it."""

    network: nn.Module
    step: Callable[[], object]
    state: int
    """Bytes of parameters, optimiser and moving average."""


def build_training(
    experiment: Experiment,
    name: str,
    batch: dict[str, torch.Tensor],
    device: torch.device = CPU,
    is_bf16: bool = False,
) -> Training:
    """Build one of `TRAININGS`, for a batch on `device`."""
    ema = experiment.training.ema
    network: Any
    if name == "plain":
        network = plain_network(experiment.model).to(device)
        loss = plain_loss(experiment, network, batch)
    else:
        network = experiment.family.build_network(experiment.model).to(device)
        if name == "compiled":
            compile_blocks(network, device, whole_gathers=False)
        loss = our_loss(experiment, network, batch, device)

    def loss_of_precision() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
            return loss()

    training = PlainTraining(
        network,
        loss_of_precision,
        lr=experiment.optimizer.lr,
        weight_decay=experiment.optimizer.weight_decay,
        max_norm=getattr(experiment.training.clip, "max_norm", None),
        ema_decay=None if ema is None else ema.decay,
    )
    num = sum(each.numel() for each in network.parameters())
    return Training(network, training.step, 4 * num * (3 if ema is None else 4))


def plain_flops(experiment: Experiment) -> int:
    """Count the operations of the plain network's step, forward and backward, on the meta
    device.
    """
    batch = generated_batch(experiment, "meta")
    with torch.device("meta"):
        network = plain_network(experiment.model)
        loss = plain_loss(experiment, network, batch)
        with FlopCounterMode(display=False, custom_mapping=ALSO_COUNTED) as counter:
            loss().backward()
    return counter.get_total_flops()


def product_rate(
    device: torch.device = CPU, dtype: torch.dtype = torch.float32, repeats: int = 3
) -> float:
    """Measure the operations a second of a product of two matrices, the fastest of some."""
    size = PRODUCT[device.type]
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)
    return 2 * size**3 / min(timed(lambda: a @ b, device) for _ in range(1 + repeats))


def timed(call: Callable[[], object], device: torch.device = CPU) -> float:
    """Time a call, in seconds."""
    since = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - since


@dataclass(frozen=True)
class Round:
    """One round: the seconds of a step of each training, and the product's operations a second."""

    seconds: dict[str, float]
    rate: float


@dataclass(frozen=True)
class FamilyRounds:
    """Rounds of one family, and each training's bytes at the peak of a step."""

    rounds: list[Round]
    peaks: dict[str, int]


def measure(experiment: Experiment, num: int, device: torch.device, is_bf16: bool) -> FamilyRounds:
    """Measure rounds behind two that do not count, in which blocks are compiled and memory is
    taken.
    """
    batch = generated_batch(experiment, device.type)
    trainings = {
        name: build_training(experiment, name, batch, device, is_bf16) for name in TRAININGS
    }
    found = []
    for number in range(num + 2):
        shift = number % len(TRAININGS)
        order = TRAININGS[shift:] + TRAININGS[:shift]
        seconds = {}
        for name in order:
            with nullcontext() if name == "plain" or device.type != "cpu" else kept_memory():
                trainings[name].step()  # takes the memory that the step to be timed finds
                seconds[name] = timed(trainings[name].step, device)
        found.append(
            Round(seconds, product_rate(device, torch.bfloat16 if is_bf16 else torch.float32))
        )
    peaks = {name: each.state + step_peak(each.step, device) for name, each in trainings.items()}
    return FamilyRounds(found[2:], peaks)


def report_family(name: str, experiment: Experiment, found: FamilyRounds, device: str) -> None:
    """Print a family's table, and report its compiled step over the plain one."""
    rounds, work = found.rounds, plain_flops(experiment)
    rate = statistics.median(each.rate for each in rounds)
    ours = step_flops(experiment).model
    print(
        f"{name}: {work / 1e9:.1f} GFLOP a step (ours {ours / 1e9:.1f}), product "
        f"{rate / 1e9:.0f} GFLOP/s"
    )
    for training in ("plain", "eager", "compiled"):
        seconds = statistics.median(each.seconds[training] for each in rounds)
        measured = Measured(
            seconds=seconds,
            samples_per_second=experiment.batch.size / seconds,
            utilisation=statistics.median(
                work / each.seconds[training] / each.rate for each in rounds
            ),
            peak_memory=found.peaks[training],
            device=device,
        )
        print(
            f"  {training:8} {seconds * 1e3:8.1f} ms, utilisation {measured.utilisation:.2f}, "
            f"{measured.samples_per_second:.2f} samples/s, peak "
            f"{found.peaks[training] / 2**20:,.0f} MiB"
        )
        if training != "plain":
            ratios = [each.seconds[training] / each.seconds["plain"] for each in rounds]
            report(f"{name}, {training} step over its plain form", ratios, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="this family alone; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--threads", type=int, help="threads to compute with; all cores without it")
    parser.add_argument("--device", choices=list(PRODUCT), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument(
        "--quick", action="store_true", help="one family at a size that measures nothing"
    )
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    for name in list(QUICK) if options.quick else options.only or list(CASES):
        experiment = CASES[name].load([*(QUICK[name] if options.quick else []), *options.changes])
        found = measure(
            experiment, options.rounds, torch.device(options.device), options.precision == "bf16"
        )
        report_family(name, experiment, found, options.device)


if __name__ == "__main__":
    main()
