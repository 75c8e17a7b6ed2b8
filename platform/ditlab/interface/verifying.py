"""Verification of a run: what `ditlab verify` calls."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ditlab.analysis.opened_run import open_found
from ditlab.checking.verify.findings import RunVerification
from ditlab.checking.verify.verification import GIB, verify_run
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.tracking.records import find_training_run

_log = logging.getLogger("ditlab")


def verify(
    run: str,
    *,
    steps: int = 3,
    seed: int = 0,
    seconds: float = 300.0,
    data_limit: int = 16 * GIB,
    anyway: bool = False,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> RunVerification:
    """Check receipts, checkpoints, journal, spec and data of a run, and do `steps` of its steps, chosen by `seed`,
    again, within about so many `seconds`.

    Stores of data up to `data_limit` bytes are hashed whole. Nothing is written into the run. The steps run in
    processes of their own: a program that calls this keeps its start behind `if __name__ == "__main__"`.

    Raises:
        UserError: an unknown run, a sweep, an option out of its range, or checkpoints that cannot be reached.
    """
    least_of = {"steps": (steps, 0), "seed": (seed, 0), "seconds": (seconds, 1), "data_limit": (data_limit, 0)}
    for name, (value, least) in least_of.items():
        if not value >= least:
            raise UserError(f"{name}={value} is below {least}; give {least} or more.")
    found = find_training_run(home := Home.from_environment(), run)
    opened = open_found(found, home, warn or _log.warning, on_progress)
    return verify_run(opened, steps=steps, seed=seed, seconds=seconds, data_limit=data_limit, anyway=anyway)
