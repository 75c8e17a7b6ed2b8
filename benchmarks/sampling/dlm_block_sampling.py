"""Block sampling with its cache over block sampling without: seconds of a sample of 1024 tokens in
blocks of 128.

    python benchmarks/sampling/dlm_block_sampling.py [--quick] [--rounds 5] [--steps 3] [--num
        1] [--device cpu]

The default network with a vocabulary of 256, float32, every parameter off 0. Both sides give log
scores of the block at work alone; without the cache every pass goes over all finished blocks first.
With n passes a block and 8 blocks of one unit of work each, that is 8 n and up to 7 commits against
36 n units (attention makes both a little more than that), so few steps say less than many: n = 4
(three steps and the denoising one) has a ratio of 144/39 = 3.7 at best, the default n = 51 one of
4.4. Both sides take turns in one process; the figure to quote is the median of the rounds' ratios.
Nothing is asserted here.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import BlockSampling, DLMObjectiveSpec, DLMSamplingSpec, DLMSpec

FULL = DLMSpec(length=1024, vocabulary=256, block_size=128)
QUICK = DLMSpec(length=64, vocabulary=64, depth=2, num_heads=2, width=32, block_size=8)


def build_network(model: DLMSpec, device: str) -> nn.Module:
    """Initialised, and moved off its zeros."""
    torch.manual_seed(0)
    network = FAMILY.build_network(model)
    assert isinstance(network, nn.Module)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return network.to(device)


def draw(network: nn.Module, model: DLMSpec, steps: int, num: int, cache: bool) -> Tensor:
    """Samples (num, L), the same at every call, on the host."""
    sampler = FAMILY.build_sampler(
        DLMSamplingSpec(steps=steps, block=BlockSampling(cache=cache)), model, DLMObjectiveSpec()
    )
    return sampler.sample(network, {}, num, torch.Generator().manual_seed(0)).values.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=3, help="of each block; one denoising pass comes on top"
    )
    parser.add_argument("--num", type=int, default=1, help="samples")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    model = QUICK if options.quick else FULL
    network = build_network(model, options.device)
    sides = {"cached": True, "uncached": False}
    # warms up
    drawn = {
        name: draw(network, model, options.steps, options.num, cache)
        for name, cache in sides.items()
    }
    same = float((drawn["cached"] == drawn["uncached"]).double().mean())
    print(
        f"{options.num} x {model.length} tokens, blocks of {model.block_size}: {same:.2%} of "
        "tokens the same (float32)"
    )
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            draw(network, model, options.steps, options.num, sides[name])
            seconds[name].append(time.perf_counter() - start)
        print(
            "   ".join(f"  {name} {seconds[name][-1] * 1e3:8.1f} ms" for name in sides), flush=True
        )
    ratios = [
        without / cached
        for without, cached in zip(seconds["uncached"], seconds["cached"], strict=True)
    ]
    taken = statistics.median(seconds["cached"])
    report(
        "block sampling, uncached over cached",
        ratios,
        Measured(taken, options.num / taken, device=options.device),
        note=f"{options.steps} steps a block; target at least 3",
    )


if __name__ == "__main__":
    main()
