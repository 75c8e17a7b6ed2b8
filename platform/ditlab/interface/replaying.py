"""Replay of a run's steps: what `ditlab replay` calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ditlab.analysis.opened_run import open_found
from ditlab.checking.replay.report import ReplayReport, ReplayRequest, replay_run
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.tracking.records import find_training_run

_log = logging.getLogger("ditlab")


def replay(
    run: str,
    step: int | None = None,
    to: int | None = None,
    *,
    check: bool = False,
    worst: int | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> ReplayReport:
    """Do steps `step` to `to` (from 1; None: one step) of a run again, without writing anything into the run.

    With `check`, loss, gradient norm, learning rate and samples are compared with journal and receipts (`holds`). With
    `worst` instead of a step, that many steps which stand out are found, replayed and explained. With `overrides`
    (`training.clip.max_norm=0.5`) the step is done once more under another spec. `anyway`: go on with other code, data
    or device than the run's. The steps run in processes of their own: a program that calls this keeps its start behind
    `if __name__ == "__main__"`.

    Raises:
        UserError: the run has no such step, a checkpoint of a fork's parent is gone, or code, data or device are other
            than the run's.
        RunFailed: a step does not fit into this machine's memory.
    """
    request = ReplayRequest(step, to, check, worst, tuple(overrides), anyway)
    request.check_options()
    home = Home.from_environment()
    found = find_training_run(home, run)
    return replay_run(open_found(found, home, warn or _log.warning, on_progress), request)
