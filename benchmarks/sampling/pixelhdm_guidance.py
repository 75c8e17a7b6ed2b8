"""PixelHDM's guided velocity in one pass of both halves over two passes: same weights, same texts,
same noise.

    python benchmarks/sampling/pixelhdm_guidance.py [--quick] [--rounds 8] [--batch 1] [--set
        P=V]

The sampler asks for the conditional and the null prediction in one batch of twice the size. The
other side asks for them one after the other. Both take turns in one process, on the network of
experiments/pixelhdm/small.yaml at 64 x 64 pixels; the figure to quote is the median of the rounds'
ratios. The largest difference between the two is printed: they agree up to rounding. Nothing is
asserted here.
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

from benchmarks.rounds import Measured, report
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_experiment
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.text_encoder import caption_bytes

SCALE, T = 3.0, torch.tensor(0.5)


def build(experiment: Experiment, side: int, batch: int) -> dict[str, Callable[[], Tensor]]:
    """The velocity of a batch in one pass and in two."""
    torch.manual_seed(0)
    model: Any = experiment.model
    network = FAMILY.build_network(model)
    with torch.no_grad():
        for parameter in network.parameters():  # off its start, where blocks are the identity
            parameter.add_(0.02 * torch.randn_like(parameter))
    text = {"caption": caption_bytes(["a red seven"] * batch, model.text_length)}
    x = torch.randn(batch, 3, side, side)
    sampling = FAMILY.sampling(guidance=SCALE, height=side, width=side)
    one = FAMILY.build_sampler(sampling, model, FAMILY.objective()).velocity(network, text)
    keep = torch.ones(batch, dtype=torch.bool)

    @torch.no_grad()
    def in_one() -> Tensor:
        return one(x, T)

    @torch.no_grad()
    def in_two() -> Tensor:
        v, null = (network(x, T.expand(batch), text, kept) for kept in (keep, ~keep))
        guided: Tensor = null + SCALE * (v - null)
        return guided

    return {"one": in_one, "two": in_two}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    spec = Path(__file__).parents[2] / "experiments/pixelhdm/small.yaml"
    side = 16 if options.quick else 64
    sides = build(load_experiment(spec, options.overrides), side, options.batch)
    difference = float((sides["one"]() - sides["two"]()).abs().max())  # warms up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            since = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - since)
        print("   ".join(f"{name} {seconds[name][-1] * 1e3:8.1f} ms" for name in sides), flush=True)
    ratios = [one / two for one, two in zip(seconds["one"], seconds["two"], strict=True)]
    print(f"{options.batch} image(s) of {side}x{side}, largest difference {difference:.1e}")
    report(
        "guided velocity, one pass over two", ratios, Measured(statistics.median(seconds["one"]))
    )


if __name__ == "__main__":
    main()
