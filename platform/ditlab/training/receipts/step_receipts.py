"""Receipts of the steps of a run, put together from what its workers were fed and what the loop reads of each step."""

import math
from collections.abc import Mapping, Sequence

from ditlab.engine.distributed import Rank
from ditlab.receipts.rows import LEFT_OUT, NOT_APPLIED, joined_digest
from ditlab.receipts.writer import ReceiptWriter, StepReceipt
from ditlab.training.memory import MemoryPlan
from ditlab.training.plan import TrainingRun
from ditlab.training.receipts.attempt_facts import attempt_facts


class StepReceipts:
    """Receipts of one worker's steps; the first worker writes those of all.

    A step is written once all workers' digests of its samples and its metrics are there; metrics of a GPU come later.
    """

    def __init__(self, run: TrainingRun, rank: Rank, writer: ReceiptWriter | None) -> None:
        """`writer` None: digests are exchanged, and nothing is written."""
        self._run, self._rank, self._writer = run, rank, writer
        self._digests: dict[int, int] = {}
        """Digest of the samples of a step, of all workers."""
        self._values: dict[int, tuple[float, float, float]] = {}
        """Loss, gradient norm and learning rate of a step."""
        self._left_out: set[int] = set()
        self._next = 0
        self._is_begun = False

    def begin(self, step: int, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        """Begin an attempt from `step` steps on; `saved` is the receipt of the checkpoint that it goes on from.

        An attempt that goes on with the state as it is, in this process, has the receipts so far as `saved`.
        """
        self._digests.clear()
        self._values.clear()
        self._left_out = {number + 1 for number in memory.skipped_steps}
        self._next, self._is_begun = step + 1, True
        if self._writer is not None:
            self._writer.begin(attempt_facts(self._run, self._rank, memory, step), saved)

    def row(self, digest: int) -> list[int]:
        """Return this worker's digest of a step's samples in its place among those of all workers, zeros in others'."""
        numbers = [0] * self._rank.world_size
        numbers[self._rank.rank] = digest
        return numbers

    def take(self, step: int, digests: Sequence[int]) -> None:
        """Take in the digests of all workers for a step."""
        if self._writer is not None and self._is_begun:
            self._digests[step] = joined_digest(list(digests))
            self._write()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the `loss`, `grad_norm` and `lr` of a step."""
        if self._writer is not None and step >= self._next:
            self._values[step] = (values["loss"], values["grad_norm"], values["lr"])
            self._write()

    def receipt(self) -> dict[str, str]:
        """Return what a checkpoint of now holds of the receipts; {} where none are written."""
        if self._writer is None:
            return {}
        assert not self._values, "a step is saved before its workers' digests are there"
        return self._writer.receipt()

    def _write(self) -> None:
        assert self._writer is not None
        while self._next in self._digests and (self._next in self._values or self._next in self._left_out):
            step = self._next
            digest = self._digests.pop(step)
            if step in self._left_out:
                self._writer.add(StepReceipt(step, digest, flags=LEFT_OUT))
            else:
                loss, norm, lr = self._values.pop(step)
                flags = 0 if math.isfinite(loss) and math.isfinite(norm) else NOT_APPLIED
                self._writer.add(StepReceipt(step, digest, loss, norm, lr, flags))
            self._next += 1
