"""Policies of recovery: what follows a step that does not fit into memory, and one that is not
finite.

Out of memory: empty the caches, halve the micro-batch, halve it again, skip the batch. Not finite:
stop, skip the update, or roll back to the last checkpoint.
"""

import math
from dataclasses import dataclass, field, replace

import torch

from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment

# A CUDA device raises an exception of its own; torch's CPU allocator and NCCL a RuntimeError with
# one of these in it.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "out of memory",
)


@dataclass(eq=False)
class OutOfMemory(Exception):
    """A forward or backward pass of step `step` (from 0) did not fit into memory."""

    step: int
    message: str


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an exception means that memory, of the device or the host, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


@dataclass(frozen=True)
class MemoryPlan:
    """Measures that a run takes to fit into memory; the global batch and its random draws stay what
    they are.
    """

    microbatch_splits: int = 0
    """Number of times the micro-batch was halved: each halving doubles the accumulation."""
    skipped_steps: tuple[int, ...] = ()
    """Steps (from 0) whose batch is taken from the order but not trained on."""
    step: int = -1
    """The latest step that did not fit."""
    attempts: int = 0
    """Number of times that step was tried again."""

    def can_halve(self, experiment: Experiment) -> bool:
        """Return True if the micro-batch can be halved once more."""
        return experiment.micro_size % 2 ** (self.microbatch_splits + 1) == 0

    def next_attempt(self, step: int, experiment: Experiment) -> "MemoryPlan":
        """Return the plan with the next measure for a step that did not fit.

        Raises RunFailed where every measure is used up, at the first step or for four steps in a
        row.
        """
        attempts = 1
        if step == self.step:
            attempts += self.attempts
        tried = replace(self, step=step, attempts=attempts)
        if attempts == 1:
            # the next attempt has empty caches: fragments of earlier shapes may have been the cause
            return tried
        if attempts <= 3 and self.can_halve(experiment):
            return replace(tried, microbatch_splits=self.microbatch_splits + 1)
        if self.skipped_steps[-3:] == (step - 3, step - 2, step - 1) or step == 0:
            raise RunFailed(
                f"out of memory at step {step + 1}, with micro-batches of "
                f"{experiment.micro_size >> self.microbatch_splits} too: lower batch.micro or the "
                "model's size, raise engine.zero.stage, or set "
                "engine.activation_checkpointing=true.",
                kind="out_of_memory",
            )
        return replace(tried, skipped_steps=(*self.skipped_steps, step))

    def describe(self, step: int, experiment: Experiment) -> str:
        """Return a sentence for people on the measure taken for a step."""
        if step in self.skipped_steps:
            return f"out of memory at step {step + 1}: its batch is skipped."
        if self.attempts == 1:
            return f"out of memory at step {step + 1}: trying again with emptied caches."
        size = experiment.micro_size >> self.microbatch_splits
        return (
            f"out of memory at step {step + 1}: going on with micro-batches of {size}, the "
            "batch stays the same."
        )


@dataclass
class NonFiniteMonitor:
    """Counter of non-finite steps, whose updates the engine has skipped; decides what follows.

    All workers see the same numbers in the same order, so they decide alike.
    """

    experiment: Experiment
    num_skipped: int = 0
    """Steps whose updates this process has skipped."""
    num_consecutive: int = 0
    """Non-finite steps since the last finite one."""
    _num_rollbacks: int = 0
    _rollback_step: int = -1
    _rolled_back: set[int] = field(default_factory=set)
    """Steps (from 1) that this process has rolled back from, whose batches are skipped."""

    def record(self, step: int, loss: float, norm: float) -> None:
        """Count a step (from 1) whose loss or gradient norm is not finite.

        Raises RunFailed where the policy is to stop, or its limit of steps in a row is exceeded.
        """
        policy = self.experiment.training.non_finite
        self.num_skipped += 1
        self.num_consecutive += 1
        if not math.isfinite(loss):
            what = f"the loss is {loss}"
        else:
            what = f"the gradient norm is {norm}"
        if policy.policy == "stop":
            raise self._diverged(f"{what} at step {step}")
        if policy.policy == "skip" and self.num_consecutive > policy.limit:
            raise self._diverged(f"{what} at step {step}, as in the {policy.limit} steps before it")

    def record_rollback(self, step: int, to: int) -> None:
        """Count a return to step `to` because of the non-finite `step`. Raises RunFailed for too
        many to one step.
        """
        limit = self.experiment.training.non_finite.limit
        self._rolled_back.add(step)
        if to > self._rollback_step:
            self._num_rollbacks = 0
        self._num_rollbacks += 1
        self._rollback_step = to
        if self._num_rollbacks > limit:
            raise self._diverged(
                f"step {step} had a NaN or infinite loss, after {limit} roll-backs to step {to}"
            )

    def check_end(self, last_step: int, has_loss: bool) -> None:
        """Raise RunFailed for a run that ends in non-finite steps: more than one, or one without
        `has_loss`, which says that a step before it had a loss.

        Fewer steps than the limit may be left, so that the limit alone would let it pass. A last
        step alone may be a bad batch: the weights are those of the step before.
        """
        num = self.num_consecutive
        while last_step - num in self._rolled_back:
            num += 1
        if num > 1 or (num and not has_loss):
            raise self._diverged(
                f"the loss or gradient of the run's last {num:,} of {last_step:,} steps was NaN "
                "or infinite, and none of them changed the weights"
            )

    def _diverged(self, what: str) -> RunFailed:
        return RunFailed(
            f"{what}: training diverged; lower optimizer.lr (now "
            f"{self.experiment.optimizer.lr}) or training.clip.max_norm, or use "
            "training.precision=fp32.",
            kind="diverged",
        )
