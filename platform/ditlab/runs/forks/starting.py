"""Start of a fork: the checkpoint that `--from` names, and its hold on it."""

from contextlib import suppress

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs.request import recorded_checkpoints
from ditlab.spec.composition.start import Start, StartState, parse_start
from ditlab.spec.experiment import Experiment
from ditlab.spec.recorded import load_recorded_experiment
from ditlab.tracking.records import FoundRun, find_training_run
from ditlab.tracking.run_record import RunRecord


def resolve_start(text: str, weights_only: bool, home: Home) -> Start:
    """Return the start that `--from RUN[@STEP]` names: by the run's id, and its newest checkpoint without a step.

    With `weights_only`, the averaged weights are taken where the run keeps an average. Raises UserError for a text that
    names no run or checkpoint.
    """
    named = parse_start(text)
    try:
        found = find_training_run(home, named.run)
        step = named.step if named.step is not None else _newest_step(found)
        return Start(run=found.folder.run_id, step=step, state=_weights(found) if weights_only else "all")
    except UserError as error:
        raise UserError(f"--from {text}: {error}") from None


def requested_start(text: str | None, weights_only: bool, resume: str | None, home: Home) -> Start | None:
    """Return the start that `--from` and `--weights-only` ask for beside `--resume`; None without `--from`.

    Raises UserError for options that exclude each other, and as `resolve_start` does.
    """
    if text is None:
        if weights_only:
            raise UserError("--weights-only says what --from takes over, and --from is not given; add --from RUN@STEP.")
        return None
    if resume not in (None, "auto"):
        raise UserError(
            f"--from {text} and --resume {resume} exclude each other: a fork goes on from its own checkpoints; leave "
            f"--from out, and give the spec.yaml in the folder of run {resume}."
        )
    if resume and parse_start(text).step is None:
        raise UserError(
            f"--from {text} with --resume auto would be another fork whenever that run saves; name the step, as in "
            f"--from {text}@400."
        )
    return resolve_start(text, weights_only, home)


def hold_start(experiment: Experiment, home: Home, run_id: str) -> None:
    """Keep the parent's checkpoint for a fork. Raises UserError where the checkpoint is gone, or cannot be marked."""
    if start := experiment.start:
        recorded_checkpoints(home.run(start.run)).hold(start.step, run_id)


def release_start(home: Home, fork: RunRecord) -> None:
    """Take back the hold of a fork, and of its sweep, on its parent's checkpoint; for forks that were deleted."""
    if fork.start:
        with suppress(UserError):  # a parent that is gone, or cannot be reached: the mark costs a checkpoint's room
            named = parse_start(fork.start)
            store = recorded_checkpoints(home.run(named.run))
            for run_id in filter(None, (fork.run_id, fork.parent)):
                store.release(named.step or 0, run_id)


def _newest_step(found: FoundRun) -> int:
    """Step of a run's newest committed checkpoint."""
    store = recorded_checkpoints(found.folder)
    steps = store.steps()
    if not steps:
        raise UserError(
            f"run {found.folder.run_id} ({found.record.status}) has no checkpoint at {store.location} yet; wait for "
            "its first one, or name another run."
        )
    return steps[-1]


def _weights(found: FoundRun) -> StartState:
    return "averaged" if load_recorded_experiment(found.folder.spec).training.ema else "trained"
