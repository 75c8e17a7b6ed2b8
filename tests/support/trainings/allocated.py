"""Bytes of a pass as torch's allocator counts them, inside compiled code too, and activations off
the device.
"""

from __future__ import annotations

import gc

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from ditlab.data.splits import open_data
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.inputs.model_inputs import ModelInputs
from support.garbage import exempt_imports
from support.trainings.tracked import build_engine, run_pass


def allocated_peak(experiment, home):
    """Train three steps in this process on the CPU; return the most bytes that the last one's
    passes took at once.
    """
    data = open_data(experiment.data, Home(home))
    with single_process(use_gpu=False) as rank:
        inputs = ModelInputs.from_experiment(experiment, data.train.columns, rank.device)
        engine = build_engine(experiment, data, rank)
        for step in range(2):
            run_pass(engine, experiment, data, inputs, step, 0)
            engine.step(step, 1e-3)
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            run_pass(engine, experiment, data, inputs, 2, 0)
        engine.close()
    exempt_imports()
    profiler = profiled.profiler
    sizes = sorted(_allocations(profiler.kineto_results.experimental_event_tree()))
    live = peak = 0
    for _, size in sizes:
        live += size
        peak = max(peak, live)
    return peak


def _allocations(events):
    """Yield time and bytes of every allocation, negative where memory is freed."""
    for event in events:
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)


class SavedElsewhere(saved_tensors_hooks):
    """Stand-in for torch's `save_on_cpu` on a CPU: what is saved is in memory that no tracker of
    tensors sees.
    """

    def __init__(self, pin_memory):
        super().__init__(self._pack, self._unpack)

    @staticmethod
    def _pack(tensor):
        return tensor.detach().numpy().copy()

    @staticmethod
    def _unpack(saved):
        return torch.from_numpy(saved.copy())
