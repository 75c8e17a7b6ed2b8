"""A family's sampler over as many bare passes of its network: time, and samples a second.

    python benchmarks/sampling/family_sampling.py [--only mnist/dit] [--rounds 5] [--steps 8]
        [--device cuda]
        [--quick]

The shipped sampler of each family draws a batch in `--steps` steps (region imputes in one pass).
Its passes' inputs are kept, and the network computes the same ones again without a sampler around
it; both take turns in one process. What the ratio has above 1 is the sampler's own work. Sizes are
those of `families.py`. The rate counts the steps that were taken, so that it falls with `--steps`.
Last, pictures of 32 x 32 pixels are drawn as an evaluation draws them, 200 at once by the U-Net of
MNIST, beside a plain loop of Euler's steps over the same network. Nothing is asserted here.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.families import CASES, QUICK, generated_batch
from benchmarks.rounds import Measured, beside, report
from ditlab.inputs.noise import fixed_noise
from ditlab.progress import ignore_progress
from ditlab.quality.sample_quality import draw_reported
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import RealRows, SampleRequest

EVALUATED, EVALUATION_STEPS = 200, 2
"""Pictures that an evaluation draws at once, and steps of their sampler."""


@dataclass
class Passes:
    """Inputs of the passes that a network was asked for."""

    inputs: list[tuple[Any, Any]] = field(default_factory=list)

    def keep(self, _module: object, positional: Any, named: Any) -> None:
        """Keep a copy of the inputs of one pass; a forward hook."""
        copied = tree_map(
            lambda each: each.clone() if isinstance(each, Tensor) else each, (positional, named)
        )
        self.inputs.append(copied)


@dataclass(frozen=True)
class Sides:
    """Draws of a batch by the sampler, and the bare passes of one draw."""

    sample: Callable[[], object]
    bare: Callable[[], object]
    num_passes: int


def build(experiment: Experiment, device: torch.device) -> Sides:
    """Build both sides of a family."""
    torch.manual_seed(0)
    num, family = experiment.batch.size, experiment.family
    network: Any = family.build_network(experiment.model).to(device).eval()
    sampler = family.build_sampler(experiment.sampling, experiment.model, experiment.objective)
    fields = generated_batch(experiment, device.type)
    rows = RealRows(fields, {}, {}, fixed_noise(0, device))
    conditions = sampler.conditions(
        num, SampleRequest(rows=rows if sampler.takes_rows != "none" else None)
    )
    conditions = {name: value.to(device) for name, value in conditions.items()}

    def sample() -> object:
        return sampler.sample(network, conditions, num, torch.Generator().manual_seed(0))

    passes = Passes()
    hook = network.register_forward_pre_hook(passes.keep, with_kwargs=True)
    sample()
    hook.remove()
    assert passes.inputs, f"{experiment.name}: the sampler calls no forward pass"

    @torch.no_grad()
    def bare() -> None:
        for positional, named in passes.inputs:
            network(*positional, **named)

    return Sides(sample, bare, len(passes.inputs))


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Time a call, in seconds."""
    since = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - since


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="this family alone; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of samplers that take steps")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--threads", type=int, help="threads to compute with; all cores without it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--quick", action="store_true", help="one family at a size that measures nothing"
    )
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    for name in list(QUICK) if options.quick else options.only or list(CASES):
        small = QUICK[name] if options.quick else []
        experiment = CASES[name].load([*small, f"sampling.steps={options.steps}", *options.changes])
        sides = build(experiment, device)
        sides.bare()  # warms up
        taken, bare = [], []
        for number in range(options.rounds):
            for side, seconds in ((sides.sample, taken), (sides.bare, bare))[
                :: 1 if number % 2 else -1
            ]:
                seconds.append(timed(side, device))
        middle, num = statistics.median(taken), experiment.batch.size
        measured = Measured(middle, samples_per_second=num / middle, device=options.device)
        print(f"{name}: {num} samples in {sides.num_passes} passes, {num / middle:.3g} samples/s")
        ratios = [one / other for one, other in zip(taken, bare, strict=True)]
        report(f"{name}, sampler over its bare passes", ratios, measured)
    if not options.only and device.type == "cpu":
        report_evaluation(2 if options.quick else EVALUATED, options.rounds)


def report_evaluation(num: int, rounds: int) -> None:
    """Draw `num` pictures at once as an evaluation does, in turns with a plain loop over the
    network.
    """
    experiment = CASES["mnist/unet"].load(
        ["model.image_size=32", f"sampling.steps={EVALUATION_STEPS}"]
    )
    torch.manual_seed(0)
    network: Any = experiment.family.build_network(experiment.model).eval()
    sampler = experiment.family.build_sampler(
        experiment.sampling, experiment.model, experiment.objective
    )
    shape = num, experiment.model.channels, experiment.model.image_size, experiment.model.image_size

    def ours() -> None:
        draw_reported(
            ignore_progress, sampler, network, {}, num, torch.Generator().manual_seed(0), num
        )

    @torch.no_grad()
    def by_hand() -> None:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for step in range(EVALUATION_STEPS):
            x = x + network(x, torch.full((num,), step / EVALUATION_STEPS)) / EVALUATION_STEPS

    row = f"network evaluations of {num} pictures of {shape[-1]} x {shape[-1]}"
    beside(row, "a plain loop over the network", ours, by_hand, at_least=0.9, rounds=rounds)


if __name__ == "__main__":
    main()
