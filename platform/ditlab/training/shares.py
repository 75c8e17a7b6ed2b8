"""How the micro-batches of a global batch are shared out over workers, whatever their number, and cut to fit memory."""

from dataclasses import dataclass

from ditlab.spec.experiment import Experiment


@dataclass(frozen=True)
class Slice:
    """One forward pass of a worker: rows `start` to `stop` of its `number`-th micro-batch."""

    number: int
    start: int
    stop: int
    counts: bool
    """Whether it belongs to this worker; a filler keeps step with workers that have one micro-batch more."""


@dataclass(frozen=True)
class Share:
    """What one worker does in every step."""

    micro_indices: range
    """Its micro-batches by global index: contiguous, no two workers' counts more than one apart."""
    slices: tuple[Slice, ...]
    """Its forward passes, as many on every worker."""
    slice_size: int
    """Samples of a forward pass."""
    total_slices: int
    """Forward passes that count, over all workers: each holds 1 / total_slices of the mean."""
    weight: float
    """Factor on the loss of a pass that counts, so that a mean over passes and workers is the mean over samples."""


def share_out(experiment: Experiment, rank: int, world_size: int, halvings: int = 0) -> Share:
    """The share of a worker; micro-batches are cut in two `halvings` times. Every worker needs a micro-batch."""
    num, size = experiment.num_micro, experiment.micro_size
    assert num >= world_size, f"{num} micro-batches leave some of {world_size} workers without one"
    parts = 2**halvings
    assert size % parts == 0, f"{size} samples cannot be halved {halvings} times"
    mine = range(rank * num // world_size, (rank + 1) * num // world_size)
    slots = -(-num // world_size)
    cut = size // parts
    slices = tuple(
        Slice(min(number, len(mine) - 1), part * cut, (part + 1) * cut, number < len(mine))
        for number in range(slots)
        for part in range(parts)
    )
    return Share(mine, slices, cut, num * parts, slots * world_size / num)
