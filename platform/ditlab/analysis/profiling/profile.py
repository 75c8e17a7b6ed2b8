"""A profile of training steps: seconds by phase, module, operator and kind of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ditlab.analysis.profiling.events import OperatorEvent, by_pattern, named_modules_recorded, operator_events
from ditlab.analysis.step_runner import StepRunner, open_steps
from ditlab.engine.phase_clock import PHASES
from ditlab.home import Home
from ditlab.planning.matrix_rate import matrix_rate
from ditlab.planning.meta_step import DTYPES
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
        sums: dict[str, float] = {}
        for each in self.operators:
            sums[each.kind] = sums.get(each.kind, 0.0) + each.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def profile_steps(
    experiment: Experiment, home: Home, num_steps: int, trace: Path, say: Callable[[str], None]
) -> Profile:
    """Train a few steps of an experiment of one worker in this process, profile them, and write torch's trace.

    Nothing else is kept: no run, no checkpoint. Raises OSError where the trace cannot be written.
    """
    with open_steps(experiment, home, MOST_PASSES) as runner:
        say(f"warming up: {WARM_UP} steps")
        _take(runner, WARM_UP)
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
            _take(runner, 1)
            profiler.step()
            runner.clock.read_rest()
            runner.clock.restart()
            for _ in range(num_steps - 1):
                _take(runner, 1)
                profiler.step()
            _take(runner, 1)
            seconds = runner.clock.read_rest().seconds
            profiler.step()
        events = operator_events(list(profiler.events()), on_gpu)
        profiler.export_chrome_trace(str(trace))
        rate = matrix_rate(runner.device, DTYPES[experiment.training.precision])
        num_passes, device = runner.num_passes, str(runner.device)
    phases = {name: each / num_steps for name, each in zip(PHASES, seconds, strict=True) if name in STEP_PHASES}
    return Profile(
        experiment.name, device, num_steps, num_passes, phases, operator_times(events, num_steps),
        module_times(events, num_steps), rate, trace,
    )  # fmt: skip


def _take(runner: StepRunner, num_steps: int) -> None:
    for _ in range(num_steps):
        runner.take_step()


def operator_times(events: Iterable[OperatorEvent], num_steps: int) -> list[OperatorTime]:
    """Sum events by operator, a step, largest first."""
    groups: dict[str, list[OperatorEvent]] = {}
    for event in events:
        groups.setdefault(event.name, []).append(event)
    found = [
        OperatorTime(
            name,
            kind_of(name),
            sum(each.seconds for each in calls) / num_steps,
            len(calls) / num_steps,
            sum(each.flops for each in calls) / num_steps,
        )
        for name, calls in groups.items()
    ]
    return sorted(found, key=lambda each: -each.seconds)


def module_times(events: Iterable[OperatorEvent], num_steps: int) -> list[ModuleTime]:
    """Sum events by module, a step, largest first."""
    found = []
    for path, calls in by_pattern(events).items():
        passes = [sum(each.seconds for each in calls if each.is_backward == back) / num_steps for back in (False, True)]
        found.append(ModuleTime(path, len({each.module for each in calls}), *passes))
    return sorted(found, key=lambda each: -each.seconds)


def kind_of(operator: str) -> str:
    """Return the kind of work of an operator or kernel by its name."""
    name = f"{operator.lower()} "  # a part may end in a space, where it is the end of a name
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "elementwise")
