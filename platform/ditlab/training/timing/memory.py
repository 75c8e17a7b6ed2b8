"""Peak memory of a worker."""

import resource

import torch


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes: of torch's tensors on a GPU, of the whole process's resident memory on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
