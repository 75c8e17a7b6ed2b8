"""Time of a step's operators beside the least that this machine could take for them.

    python benchmarks/step/operator_limits.py [--only mnist/dit] [--steps 5] [--quick]

Profiles steps of the plain form and of ours with compiled blocks and kept memory (as
`family_step.py`), sums their operators by group, and times in the same process what limits each
group:

- products: every matrix product of the compiled step alone, at its shapes, by the fastest of MKL
  and oneDNN and of the layouts of its operands; those that give a weight's gradient apart;
- attention: every kernel's call alone, the fastest of torch's kernels on a CPU;
- convolutions: every convolution of the plain network alone, forward and backward, in the faster of
  both layouts;
- element-wise work: the operands of forward products and of gradients of inputs written once, their
  results read once, at the rate of a copy of a large tensor. What lies between two products can do
  no less; convolutions' are left out;
- optimiser: the numbers that clipping, AdamW and moving average read and write, at the same rate.

The figure to quote is the sum of the limits over the plain step: no step of the same operations can
be faster on this machine in float32 without faster kernels. It may not be reachable: a product's
fastest layout may be one that its operands do not have, and a kernel alone finds its operands in
the cache. Nothing is asserted here.
"""

import argparse
import itertools
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.families import CASES, QUICK, generated_batch
from benchmarks.rounds import Measured, report
from benchmarks.step.family_step import Training, build_training, plain_flops, product_rate, timed
from ditlab.engine.memory import kept_memory

GROUPS = {
    "products": r"aten::(mm|addmm|addmm_|bmm|baddbmm)|mkldnn::_linear_pointwise|aten::mkldnn_linear",
    "weight gradients": r"(?!)",  # products whose result has the shape of a weight
    "attention": r"aten::_scaled_dot_product_\w+",
    "convolutions": r"aten::(mkldnn_convolution\w*|convolution_backward|_slow_conv\w*)|mkldnn::_convolution\w*",
    "optimiser": r"aten::(_fused_adamw_|_foreach_(lerp|norm|mul)\w*)",
    "copies": r"aten::(copy_|clone|contiguous)",
}
ELEMENTWISE = "element-wise, norms"
"""Group of everything else, the interpreter included."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """A matrix product (rows, inner) (inner, columns), of a batch of such."""

    batch: int
    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class Profiled:
    """Seconds of a step by group, and the products and attention calls of one step with their
    numbers.
    """

    seconds: dict[str, float]
    products: Counter[tuple[Product, bool]]
    """With True where the product is a weight's gradient."""
    attention: Counter[tuple[str, Shape, Shape]]
    """Kernel, shape of the queries and of the keys."""


def profile_steps(training: Training, weights: set[Shape], steps: int) -> Profiled:
    """Profile some steps behind two that do not count; medians by group."""
    for _ in range(2):
        training.step()
    by_group: dict[str, list[float]] = {name: [] for name in (*GROUPS, ELEMENTWISE)}
    for _ in range(steps):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            whole = timed(training.step)
        seconds, products, attention = _by_group(profiled.events(), weights)
        seconds[ELEMENTWISE] = max(whole - sum(seconds.values()), 0.0)
        for name, values in by_group.items():
            values.append(seconds[name])
    return Profiled(
        {name: statistics.median(values) for name, values in by_group.items()}, products, attention
    )


def _by_group(
    events: Iterable[Any], weights: set[Shape]
) -> tuple[dict[str, float], Counter[Any], Counter[Any]]:
    seconds = dict.fromkeys(GROUPS, 0.0)
    products: Counter[Any] = Counter()
    attention: Counter[Any] = Counter()
    for event in events:
        group = next(
            (name for name, pattern in GROUPS.items() if re.fullmatch(pattern, event.name)), None
        )
        if group is None or _is_part(event):
            continue
        if group == "products":
            product = _product(event.name, [tuple(shape) for shape in event.input_shapes if shape])
            is_gradient = bool(
                {(product.rows, product.columns), (product.columns, product.rows)} & weights
            )
            group = "weight gradients" if is_gradient else group
            products[product, is_gradient] += 1
        elif group == "attention":
            first = 1 if "backward" in event.name else 0
            attention[
                event.name, tuple(event.input_shapes[first]), tuple(event.input_shapes[first + 1])
            ] += 1
        seconds[group] += event.cpu_time_total / 1e6
    return seconds, products, attention


def _is_part(event: Any) -> bool:
    """Return True if an operator runs inside one that is counted."""
    while (event := event.cpu_parent) is not None:
        if any(re.fullmatch(pattern, event.name) for pattern in GROUPS.values()):
            return True
    return False


def _product(name: str, shapes: Sequence[Shape]) -> Product:
    """Read a product's sizes off the shapes of its operands, with a sum before them and an output
    behind them.
    """
    if "linear" in name:  # (rows, inner), (columns, inner)
        *rows, inner = shapes[0]
        return Product(1, math.prod(rows), inner, shapes[1][0])
    left, right = shapes[1:3] if "add" in name else shapes[:2]
    return Product(left[0] if len(left) == 3 else 1, left[-2], left[-1], right[-1])


def fastest(calls: Iterable[Callable[[], object]], repeats: int = 5) -> float:
    """Time each call some times, the first one uncounted; return the least seconds of all."""
    found = []
    for call in calls:
        call()
        found.append(min(timed(call) for _ in range(repeats)))
    return min(found)


def product_limit(product: Product) -> float:
    """Time a product by the fastest library and layout, in seconds."""
    if product.batch > 1:
        left = torch.randn(product.batch, product.rows, product.inner)
        right = torch.randn(product.batch, product.inner, product.columns)
        return fastest([lambda: left @ right])
    left, right = (
        torch.randn(product.rows, product.inner),
        torch.randn(product.inner, product.columns),
    )
    lefts, rights = (left, left.t().contiguous().t()), (right, right.t().contiguous().t())
    calls: list[Callable[[], object]] = [
        lambda a=a, b=b: a @ b for a, b in itertools.product(lefts, rights)
    ]
    linear = torch.ops.mkldnn._linear_pointwise.default
    calls += [lambda b=b: linear(left, b.t(), None, "none", [], "") for b in rights]
    return fastest(calls)


def attention_limit(kernel: str, queries: Shape, keys: Shape) -> float:
    """Time an attention kernel's call, forward or backward, by the fastest of flash and products;
    in seconds.
    """
    return min(
        _attention(backend, queries, keys, is_backward="backward" in kernel)
        for backend in (nn.attention.SDPBackend.FLASH_ATTENTION, nn.attention.SDPBackend.MATH)
    )


def _attention(backend: Any, queries: Shape, keys: Shape, is_backward: bool) -> float:
    q = torch.randn(queries, requires_grad=True)
    k, v = (torch.randn(keys, requires_grad=True) for _ in range(2))
    attend = partial(
        functional.scaled_dot_product_attention, q, k, v, enable_gqa=queries[1] != keys[1]
    )
    with nn.attention.sdpa_kernel(backend):
        if not is_backward:
            with torch.no_grad():
                return fastest([attend])
        out = attend()
        gradient = torch.randn_like(out)
        return fastest([lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)])


def convolutions_limit(training: Training) -> float:
    """Time every convolution of a network's step alone, forward and backward, each in its faster
    layout; in seconds.
    """
    calls: list[tuple[nn.Module, Shape]] = []
    hooks = [
        each.register_forward_hook(
            lambda module, inputs, _: calls.append((module, tuple(inputs[0].shape)))
        )
        for each in training.network.modules()
        if isinstance(each, nn.Conv2d | nn.ConvTranspose2d)
    ]
    training.step()
    for hook in hooks:
        hook.remove()
    return sum(
        min(
            _convolution(*call, layout) for layout in (torch.contiguous_format, torch.channels_last)
        )
        for call in calls
    )


def _convolution(module: nn.Module, shape: Shape, layout: torch.memory_format) -> float:
    x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    weights = list(module.parameters())
    gradient = torch.randn_like(module(x))
    return fastest([lambda: torch.autograd.grad(module(x), [x, *weights], gradient)], repeats=3)


def copy_rate() -> float:
    """Measure the bytes a second that a copy of 256 MiB reads and writes."""
    source = torch.zeros(2**26)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest([lambda: target.copy_(source)])


def limits(profiled: Profiled, plain: Training) -> dict[str, float]:
    """Seconds that the groups of a compiled step take at least."""
    rate = copy_rate()
    found = {"products": 0.0, "weight gradients": 0.0, "copies": 0.0}
    moved = 0
    for (product, is_gradient), count in profiled.products.items():
        found["weight gradients" if is_gradient else "products"] += count * product_limit(product)
        if not is_gradient:
            moved += count * product.batch * 4 * product.rows * (product.inner + product.columns)
    found["attention"] = sum(
        count * attention_limit(*call) for call, count in profiled.attention.items()
    )
    found["convolutions"] = convolutions_limit(plain)
    # Clipping reads gradients twice and writes them, AdamW reads four numbers and writes three, the
    # average 2 and 1.
    found["optimiser"] = 13 * 4 * sum(each.numel() for each in plain.network.parameters()) / rate
    found[ELEMENTWISE] = moved / rate
    return found


def row(name: str, values: Sequence[float], form: str) -> str:
    """Lay out a row of the table."""
    return f"  {name:20} " + " ".join(f"{value:8{form}}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="this family alone; may be repeated"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="one family at a size that measures nothing"
    )
    options = parser.parse_args()
    for name in list(QUICK) if options.quick else options.only or list(CASES):
        experiment = CASES[name].load(QUICK[name] if options.quick else [])
        batch = generated_batch(experiment)
        plain, compiled = (
            build_training(experiment, each, batch) for each in ("plain", "compiled")
        )
        weights = {tuple(each.shape) for each in compiled.network.parameters() if each.ndim == 2}
        before = profile_steps(plain, weights, options.steps)
        with kept_memory():
            after = profile_steps(compiled, weights, options.steps)
            least = limits(after, plain)
        rate, work = product_rate(), plain_flops(experiment)
        print(
            f"{name}: {work / 1e9:.1f} GFLOP a step, product {rate / 1e9:.0f} GFLOP/s; milliseconds"
        )
        print(f"  {'':20}    plain compiled    limit")
        columns = (before.seconds, after.seconds, least)
        for group in (*GROUPS, ELEMENTWISE):
            print(row(group, [column[group] * 1e3 for column in columns], ".1f"))
        totals = [sum(column.values()) for column in columns]
        print(row("all", [total * 1e3 for total in totals], ".1f"))
        print(row("utilisation", [work / total / rate for total in totals], ".2f"))
        measured = Measured(totals[2], experiment.batch.size / totals[2], work / totals[2] / rate)
        report(f"{name}, limit over the plain step", [totals[2] / totals[0]], measured)


if __name__ == "__main__":
    main()
