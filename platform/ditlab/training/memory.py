"""Out of memory: free what is cached, halve the micro-batch, halve it again, leave the batch out."""

from dataclasses import dataclass, replace

import torch

from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment

# A CUDA device says so by its own exception; torch's CPU allocator and NCCL by a RuntimeError with one of these in it.
_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "out of memory")


class OutOfMemory(Exception):
    """A forward or backward pass of step `step` (from 0) did not fit."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(step, message)
        self.step, self.message = step, message


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the device or the host, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


@dataclass(frozen=True)
class Room:
    """What a run does to fit into memory. The global batch and its random draws stay what they are."""

    halvings: int = 0
    """How often the micro-batch was halved: each halving doubles the accumulation."""
    left_out: tuple[int, ...] = ()
    """Steps (from 0) whose batch is taken from the order but not trained on."""
    step: int = -1
    """The step that did not fit last."""
    tries: int = 0
    """How often it has been tried again."""

    def after(self, step: int, experiment: Experiment) -> "Room":
        """The next rung of the ladder for a step that did not fit. Raises RunFailed where the first step never does."""
        tries = self.tries + 1 if step == self.step else 1
        tried = replace(self, step=step, tries=tries)
        if tries == 1:
            return tried  # caches are empty in the next try: fragments of earlier shapes may have been all
        if tries <= 3 and experiment.micro_size % 2 ** (self.halvings + 1) == 0:
            return replace(tried, halvings=self.halvings + 1)
        if self.left_out[-3:] == (step - 3, step - 2, step - 1) or step == 0:
            raise RunFailed(
                f"out of memory at step {step + 1}, with micro-batches of {experiment.micro_size >> self.halvings} "
                "too: lower batch.micro or the model's size, raise engine.zero.stage, or set "
                "engine.activation_checkpointing=true.",
                kind="out_of_memory",
            )
        return replace(tried, left_out=(*self.left_out, step))

    def sentence(self, step: int, experiment: Experiment) -> str:
        """What was done about the step, for people."""
        if step in self.left_out:
            return f"out of memory at step {step + 1}: its batch is left out."
        if self.tries == 1:
            return f"out of memory at step {step + 1}: trying again with emptied caches."
        size = experiment.micro_size >> self.halvings
        return f"out of memory at step {step + 1}: going on with micro-batches of {size}, the batch stays the same."
