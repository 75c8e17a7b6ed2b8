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
from ditlab.progress import Progress, ignore, ignore_progress
from ditlab.runs.launch import RecordedProof, StartRefused, StartSituation
from ditlab.runs.locks import Warn
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import validated
from ditlab.tracking.records import find_training_run
from ditlab_addons.check.replay.replaying import OnCost, open_source, replay_executions
from ditlab_addons.check.replay.report import (
    ReplayReport,
    check_options,
    replay_changed,
    replay_worst,
    report_check,
    report_steps,
)
from ditlab_addons.check.verify.verification import GIB, RunVerification, verify_run

if TYPE_CHECKING:
    from ditlab_addons.check.prove.findings import Proof


_log = logging.getLogger("ditlab")


def prove(
    experiment: Experiment | str | Path,
    overrides: Sequence[str] = (),
    *,
    threads: int | None = None,
    on_progress: Progress = ignore_progress,
) -> Proof:
    """Compare each of twenty steps of the engine that an experiment configures with a reference trainer's.

    `experiment`: validated, or the path of its YAML, with `overrides` (`field.path=value`). A large one is proved on a
    scaled-down spec (`Proof.scaled_down`). `threads`: of each worker on a CPU; None: a new run's. The
    proof leaves no run behind and runs in processes of its own: a program that calls this keeps its start behind `if
    __name__ == "__main__"`. Raises UserError for a wrong spec, data that are not here, or more workers than this
    machine starts, and RunFailed where a step does not fit into memory.
    """
    from ditlab_addons.check.prove.proving import prove_experiment

    return prove_experiment(validated(experiment, overrides), Home.from_environment(), on_progress, threads)


def prove_before(experiment: Experiment, address: str | None) -> Callable[[StartSituation], RecordedProof]:
    """Return the proof that `ditlab train --prove` makes before a run begins. Raises UserError for a cluster."""
    if address:
        raise UserError(
            f"--prove compares on this machine, and the workers train on {address}; run `ditlab prove` on one of "
            "its nodes first (ray job submit --entrypoint-num-gpus 1 ... -- python -m ditlab prove SPEC), and leave "
            "--prove out."
        )

    def prove_now(situation: StartSituation) -> RecordedProof:
        from ditlab_addons.check.prove.findings import proof_lines

        situation.say("proving the engine on twenty steps before the run begins")
        situation.stage("proving the engine")
        proof = prove(experiment, threads=situation.threads)
        lines = proof_lines(proof)
        if not proof.holds:
            object_ = {"status": "not proved", "proof": proof.to_dict()}
            raise StartRefused(f"nothing was trained: {proof.verdict}", "proof", lines, object_)
        situation.say(f"proof: {proof.verdict}")
        return RecordedProof(proof.summary, json.dumps(proof.to_dict(), indent=1) + "\n", "\n".join(lines) + "\n")

    return prove_now


def replay(
    run: str,
    step: int | None = None,
    to: int | None = None,
    *,
    check: bool = False,
    worst: int | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    warn: Warn | None = None,
    on_progress: Progress = ignore_progress,
    on_cost: OnCost = ignore,
) -> ReplayReport:
    """Do steps `step` to `to` (from 1; None: one step) of a run again, without writing anything into the run.

    With `check`, loss, gradient norm, learning rate and samples are compared with journal and receipts (`holds`). With
    `worst` instead of a step, that many steps which stand out are found, replayed and explained. With `overrides`
    (`training.clip.max_norm=0.5`) the step is done once more under another spec. `anyway`: go on with other code, data
    or device than the run's. `on_cost` receives what it will take, and whether that is more than the training took,
    before a step is done, and may raise. The steps run in processes of their own: a program that calls this keeps its
    start behind `if __name__ == "__main__"`. Raises UserError where the run has no such step, a checkpoint of a fork's
    parent is gone, or code, data or device are not the run's, and RunFailed where a step does not fit into memory.
    """
    opened = _open(run, warn, on_progress)
    check_options(step, to, {"--check": check, "--worst": worst, "--set": overrides})
    source = open_source(opened, anyway, on_cost)
    if step is None:  # `worst` is given
        return replay_worst(source, worst or 0)
    last = step if to is None else to
    if check:
        return report_check(source, step, last)
    if overrides:
        return replay_changed(source, step, overrides)
    return report_steps(source, replay_executions(source, source.targets(step, last), range(step, last + 1)))


def verify(
    run: str,
    *,
    steps: int = 3,
    seed: int = 0,
    seconds: float = 300.0,
    data_limit: int = 16 * GIB,
    anyway: bool = False,
    warn: Warn | None = None,
    on_progress: Progress = ignore_progress,
    on_cost: OnCost = ignore,
) -> RunVerification:
    """Check receipts, checkpoints, journal, spec and data of a run, and do `steps` of its steps, chosen by `seed`,
    again, within about so many `seconds`.

    `on_cost` is as in `replay`. Stores of data up to `data_limit` bytes are hashed whole. Nothing is written into the
    run. The steps run in processes of their own: a program that calls this keeps its start behind `if __name__ ==
    "__main__"`. Raises UserError for an unknown run, a sweep, an option out of its range, or checkpoints that cannot be
    reached.
    """
    given = {"steps": steps, "seed": seed, "seconds": seconds, "data_limit": data_limit}
    for name, value in given.items():
        least = int(name == "seconds")
        if not value >= least:
            raise UserError(f"{name}={value} is below {least}; give {least} or more.")
    opened = _open(run, warn, on_progress)
    return verify_run(
        opened, steps=steps, seed=seed, seconds=seconds, data_limit=data_limit, anyway=anyway, on_cost=on_cost
    )


def _open(run: str, warn: Warn | None, on_progress: Progress) -> OpenedRun:
    """Open a training run of this home. Raises UserError for an unknown one, and for a sweep."""
    home = Home.from_environment()
    return open_found(find_training_run(home, run), home, warn or _log.warning, on_progress)
