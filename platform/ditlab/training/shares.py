"""Distribution of a global batch's micro-batches over any number of workers, with micro-batches cut to fit memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of a worker: rows `start` to `stop` of its `number`-th micro-batch."""

    number: int
    start: int
    stop: int
    counts: bool
    """True for a pass of this worker's own; a filler keeps step with workers that have one micro-batch more."""


@dataclass(frozen=True)
class WorkerShare:
    """Micro-batches and forward passes of one worker in every step."""

    micro_indices: range
    """Its micro-batches by global index: contiguous, no two workers' counts more than one apart."""
    passes: tuple[ForwardPass, ...]
    """Its forward passes, as many on every worker."""
    pass_size: int
    """Samples of a forward pass."""
    total_passes: int
    """Forward passes that count, over all workers: each holds 1 / total_passes of the mean."""
    weight: float
    """Factor on the loss of a pass that counts, so that a mean over passes and workers is the mean over samples."""


def worker_share(num: int, size: int, rank: int, world_size: int, halvings: int = 0) -> WorkerShare:
    """Return a worker's share of `num` micro-batches of `size` samples, each cut in two `halvings` times.

    Every worker needs at least one micro-batch.
    """
    assert num >= world_size, f"{num} micro-batches leave some of {world_size} workers without one"
    parts = 2**halvings
    assert size % parts == 0, f"{size} samples cannot be halved {halvings} times"
    mine = range(rank * num // world_size, (rank + 1) * num // world_size)
    slots = -(-num // world_size)
    cut = size // parts
    passes = tuple(
        ForwardPass(min(number, len(mine) - 1), part * cut, (part + 1) * cut, number < len(mine))
        for number in range(slots)
        for part in range(parts)
    )
    return WorkerShare(mine, passes, cut, num * parts, slots * world_size / num)
