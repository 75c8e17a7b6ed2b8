"""Profile of training steps: seconds by phase, module, operator and kind of work, in words, tables and a picture."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from denoisers.figures import Bars, Figure
from ditlab.analysis.step_runner import open_steps
from ditlab.engine.phase_clock import PHASES
from ditlab.home import Home
from ditlab.planning.flops import matrix_rate
from ditlab.planning.meta_step import DTYPES
from ditlab.reports.formatting import terminal_table
from ditlab.spec.experiment import Experiment

MOST_PASSES = 2
"""Micro-batches of a profiled step; the rest of an accumulation is like them, and the trace as large again."""
WARM_UP = 2
"""Steps before the profiled ones: allocations, and compilation where it is on."""

STEP_PHASES = ("data", "forward", "backward", "reduce", "update")
"""Phases of a step that this profile has; `PHASES` also holds those of the loop around it."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "attention": ("scaled_dot_product", "flash_attention", "flex_attention"),
    "convolutions": ("convolution", "conv2d", "conv_"),
    "matrix products": ("mm", "linear", "matmul", "dot", "einsum"),
    "normalisation": ("layer_norm", "rms_norm", "group_norm", "batch_norm"),
    "optimiser": ("fused_adam", "optimizer.step", "lerp", "linalg_vector_norm", "foreach"),
    "communication": ("c10d", "gloo", "nccl", "all_reduce", "all_gather", "reduce_scatter", "broadcast_"),
    "copies and layout": ("copy", "clone", "contiguous", "cat", "to_copy", "memcpy", "memset", "fill_", "zero_"),
    "random numbers": ("uniform", "normal_", "rand", "bernoulli"),
    "views and bookkeeping": (
        "view", "reshape", "expand", "transpose", "permute", "as_strided", "unsqueeze", "select", "slice", "empty",
        "aten::t ", "detach", "chunk", "split", "flatten",
    ),
}  # fmt: skip
"""Kinds of work by parts of operators' names; the first that fits. What fits none is elementwise."""
PREFIX = "module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_OWN_RANGES = (PREFIX, _BACKWARD, "ProfilerStep", "Optimizer.step", "DistributedDataParallel")
OUTSIDE = "(outside of modules)"
MOST_ROWS = 12
"""Rows of a table or bars of a panel."""
SMALL = 0.01
"""Share of a step below which a kind of work is not told in a sentence."""


@dataclass(frozen=True)
class OperatorTime:
    """An operator, over all of its calls in a step."""

    name: str
    kind: str
    seconds: float
    num_calls: float
    flops: float
    """Floating-point operations, where torch counts them; else 0."""


@dataclass(frozen=True)
class ModuleTime:
    """A module without those inside it, or all of its copies in repeated blocks."""

    path: str
    """Numbers of repeated blocks are `*`."""
    num_modules: int
    forward: float
    """Seconds of a step."""
    backward: float

    @property
    def seconds(self) -> float:
        """Both passes."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Profile:
    """Seconds of a step, means over the profiled ones."""

    name: str
    device: str
    num_steps: int
    num_passes: int
    """Micro-batches of each."""
    phases: Mapping[str, float]
    """Data, forward, backward, reduce, update: on the clock of `time/...`, profiler included."""
    operators: Sequence[OperatorTime]
    """Largest first."""
    modules: Sequence[ModuleTime]
    """Largest first."""
    matrix_rate: float
    """FLOP/s of a large matrix product in the same process."""
    trace: Path

    @property
    def seconds(self) -> float:
        """Sum over all operators."""
        return sum(each.seconds for each in self.operators)

    def kinds(self) -> dict[str, float]:
        """Return seconds by kind of work, largest first."""
        sums: dict[str, float] = defaultdict(float)
        for each in self.operators:
            sums[each.kind] += each.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def profile_steps(
    experiment: Experiment, home: Home, num_steps: int, trace: Path, say: Callable[[str], None]
) -> Profile:
    """Train and profile a few steps in this process, and write torch's trace alone. Raises OSError where it cannot."""
    with open_steps(experiment, home, MOST_PASSES) as runner:
        say(f"warming up: {WARM_UP} steps")
        for _ in range(WARM_UP):
            runner.take_step()
        say(f"profiling {num_steps} steps")
        on_gpu = runner.device.type == "cuda"
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with (
            named_modules_recorded(runner.network),
            torch.profiler.profile(
                activities=activities,
                with_flops=True,
                # one step is recorded and dropped: the profiler's own start took 2 s of it
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=num_steps, repeat=1),
            ) as profiler,
        ):
            for number in range(num_steps + 1):
                runner.take_step()
                if number == num_steps:
                    seconds = runner.clock.read_rest().seconds
                profiler.step()
                if number == 0:
                    runner.clock.read_rest()
                    runner.clock.restart()
        events = operator_events(list(profiler.events()), on_gpu)
        profiler.export_chrome_trace(str(trace))
        rate = matrix_rate(runner.device, DTYPES[experiment.training.precision])
        num_passes, device = runner.num_passes, str(runner.device)
    phases = {name: each / num_steps for name, each in zip(PHASES, seconds, strict=True) if name in STEP_PHASES}
    return Profile(
        experiment.name, device, num_steps, num_passes, phases, operator_times(events, num_steps),
        module_times(events, num_steps), rate, trace,
    )  # fmt: skip


def operator_times(events: Iterable[OperatorEvent], num_steps: int) -> list[OperatorTime]:
    """Sum events by operator, a step, largest first."""
    groups: dict[str, list[OperatorEvent]] = defaultdict(list)
    for event in events:
        groups[event.name].append(event)
    found = []
    for name, calls in groups.items():
        sums = sum(each.seconds for each in calls), len(calls), sum(each.flops for each in calls)
        found.append(OperatorTime(name, kind_of(name), *(each / num_steps for each in sums)))
    return sorted(found, key=lambda each: -each.seconds)


def module_times(events: Iterable[OperatorEvent], num_steps: int) -> list[ModuleTime]:
    """Sum events by module, in whose path numbers of repeated blocks are `*`, a step, largest first."""
    groups: dict[str, list[OperatorEvent]] = defaultdict(list)
    for event in events:
        groups[re.sub(r"(?<=\.)\d+(?=\.|$)", "*", event.module)].append(event)
    found = []
    for path, calls in groups.items():
        passes = [sum(each.seconds for each in calls if each.is_backward == back) / num_steps for back in (False, True)]
        found.append(ModuleTime(path, len({each.module for each in calls}), *passes))
    return sorted(found, key=lambda each: -each.seconds)


def kind_of(operator: str) -> str:
    """Return the kind of work of an operator or kernel by its name."""
    name = f"{operator.lower()} "  # a part may end in a space, where it is the end of a name
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "elementwise")


@dataclass(frozen=True)
class OperatorEvent:
    """Time of one call of an operator, without that of operators within it."""

    name: str
    module: str
    """Path of the module; `OUTSIDE` for loss, update and the like."""
    is_backward: bool
    seconds: float
    """The host's seconds on a CPU, the device's on a GPU."""
    flops: int
    """Floating-point operations, where torch counts them (products and convolutions); else 0."""


@contextmanager
def named_modules_recorded(network: nn.Module) -> Iterator[None]:
    """Record a range for each forward pass of each submodule, inside."""
    opened: list[Any] = []

    def begin(name: str) -> Any:
        def hook(*_: Any) -> None:
            opened.append(torch.profiler.record_function(f"{PREFIX}{name}"))
            opened[-1].__enter__()

        return hook

    def end(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    hooks = []
    for name, module in network.named_modules():
        if name:
            hooks += [module.register_forward_pre_hook(begin(name)), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def operator_events(events: Sequence[Any], on_gpu: bool) -> list[OperatorEvent]:
    """Operators that took time, of `profile.events()`: forward modules by nesting, backward by sequence number."""

    def within(event: Any, prefix: str) -> Any:
        """The nearest range around an event with this prefix, or itself; None without one."""
        while event is not None and not event.name.startswith(prefix):
            event = event.cpu_parent
        return event

    found, by_sequence = [], {}
    ranges = [(event, within(event, PREFIX), within(event, _BACKWARD)) for event in events]
    for event, module, backward in ranges:
        if event.sequence_nr >= 0 and module and not backward:
            by_sequence[event.sequence_nr] = module
    for event, module, backward in ranges:
        seconds = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6
        if seconds and not event.name.startswith(_OWN_RANGES):
            of = by_sequence.get(backward.sequence_nr) if backward else module
            path = of.name.removeprefix(PREFIX) if of else OUTSIDE
            found.append(OperatorEvent(event.name, path, bool(backward), seconds, int(event.flops or 0)))
    return found


def profile_lines(profile: Profile) -> list[str]:
    """Say in sentences where the time of a step goes."""
    total = profile.seconds
    step = sum(profile.phases.values())
    phases = ", ".join(f"{name} {seconds / step:.0%}" for name, seconds in profile.phases.items() if seconds)
    shares = [f"{kind} {seconds / total:.0%}" for kind, seconds in profile.kinds().items() if seconds >= SMALL * total]
    largest = next(each for each in profile.modules if each.path != OUTSIDE)
    copies = f" (all {largest.num_modules})" if largest.num_modules > 1 else ""
    lines = [
        f"A step took {1e3 * step:,.1f} ms under the profiler: {phases}.",
        f"Operators took {1e3 * total:,.1f} ms of it: {', '.join(shares)}.",
        f"The module that takes most is {largest.path}{copies}: {1e3 * largest.seconds:,.1f} ms, "
        f"{largest.seconds / total:.0%} of all operators.",
    ]
    counted = [each for each in profile.operators if each.flops and each.kind in ("matrix products", "convolutions")]
    if counted:
        rate = sum(each.flops for each in counted) / sum(each.seconds for each in counted)
        lines.append(
            f"Matrix products and convolutions ran at {rate / 1e9:,.3g} GFLOP/s, {rate / profile.matrix_rate:.0%} of a "
            f"large matrix product's {profile.matrix_rate / 1e9:,.3g} here."
        )
    return lines


def module_table(profile: Profile) -> Table:
    """Modules without those inside them; repeated blocks are one row."""
    heads = {"module": "text", **dict.fromkeys(("copies", "forward ms", "backward ms", "share"), "number")}
    table = terminal_table(heads)
    for each in profile.modules[:MOST_ROWS]:
        times = (f"{1e3 * each.forward:,.2f}", f"{1e3 * each.backward:,.2f}")
        table.add_row(each.path, str(each.num_modules), *times, f"{each.seconds / profile.seconds:.1%}")
    return table


def operator_table(profile: Profile) -> Table:
    """Operators of a CPU, kernels of a GPU, without those inside them."""
    heads = {"operator": "text", **dict.fromkeys(("calls", "ms", "share", "GFLOP/s"), "number")}
    table = terminal_table(heads)
    for each in profile.operators[:MOST_ROWS]:
        counted = each.flops and each.kind != "elementwise"
        table.add_row(
            each.name.removeprefix("aten::"), f"{each.num_calls:,.0f}", f"{1e3 * each.seconds:,.2f}",
            f"{each.seconds / profile.seconds:.1%}", f"{each.flops / each.seconds / 1e9:,.3g}" if counted else "",
        )  # fmt: skip
    return table


def profile_figure(profile: Profile) -> Figure:
    """Draw a step by kind of work, and by module."""
    modules = {each.path: each.seconds for each in profile.modules[:MOST_ROWS]}
    panels = []
    for title, seconds in {"By kind of work": profile.kinds(), "By module": modules}.items():
        texts = [f"{each / profile.seconds:.0%}" for each in seconds.values()]
        milliseconds = 1e3 * np.array(list(seconds.values()))
        panels.append(Bars(list(seconds), milliseconds, title=title, x_label="ms a step", texts=texts))
    return Figure(panels, title=f"{profile.name}: a training step on {profile.device}", columns=1)


def profile_dict(profile: Profile) -> dict[str, Any]:
    """The profile in JSON's types; seconds a step."""
    return {
        "steps": profile.num_steps,
        "step_seconds": sum(profile.phases.values()),
        "phases": dict(profile.phases),
        "kinds": profile.kinds(),
        "modules": [asdict(each) for each in profile.modules],
        "operators": [asdict(each) for each in profile.operators],
        "matrix_rate": profile.matrix_rate,
        "trace": str(profile.trace),
    }
