"""Bytes of tensors at the peak of a training step."""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def step_peak(step: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a step takes above those there before it; call it behind the first
    step.

    On CUDA torch's own count; on a CPU what torch's allocator gives out, kernels' buffers and
    compiled code's included.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    # Of `profiled.events()`, those inside operators are hidden: each operator's sum stands in their
    # place.
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = profiled.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(accumulate((change for _, change in changes), initial=0))
