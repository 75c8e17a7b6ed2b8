"""Journal of a run against its receipts."""

from collections.abc import Iterator

import numpy as np

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.verify.findings import VerifiedPart
from ditlab.errors import first_line
from ditlab.receipts.reader import Receipts
from ditlab.receipts.rows import LEFT_OUT
from ditlab.storage.plain_files import open_plain
from ditlab.tracking.journal.format import all_metrics
from ditlab.tracking.journal.reader import LARGEST_JOURNAL, read_journal

COMPARED = {"train/loss": "loss", "train/grad_norm": "norm", "train/lr": "lr"}
"""Column of the receipts by metric."""
NAMED = 3
"""Faults that are named one by one."""


def check_journal(run: OpenedRun, receipts: Receipts | None) -> Iterator[VerifiedPart]:
    """Check every line's checksum, and each step's loss, gradient norm and learning rate against its receipts."""
    damaged, logged, num_lines = [], [], 0
    try:
        with open_plain(run.folder.journal, LARGEST_JOURNAL) as file:
            for number, line in enumerate(read_journal(file), 1):
                num_lines = number
                if number % 20_000 == 0:
                    run.progress("reading the journal", number, None, "lines")
                if line.record is None:
                    if line.is_whole:
                        damaged.append(f"line {number:,}, byte {line.begin:,}")
                elif line.record["kind"] == "metrics":
                    values = dict(all_metrics(line.record))
                    if "train/loss" in values:
                        logged.append((line.record["step"], *(values.get(name, np.nan) for name in COMPARED)))
    except FileNotFoundError:
        yield VerifiedPart("journal", "off", f"{run.folder.journal} is gone; bring it back from a copy.")
        return
    except OSError as error:
        yield VerifiedPart("journal", "off", f"{run.folder.journal} cannot be read ({first_line(error)}).")
        return
    if damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        yield VerifiedPart(
            "journal", "off",
            f"{run.folder.journal}: altered or torn at {'; '.join(damaged[:NAMED])}{more}; bring it back from a copy.",
        )  # fmt: skip
    if receipts is None:
        if not damaged:
            yield VerifiedPart("journal", "holds", f"{num_lines:,} lines have their checksums; no receipts to compare.")
        return
    points = np.array(logged, np.float64).reshape(-1, 1 + len(COMPARED))
    off, compared, rest = _differing(points, receipts)
    for step, metric, value, recorded in off[:NAMED]:
        yield VerifiedPart(
            "journal", "off",
            f"step {step:,}: {metric} is {value:.9g} in the journal, and {recorded} in the receipts: one was altered.",
        )  # fmt: skip
    if len(off) > NAMED:
        yield VerifiedPart("journal", "off", f"{len(off) - NAMED:,} more steps differ from the receipts.")
    if not damaged and not off:
        beyond = f" {rest:,} logged steps have no receipt." if rest else ""
        yield VerifiedPart(
            "journal", "holds",
            f"{num_lines:,} lines have their checksums; loss, gradient norm and learning rate of {compared:,} steps "
            f"are the receipts'.{beyond}",
        )  # fmt: skip


def _differing(points: np.ndarray, receipts: Receipts) -> tuple[list[tuple[int, str, float, str]], int, int]:
    """Return (step, metric, value, recorded ones) of differences, how many steps were compared, and how many not.

    A step that was done several times may have any of its receipts: the journal keeps what came first.
    """
    rows = receipts.rows[(receipts.rows["flags"] & LEFT_OUT) == 0]
    order = np.argsort(rows["step"], kind="stable")
    rows, steps = rows[order], rows["step"][order]
    first = np.searchsorted(steps, points[:, 0].astype(np.uint64), "left")
    stop = np.searchsorted(steps, points[:, 0].astype(np.uint64), "right")
    off = []
    for column, (metric, name) in enumerate(COMPARED.items(), 1):
        values = points[:, column].astype(np.float32)
        place = np.minimum(first, max(0, len(rows) - 1))
        same = _equal(values, rows[name][place]) if len(rows) else np.zeros(len(points), bool)
        for index in np.flatnonzero(~same & (stop > first) & ~np.isnan(points[:, column])):
            candidates = rows[name][first[index] : stop[index]]
            if not _equal(candidates, values[index]).any():
                recorded = " or ".join(f"{value:.9g}" for value in candidates)
                off.append((int(points[index, 0]), metric, float(points[index, column]), recorded))
    covered = int((stop > first).sum())
    return sorted(off), covered, len(points) - covered


def _equal(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return (one == two) | (np.isnan(one) & np.isnan(two))
