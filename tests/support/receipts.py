"""Receipts of attempts, written without training."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from ditlab.home import RunFolder
from ditlab.receipts.records import ORIGIN, RecordedAttempt
from ditlab.receipts.writer import ReceiptWriter


@contextmanager
def receipt_writer(
    folder: RunFolder,
    warn: Callable[[str], None],
    step: int = 0,
    saved: Mapping[str, str] | None = None,
    workers: int = 1,
) -> Iterator[ReceiptWriter]:
    """Writer of an attempt that begins after a step."""
    writer = ReceiptWriter(folder, warn)
    attempt = RecordedAttempt(
        attempt=1,
        chain=ORIGIN,
        step=step,
        workers=workers,
        microbatch_splits=0,
        left_out=[],
        device="cpu",
        processor="a CPU",
        threads=1,
        versions={"torch": "2"},
        code="c",
        data="d",
        spec_hash="s",
        numerics=4,
        blocks="eager",
    )
    writer.begin(attempt, saved or {})
    yield writer
    writer.close()


def write_attempt(
    folder: RunFolder,
    first: int,
    last: int,
    saved: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = pytest.fail,
    workers: int = 1,
    rate: float = 1e-3,
) -> dict[str, str]:
    """Write an attempt of steps `first` to `last`, and return what a checkpoint after it holds."""
    with receipt_writer(folder, warn, first - 1, saved, workers) as writer:
        for step in range(first, last + 1):
            writer.add(step, 1000 * workers + step, 0.5 / step, 2.0, rate)
        return writer.receipt()
