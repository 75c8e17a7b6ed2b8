"""A training step of the region network over the plain one: same weights, same windows, same masks.

    python benchmarks/step/region_step.py [--spec experiments/region/get.yaml] [--batch 2]
        [--rounds 6]

The network's step asks the last block, the final norm and the head for masked regions alone, keeps
no attention matrix and modulates by sample. The plain step (tests/support/models/plain_region.py)
is the page's own reading: every token everywhere, the attention matrix in memory, modulation by
token. Both run forward and backward in one process and take turns; the figure to quote is the
median of the rounds' ratios. Peak memory is that of one step of each, in processes of their own.
Both losses are printed: they are the same number.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.inputs.noise import KeyedNoise
from ditlab.spec.files import load_experiment
from ditlab_models.region.family import FAMILY
from ditlab_models.region.objective import draw_mask, errors
from ditlab_models.region.spec import RegionSpec
from ditlab_models.tensors import masked_rows
from support.models.plain_region import plain_forward
from support.peak_memory import peak_bytes

RATIO = 0.5


def build(
    spec: RegionSpec, batch: int
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """(savings, plain): steps on the same weights that return their loss."""
    torch.manual_seed(0)
    network = FAMILY.build_network(spec)
    with torch.no_grad():
        for parameter in network.parameters():  # off its start, where blocks are the identity
            parameter.add_(0.02 * torch.randn_like(parameter))
    windows = {
        "regions": torch.rand(batch, spec.num_regions, spec.num_features),
        "present": torch.ones(batch, spec.num_regions, dtype=torch.bool),
    }
    mask = draw_mask(windows, KeyedNoise(0, "train", 0, 0, batch, torch.device("cpu")), RATIO)
    t = torch.randint(1000, (batch,))

    def saving() -> torch.Tensor:
        rows = masked_rows(mask)
        prediction = network(windows["regions"], mask, t, None, rows.index)
        return step(errors(prediction, windows, rows, ["masked"], "masked_mean", None)["masked"])

    def plain() -> torch.Tensor:
        squared = (
            (plain_forward(network, windows["regions"], mask, t) - windows["regions"])
            .square()
            .mean(-1)
        )
        return step(((squared * mask).sum(1) / mask.sum(1)).mean())

    def step(loss: torch.Tensor) -> torch.Tensor:
        # the peak is to be of activations, not of gradients that were dropped
        network.zero_grad(set_to_none=False)
        loss.backward()
        return loss.detach()

    return saving, plain


def prepare(spec: RegionSpec, batch: int, which: int) -> Callable[[], object]:
    """One of the two, with gradients already allocated: the peak is of activations, then."""
    step = build(spec, batch)[which]
    step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--spec", type=Path, default=Path(__file__).parents[2] / "experiments/region/get.yaml"
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    spec: RegionSpec = load_experiment(options.spec, options.overrides).model  # type: ignore[assignment]
    steps = build(spec, options.batch)
    times: list[list[float]] = [[], []]
    losses = [step() for step in steps]  # the first round warms up both
    for _ in range(options.rounds):
        for which, step in enumerate(steps):
            since = time.perf_counter()
            step()
            times[which].append(time.perf_counter() - since)
        print(f"  savings {times[0][-1]:7.3f} s   plain {times[1][-1]:7.3f} s", flush=True)
    peaks = [peak_bytes(functools.partial(prepare, spec, options.batch, which)) for which in (0, 1)]
    ratios = [saving / plain for saving, plain in zip(*times, strict=True)]
    print(
        f"{spec.num_regions} regions, batch {options.batch}, losses {losses[0]:.6f} and "
        f"{losses[1]:.6f}"
    )
    print(
        f"peak memory {peaks[0] / 2**20:,.0f} MiB over {peaks[1] / 2**20:,.0f} MiB: "
        f"{peaks[0] / peaks[1]:.3f}"
    )
    report(
        "region step over its plain form",
        ratios,
        Measured(statistics.median(times[0]), peak_memory=peaks[0]),
    )


if __name__ == "__main__":
    main()
