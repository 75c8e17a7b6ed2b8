"""DiT's sampler is the shared flow sampler, under the file name that every family has."""

from denoisers.processes.flow.sampler import FlowSampler

__all__ = ["FlowSampler"]
