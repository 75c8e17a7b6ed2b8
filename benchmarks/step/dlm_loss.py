"""The language model's loss in chunks over its plain form: peak memory and time of the output layer
and the loss.

    python benchmarks/step/dlm_loss.py [--quick] [--rounds 5] [--score log] [--device cpu]

Forward and backward, from hidden states, weight and bias (float32) to their gradients. Peak memory
is that of a child process of each form alone, above what it held with inputs and weights in place
and the libraries warm: resident memory (VmHWM less VmRSS, Linux) or, on a GPU, what torch
allocated. Gradients count. For the time, both forms take turns in one process; the figure to quote
is the median of the rounds' ratios. Nothing is asserted here.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab_models.processes.score_entropy import LossTargets, chunked_score_entropy
from ditlab_models.processes.uniform_graph import corrupt
from support.models.plain_score_entropy import score_entropy

FULL = (4, 1024, 512, 50257)  # batch, tokens, width, vocabulary
QUICK = (2, 128, 64, 4001)
WARM = (1, 8, 16, 257)


class Setting:
    """Random inputs and weights of one size."""

    def __init__(self, size: tuple[int, int, int, int], device: str, score: str) -> None:
        batch, tokens, width, vocabulary = size
        torch.manual_seed(0)
        self.hidden = torch.randn(batch, tokens, width, device=device, requires_grad=True)
        self.weight = (
            torch.randn(vocabulary, width, device=device).mul_(width**-0.5).requires_grad_()
        )
        self.bias = torch.zeros(vocabulary, device=device, requires_grad=True)
        x0 = torch.randint(vocabulary, (batch, tokens), device=device)
        sigma = torch.logspace(-3, 0, batch, device=device)[:, None].expand(batch, tokens)
        uniform = torch.rand(2, batch, tokens, device=device)
        self.x = corrupt(x0, sigma, uniform[0], uniform[1], vocabulary)
        self.targets = LossTargets(x0, sigma, torch.full_like(sigma, 1 / x0.numel()), score)  # type: ignore[arg-type]

    def plain(self) -> Tensor:
        output = functional.linear(self.hidden, self.weight, self.bias)
        losses = score_entropy(
            output, self.x, self.targets.x0, self.targets.sigma, self.targets.score
        )
        return (losses * self.targets.weight).sum()

    def chunked(self) -> Tensor:
        return chunked_score_entropy(
            self.hidden, self.weight, self.bias, self.x, self.targets
        ).total

    def pass_of(self, form: str) -> Callable[[], float]:
        loss: Callable[[], Tensor] = getattr(self, form)

        def run() -> float:
            value = loss()
            value.backward()
            self.hidden.grad = self.weight.grad = self.bias.grad = None
            return float(value.detach())  # waits for a GPU

        return run


def resident(key: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (at most so far) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def measure_peak(form: str, size: tuple[int, int, int, int], device: str, score: str) -> int:
    """Bytes of one pass above inputs and weights; called in a process of its own."""
    Setting(WARM, device, score).pass_of(form)()
    run = Setting(size, device, score).pass_of(form)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a size that measures nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--score", choices=("log", "softmax"), default="log")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    peaks = {}
    for form in ("plain", "chunked"):
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            peaks[form] = alone.apply(measure_peak, (form, size, options.device, options.score))
        print(
            f"  {form:8} peak {peaks[form] / 2**20:8.1f} MiB above inputs and weights", flush=True
        )
    setting = Setting(size, options.device, options.score)
    passes = {form: setting.pass_of(form) for form in peaks}
    seconds: dict[str, list[float]] = {form: [] for form in peaks}
    values = {form: run() for form, run in passes.items()}  # warms up
    for turn in range(options.rounds):
        for form in list(peaks)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            passes[form]()
            seconds[form].append(time.perf_counter() - start)
        print(
            "   ".join(f"  {form} {seconds[form][-1] * 1e3:8.1f} ms" for form in peaks), flush=True
        )
    ratios = [
        chunked / plain for chunked, plain in zip(seconds["chunked"], seconds["plain"], strict=True)
    ]
    print(
        f"loss of {' x '.join(map(str, size))}: plain {values['plain']:.6f}, chunked "
        f"{values['chunked']:.6f}"
    )
    measured = Measured(
        statistics.median(seconds["chunked"]), peak_memory=peaks["chunked"], device=options.device
    )
    memory = peaks["chunked"] / max(1, peaks["plain"])
    report(
        "memory of the loss, chunked over plain", [memory], measured, note="target at most 0.125"
    )
    report("time of the loss, chunked over plain", ratios, measured, note="target at most 1")


if __name__ == "__main__":
    main()
