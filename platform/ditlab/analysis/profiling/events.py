"""Operators of a profiled step, by the module that they belong to: forward by nesting, backward by sequence number.

torch's profiler records operators as nested ranges. Ranges named after modules enclose the operators of their forward
passes; a backward operator has the sequence number of the forward operator that it differentiates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

PREFIX = "module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_OWN_RANGES = (PREFIX, _BACKWARD, "ProfilerStep", "Optimizer.step", "DistributedDataParallel")
OUTSIDE = "(outside of modules)"


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
    """Return the operators of a profile's events (`torch.profiler.profile.events()`) that took time."""
    modules = {id(event): _module_of(event) for event in events}
    by_sequence: dict[int, str] = {}
    for event in events:
        if event.sequence_nr >= 0 and not _is_backward(event) and modules[id(event)] != OUTSIDE:
            by_sequence[event.sequence_nr] = modules[id(event)]
    found = []
    for event in events:
        seconds = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6
        if event.name.startswith(_OWN_RANGES) or not seconds:
            continue
        backward = _backward_range(event)
        module = modules[id(event)]
        if backward is not None:
            module = by_sequence.get(backward.sequence_nr, OUTSIDE)
        found.append(OperatorEvent(event.name, module, backward is not None, seconds, int(event.flops or 0)))
    return found


def _ancestors(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _module_of(event: Any) -> str:
    return next((each.name.removeprefix(PREFIX) for each in _ancestors(event) if each.name.startswith(PREFIX)), OUTSIDE)


def _backward_range(event: Any) -> Any:
    return next((each for each in _ancestors(event) if each.name.startswith(_BACKWARD)), None)


def _is_backward(event: Any) -> bool:
    return _backward_range(event) is not None


def by_pattern(events: Iterable[OperatorEvent]) -> dict[str, list[OperatorEvent]]:
    """Group events by their module's path, in which numbers of repeated blocks are `*`."""
    groups: dict[str, list[OperatorEvent]] = defaultdict(list)
    for event in events:
        groups[re.sub(r"(?<=\.)\d+(?=\.|$)", "*", event.module)].append(event)
    return groups
