"""Chain of receipts walked once, in the order in which the rows were written, as the writer went."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ditlab.receipts.reading import Receipts
from ditlab.receipts.records import CHECKED, ORIGIN, ROW, RecordedAttempt


@dataclass
class ChainWalk:
    """Heads of a run's chain, and places where its rows and attempts do not belong together."""

    heads: dict[int, dict[str, int]] = field(default_factory=dict)
    """Heads after each step that was asked for, in hexadecimal, and the step that each counts from: several where a
    step was done several times, the last one last."""
    faults: list[str] = field(default_factory=list)
    """Sentences without a full stop, each on a place where something is out of order."""


def walk_chain(receipts: Receipts, steps: Iterable[int]) -> ChainWalk:
    """Compute the chain anew over all rows, attempt by attempt, and keep its heads after `steps`.

    Each attempt must begin with the head of the step that it goes on from (or anew), and its rows must be its steps,
    one after another. The walk ends at the first row whose attempt is unknown: nothing after it can be computed.
    """
    walk = ChainWalk()
    wanted = {*steps, *(attempt.step for attempt in receipts.attempts.values())}
    rows = receipts.rows
    firsts: list[int] = np.flatnonzero(np.diff(rows["attempt"].astype(np.int64), prepend=0)).tolist()
    bounds = [*firsts, len(rows)]
    content = np.ascontiguousarray(rows).tobytes()
    before = 0
    for begin, end in pairwise(bounds):
        number = int(rows["attempt"][begin])
        attempt = receipts.attempts.get(number)
        if number < before:
            walk.faults.append(f"rows of attempt {number} stand after those of attempt {before} (row {begin + 1:,})")
            break
        if attempt is None:
            walk.faults.append(f"no whole line of attempt {number} is there, which rows name from row {begin + 1:,} on")
            break
        before = number
        if not _are_its_steps(rows["step"][begin:end], attempt):
            walk.faults.append(
                f"the rows of attempt {number} are not its steps from {attempt.step + 1:,} on, one after another"
            )
        known = {ORIGIN: attempt.step} | walk.heads.get(attempt.step, {})
        since = known.get(attempt.chain, attempt.step)
        if attempt.chain not in known:
            walk.faults.append(
                f"attempt {number} goes on from step {attempt.step:,} with the chain {attempt.chain[:12]}, to which no "
                "rows before it lead"
            )
        _go(walk, content, rows["step"], range(begin, end), attempt, since, wanted)
    return walk


def _are_its_steps(steps: np.ndarray, attempt: RecordedAttempt) -> bool:
    return bool(np.array_equal(steps, np.arange(attempt.step + 1, attempt.step + 1 + len(steps), dtype=np.uint64)))


def _go(
    walk: ChainWalk,
    content: bytes,
    steps: np.ndarray,
    places: range,
    attempt: RecordedAttempt,
    since: int,
    wanted: set[int],
) -> None:
    """Go over the rows of an attempt as `next_head` does, in a tenth of its time: 0.1 s for 100,000 rows."""
    size = ROW.itemsize
    head, begun = bytes.fromhex(attempt.chain), bytes.fromhex(attempt.digest)
    for place, step in zip(places, steps[places.start : places.stop].tolist(), strict=True):
        head = hashlib.sha256(head + begun + content[place * size : place * size + CHECKED]).digest()
        begun = b""
        if step in wanted:
            heads = walk.heads.setdefault(step, {})
            heads.pop(head.hex(), None)
            heads[head.hex()] = since
