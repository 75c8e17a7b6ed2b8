"""Sampling of a class-conditional DiT beside a plain loop over diffusers' network: eager and
compiled.

    OMP_NUM_THREADS=1 python benchmarks/sampling/dit_peers.py [--rounds 7] [--set P=V]
        [--device cuda]

Our side is the family's sampler, with blocks as they are or compiled as `ditlab sample` has them.
The other is Euler's method written over diffusers' `DiTTransformer2DModel` of the same width, depth
and heads under `inference_mode`, as it is or compiled as a whole by `torch.compile`. Both draw the
same batch in the same steps, guided in one pass of twice the batch. Sides run in processes of their
own, which take turns. `step/dit_peers.py` says how the networks differ. Nothing is asserted here.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, Turns, report_beside, take_turns
from benchmarks.step.dit_peers import ON_A_GPU, diffusers_dit, experiment_of

CHANGES = ("sampling={solver: euler, steps: 10, guidance: 4.0}",)


def sample_ours(
    changes: Sequence[str], device: torch.device, is_compiled: bool, turns: Turns
) -> None:
    """Draw batches by the family's sampler."""
    from ditlab.analysis.drawing import fast_passes

    experiment = experiment_of([*CHANGES, *changes])
    num, family = experiment.batch.size, experiment.family
    network: Any = family.build_network(experiment.model).to(device).eval()
    sampler = family.build_sampler(experiment.sampling, experiment.model, experiment.objective)
    conditions = {name: values.to(device) for name, values in sampler.conditions(num).items()}
    with fast_passes(network, device, is_compiled):
        while True:
            sampler.sample(network, conditions, num, torch.Generator().manual_seed(0))
            if turns.stepped():
                return


def sample_theirs(
    changes: Sequence[str], device: torch.device, is_compiled: bool, turns: Turns
) -> None:
    """Draw batches by a loop over diffusers' network."""
    experiment: Any = experiment_of([*CHANGES, *changes])
    own = diffusers_dit(experiment.model).to(device).eval()
    network = torch.compile(own) if is_compiled else own
    while True:
        with device:
            euler(network, experiment)
        if turns.stepped():
            return


@torch.inference_mode()
def euler(network: Any, experiment: Any) -> Tensor:
    """Integrate from noise at t = 1 to data at t = 0; diffusers' time embedding is made for 0 to
    1000.
    """
    model, num, scale = experiment.model, experiment.batch.size, experiment.sampling.guidance
    x = torch.randn(num, model.channels, model.image_size, model.image_size)
    labels = torch.arange(num) % model.num_classes
    labels = torch.cat((labels, torch.full_like(labels, model.num_classes)))
    times = torch.linspace(1, 0, experiment.sampling.steps + 1).tolist()
    for t, t_next in pairwise(times):
        found = network(
            torch.cat((x, x)), torch.full((2 * num,), 1000 * t), labels, return_dict=False
        )[0]
        v, v_null = found.chunk(2)
        x = x + (t_next - t) * (v_null + scale * (v - v_null))
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    import diffusers

    device = torch.device(options.device)
    options.changes = [*(ON_A_GPU if device.type == "cuda" else ()), *options.changes]
    sides = {
        f"{whose} {how}": partial(function, options.changes, device, how == "compiled")
        for how in ("eager", "compiled")
        for whose, function in (("ours", sample_ours), ("their", sample_theirs))
    }
    took = take_turns(sides, options.rounds, block=1)
    for name, each in took.items():
        print(f"{name}: {statistics.median(one.seconds for one in each):.2f} s a batch")
    num = experiment_of(options.changes).batch.size
    peer = f"loop over diffusers {diffusers.__version__}"
    for ours, theirs in (("eager", "eager"), ("compiled", "compiled"), ("compiled", "eager")):
        seconds = statistics.median(each.seconds for each in took[f"ours {ours}"])
        report_beside(
            f"DiT sampling, {ours}",
            f"{peer}, {theirs}",
            took[f"ours {ours}"],
            took[f"their {theirs}"],
            at_least=1.0 if ours == theirs else 1.3,
            measured=Measured(seconds, num / seconds, device=options.device),
        )


if __name__ == "__main__":
    main()
