"""Training steps of one worker in this process: profiled by phase, module and operator, or timed for a plan's rates."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from ditlab.data.loading.transfer import send
from ditlab.data.processes import in_processes
from ditlab.data.splits import DataSplits, open_data
from ditlab.engine.distributed import Rank, single_process
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.engine.phase_clock import PHASES, PhaseClock, phase_clock
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.inputs.flops import matrix_rate
from ditlab.inputs.meta_step import DTYPES
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise, derived_seed
from ditlab.inputs.stored_fields import check_stored
from ditlab.reports.formatting import terminal_table
from ditlab.runs.cores import busy_text, thread_text, worker_threads
from ditlab.spec.experiment import Experiment, class_for
from ditlab.training.plan import plan_run
from ditlab_models.figures import Bars, Figure
from ditlab_models.finetuning import fine_tune

Say = Callable[[str], None]
"""Receiver of lines for people."""
MOST_PASSES = 2
"""Micro-batches of a step; the rest of an accumulation is like them, and the trace as large again."""
WARM_UP, LEAST_STEPS, MOST_STEPS = 3, 3, 30
"""Steps that are not timed, as the allocator and, compiled, the graphs are new to them; and those that are: at least,
and at most."""
ENOUGH, MOST_SECONDS = 8.0, 45.0
"""Seconds of timed steps that are enough, and seconds after the first step from which on no more are begun."""
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


class StepRunner:
    """Steps of an experiment, pass by pass; every random number is that of a run's first steps."""

    def __init__(self, experiment: Experiment, home: Home, data: DataSplits, rank: Rank, num_passes: int) -> None:
        """Build network, loss and engine for steps of `num_passes` micro-batches."""
        self.device, self.num_passes = rank.device, num_passes
        self.clock: PhaseClock = phase_clock(rank.device)
        self._experiment, self._next = experiment, 0
        self._inputs = ModelInputs.from_experiment(experiment, data.train.columns, rank.device, home=home)
        self._objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, data.text)
        self.network: nn.Module = experiment.family.build_network(experiment.model)  # type: ignore[assignment]
        seed = partial(derived_seed, experiment.seed, "lora")
        fine_tune(self.network, self._objective.modules, experiment.training, seed)
        self.module = TrainingModule(self.network, self._objective)
        self._engine = Engine(self.module, experiment, rank, experiment.micro_size, num_passes, self.clock)
        self._view = data.train.fullest()

    def run_pass(self, step: int, number: int) -> None:
        """Take micro-batch `number` of a step from the store, and run its forward and backward pass."""
        size = self._experiment.micro_size
        first = (step * self.num_passes + number) * size
        with self.clock.phase("data"):
            rows = np.arange(first, first + size) % len(self._view)
            raw = {field.name: self._view.gather(field.name, rows) for field in self._inputs.fields}
            moved = {name: send(raw[name], self.device) for name in self._inputs.names_read}
            noise = KeyedNoise(self._experiment.seed, "train", step, number, size, self.device)
            batch = self._inputs.prepare_batch(raw, self._view.columns, moved=moved, noise=noise)
            batch |= prepare_on_host(self._objective, raw, self._view.columns, self._inputs, noise)
        self._engine.forward_backward(batch, noise, number == self.num_passes - 1)

    def update(self, step: int) -> None:
        """Apply the step's gradients."""
        with self.clock.phase("update"):
            self._engine.step(step, self._experiment.optimizer.lr)

    def take_step(self) -> None:
        """Take the next step: all passes, and the update."""
        for number in range(self.num_passes):
            self.run_pass(self._next, number)
        self.update(self._next)
        self.clock.end_step()
        self._next += 1

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


@contextmanager
def open_steps(experiment: Experiment, home: Home) -> Iterator[StepRunner]:
    """Open the data of an experiment of one worker, and build its steps of at most `MOST_PASSES` micro-batches."""
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    if not experiment.resources.gpus_per_worker:
        torch.set_num_threads(min(worker_threads(experiment.resources).number, os.cpu_count() or 1))
    data = open_data(experiment.data, home, verify=False)
    check_stored(experiment, data)
    plan_run(experiment, data)  # refuses a batch that is larger than the data
    num_passes = min(experiment.accumulation, MOST_PASSES)
    with (
        single_process(experiment.resources.gpus_per_worker > 0) as rank,
        closing(StepRunner(experiment, home, data, rank, num_passes)) as runner,
    ):
        yield runner


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


def profile_steps(experiment: Experiment, home: Home, num_steps: int, trace: Path, say: Say) -> Profile:
    """Train and profile a few steps in this process, and write torch's trace alone. Raises OSError where it cannot."""
    with open_steps(experiment, home) as runner:
        threads = "" if experiment.resources.gpus_per_worker else f", {thread_text(torch.get_num_threads())}"
        say(f"warming up: {WARM_UP} steps{threads}")
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
    busy = "" if on_gpu else busy_text()
    if busy:
        say(f"this machine was busy: {busy}; the steps are slower than on an idle one")
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


def profile_tables(profile: Profile) -> Iterator[Table]:
    """Modules (repeated blocks are one row), then operators of a CPU or kernels of a GPU; none with those inside it."""
    heads = {"module": "text", **dict.fromkeys(("copies", "forward ms", "backward ms", "share"), "number")}
    table = terminal_table(heads)
    for each in profile.modules[:MOST_ROWS]:
        times = (f"{1e3 * each.forward:,.2f}", f"{1e3 * each.backward:,.2f}")
        table.add_row(each.path, str(each.num_modules), *times, f"{each.seconds / profile.seconds:.1%}")
    yield table
    heads = {"operator": "text", **dict.fromkeys(("calls", "ms", "share", "GFLOP/s"), "number")}
    table = terminal_table(heads)
    for one in profile.operators[:MOST_ROWS]:
        counted = one.flops and one.kind != "elementwise"
        table.add_row(
            one.name.removeprefix("aten::"), f"{one.num_calls:,.0f}", f"{1e3 * one.seconds:,.2f}",
            f"{one.seconds / profile.seconds:.1%}", f"{one.flops / one.seconds / 1e9:,.3g}" if counted else "",
        )  # fmt: skip
    yield table


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


@dataclass(frozen=True)
class MeasuredSteps:
    """Times of one worker's steps."""

    passes: float
    """Seconds of a micro-batch: its data taken from the store, forward and backward pass."""
    update: float
    """Seconds of the update."""
    matrix_rate: float
    """FLOP/s of a large matrix product in the same process."""
    steps: int
    """Steps that were timed."""
    threads: int
    """Threads of the worker's CPU."""
    busy: str
    """Cores that others kept busy meanwhile, in words; empty on an idle machine and with a GPU."""


def measure_steps(experiment: Experiment, home: Home) -> MeasuredSteps:
    """Time steps of one worker in another process. Raises UserError for no GPU or too little memory, RunFailed."""
    if experiment.resources.gpus_per_worker and not torch.cuda.is_available():
        raise UserError(
            "--measure takes real steps, and this machine has no GPU to take them on; leave --measure out, or plan for "
            "--gpu cpu."
        )
    try:
        (found,) = in_processes(_measure, [(experiment.to_dict(), str(home.root))], 1, "measures steps")
    except UserError as error:
        raise UserError(
            "--measure: the process that took the steps was killed, as happens where memory runs out; set a smaller "
            "batch.micro, or leave --measure out."
        ) from error
    if isinstance(found, str):
        raise RunFailed(f"--measure: the steps failed: {found}")
    return found


def _measure(task: tuple[dict[str, Any], str]) -> MeasuredSteps | str:
    """Time steps in this process. Returns the reason where they fail: not every exception can be sent."""
    spec, root = task
    times: list[tuple[float, float]] = []  # by step: seconds of a micro-batch, as a mean, and of the update
    try:
        experiment = class_for(spec).model_validate(spec)
        with open_steps(experiment, Home(Path(root))) as runner:
            device, seconds, begin = runner.device, 0.0, 0.0
            while len(times) < WARM_UP + LEAST_STEPS or (seconds < ENOUGH and len(times) < WARM_UP + MOST_STEPS):
                start = _now(device)
                begin = begin if len(times) > 1 else start  # the first step compiles
                if start - begin > MOST_SECONDS:
                    break
                for number in range(runner.num_passes):
                    runner.run_pass(len(times), number)
                middle = _now(device)
                runner.update(len(times))
                end = _now(device)
                seconds += end - start if len(times) >= WARM_UP else 0.0
                times.append(((middle - start) / runner.num_passes, end - middle))
            rate = matrix_rate(device, DTYPES[experiment.training.precision])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    timed = times[WARM_UP:] or times[1:] or times
    passes, updates = (statistics.median(each) for each in zip(*timed, strict=True))
    busy = "" if experiment.resources.gpus_per_worker else busy_text()
    return MeasuredSteps(passes, updates, rate, len(timed), torch.get_num_threads(), busy)


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
