"""Checks of training: what `ditlab prove`, `ditlab replay` and `ditlab verify` call."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.analysis.opened_run import OpenedRun, open_found
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.launch import RecordedProof, StartRefused, StartSituation
from ditlab.runs.locks import Warn
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import validated
from ditlab.tracking.records import find_training_run
from ditlab_addons.check.replay.check import check_replay
from ditlab_addons.check.replay.replaying import open_source, replay_steps
from ditlab_addons.check.replay.report import ReplayReport
from ditlab_addons.check.verify.verification import RunVerification, verify_run

if TYPE_CHECKING:
    from ditlab_addons.check.eject.against import FileComparison
    from ditlab_addons.check.eject.ejecting import EjectedFile
    from ditlab_addons.check.prove.findings import Proof


_log = logging.getLogger("ditlab")


def prove(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    threads: int | None = None,
    on_progress: Progress = ignore_progress,
) -> Proof:
    """Compare each of twenty steps of the engine that an experiment configures with a reference
    trainer's.

    `experiment`: validated, or the path of its YAML, with `overrides` (`field.path=value`).
    `threads`: of each worker on a CPU; None: a new run's. The proof leaves no run behind and runs
    in processes of its own: a program that calls this keeps its start behind `if __name__ ==
    "__main__"`. Raises UserError for a wrong spec, data that are not here, or more workers than
    this machine starts, and RunFailed where a step does not fit into memory.
    """
    from ditlab_addons.check.prove.proving import prove_experiment

    return prove_experiment(
        validated(experiment, overrides), Home.from_environment(), on_progress, threads
    )


def compare_file(
    experiment: Experiment | str | Path,
    file: str | Path,
    overrides: Sequence[str] = (),
    *,
    on_progress: Progress = ignore_progress,
) -> FileComparison:
    """Compare a file that `eject` wrote and somebody changed with what its experiment gives, over
    twenty steps. Raises UserError for a file that does not run.
    """
    from ditlab_addons.check.eject.against import compare_file as compare

    own = validated(experiment, overrides)
    return compare(own, Home.from_environment(), Path(file), on_progress)


def eject(
    experiment: Experiment | str | Path, out: str | Path, overrides: Sequence[str] = ()
) -> EjectedFile:
    """Write an experiment's training as one file of plain torch.

    Raises UserError for a file that is there already, and for what one file cannot hold: streamed
    data, frozen encoders, offload, adapters.
    """
    from ditlab_addons.check.eject.ejecting import write_file

    return write_file(validated(experiment, overrides), Home.from_environment(), Path(out))


def prove_before(
    experiment: Experiment, address: str | None
) -> Callable[[StartSituation], RecordedProof]:
    """Return the proof that `ditlab train --prove` makes before a run begins. Raises UserError for
    a cluster.
    """
    if address:
        raise UserError(
            f"--prove compares on this machine, and the workers train on {address}; run "
            "`ditlab prove` on one of its nodes first (ray job submit --entrypoint-num-gpus 1 "
            "... -- python -m ditlab prove SPEC), and leave --prove out."
        )

    def prove_now(situation: StartSituation) -> RecordedProof:
        situation.say("proving the engine on twenty steps before the run begins")
        situation.stage("proving the engine")
        proof = prove(experiment, threads=situation.threads)
        if not proof.holds:
            object_ = {"status": "not proved", "proof": proof.to_dict()}
            raise StartRefused(
                f"nothing was trained: {proof.verdict}", "proof", str(proof).splitlines(), object_
            )
        situation.say(f"proof: {proof.verdict}")
        return RecordedProof(
            proof.summary, json.dumps(proof.to_dict(), indent=1) + "\n", f"{proof}\n"
        )

    return prove_now


def replay(
    run: str,
    step: int,
    to: int | None = None,
    *,
    check: bool = False,
    anyway: bool = False,
    warn: Warn | None = None,
    on_progress: Progress = ignore_progress,
) -> ReplayReport:
    """Do steps `step` to `to` (from 1; None: one step) of a run again, without writing anything
    into the run.

    With `check`, loss, gradient norm, learning rate and samples are compared with the run's
    receipts (`holds`). `anyway`: go on with other code, data or device than the run's. The steps
    run in processes of their own: a program that calls this keeps its start behind `if __name__ ==
    "__main__"`. Raises UserError where the run has no such step, a checkpoint of a fork's parent is
    gone, or code, data or device are not the run's, and RunFailed where a step does not fit into
    memory.
    """
    source = open_source(_open(run, warn, on_progress), anyway)
    last = step if to is None else to
    if check:
        checked = check_replay(source, step, last)
        return ReplayReport(source, checked.replayed, checked)
    return ReplayReport(source, replay_steps(source, step, last, range(step, last + 1)))


def verify(
    run: str,
    *,
    steps: int = 3,
    seed: int = 0,
    anyway: bool = False,
    warn: Warn | None = None,
    on_progress: Progress = ignore_progress,
) -> RunVerification:
    """Check receipts, checkpoints, journal, spec and data of a run, and do `steps` of its steps,
    chosen by `seed`, again.

    Nothing is written into the run. The steps run in processes of their own: a program that calls
    this keeps its start behind `if __name__ == "__main__"`. Raises UserError for an unknown run, a
    sweep, an option out of its range, or checkpoints that cannot be reached.
    """
    for name, value in {"steps": steps, "seed": seed}.items():
        if value < 0:
            raise UserError(f"{name}={value} is below 0; give 0 or more.")
    return verify_run(_open(run, warn, on_progress), steps=steps, seed=seed, anyway=anyway)


def _open(run: str, warn: Warn | None, on_progress: Progress) -> OpenedRun:
    """Open a training run of this home. Raises UserError for an unknown one, and for a sweep."""
    home = Home.from_environment()
    return open_found(find_training_run(home, run), home, warn or _log.warning, on_progress)
