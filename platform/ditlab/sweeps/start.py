"""Start of a sweep: the folder of a new one, or the state of one that is resumed."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.reports.sweep_records import Trial
from ditlab.runs.forks import hold_start
from ditlab.runs.lifecycle import home_write_error
from ditlab.runs.locks import lock_run
from ditlab.spec.files import encode_recorded
from ditlab.spec.sweep import Sweep
from ditlab.spec.sweep_space import check_sweep, differences, values_key, written
from ditlab.storage.files import write_durably
from ditlab.sweeps.folder import SweepFolder, find_record, free_numbers, seed_of
from ditlab.sweeps.prepare import PreparedSweep, portable_sweep
from ditlab.tracking.history import final_values, metric_history
from ditlab.tracking.records import create_run, find_run, list_runs


@dataclass(frozen=True)
class StartedSweep:
    """A sweep with its folder and ledger, whose trials can run."""

    prepared: PreparedSweep
    folder: SweepFolder
    past: list[Trial]
    """Trials of the ledger, by number, as they were at the start of this session."""
    notes: list[str]
    """Lines about the start, and about damaged files."""

    @property
    def sweep(self) -> Sweep:
        """The sweep's spec."""
        return self.prepared.sweep

    @property
    def home(self) -> Home:
        """DITLAB_HOME."""
        return self.prepared.home

    @property
    def num_trials(self) -> int:
        """Number of trials of the whole sweep; a chooser may have added more to the ledger."""
        if self.prepared.chooser:
            return self.prepared.num_trials
        return max(self.prepared.num_trials, len(self.past))

    @property
    def num_remaining(self) -> int:
        """Number of trials that are still to start or to resume."""
        return self.num_trials - sum(past.has_ended for past in self.past)


@dataclass(frozen=True)
class StoredSweep:
    """An earlier sweep that is to be resumed."""

    folder: SweepFolder
    sweep: Sweep
    """Its spec, with the changes that a resumed sweep may have."""
    stored: Sweep
    """Its spec as it was last stored."""
    note: str
    """Message where several sweeps have its name; else empty."""


def create_sweep(prepared: PreparedSweep) -> StartedSweep:
    """Make the sweep's folder, with a ledger of all trials that can be enumerated.

    Raises UserError where the disk refuses, or a checkpoint that trials go on from is gone; nothing
    is left then.
    """
    sweep = prepared.sweep
    home = prepared.home
    home.ensure()
    run = None
    try:
        run = create_run(
            home,
            sweep.name,
            family=prepared.base.model.family,
            spec_hash="",
            total_steps=prepared.num_trials,
            trials=prepared.num_trials,
            tracking_uri=prepared.tracking_uri if prepared.base.tracking.uri else "",
        )
        folder = SweepFolder(run)
        past = _store(prepared, folder, [])
        # Keep the checkpoints that trials go on from, until each holds its own. Raises UserError
        # where one is gone.
        experiments = [prepared.base, *(trial.experiment for trial in prepared.trials)]
        starts = {each.start.point: each.start for each in experiments if each.start}
        for start in starts.values():
            hold_start(start, home, folder.sweep_id)
    except (OSError, UserError) as error:
        if run is not None:
            shutil.rmtree(run.path, ignore_errors=True)
        if isinstance(error, UserError):
            raise
        raise home_write_error(home, error) from error
    at_once = prepared.concurrency.num_trials
    note = f"sweep {folder.sweep_id}: {prepared.num_trials} trials, {at_once} at once"
    return StartedSweep(prepared, folder, past, [note])


def resume_sweep(prepared: PreparedSweep, folder: SweepFolder) -> StartedSweep:
    """Read the state of an earlier sweep, and store its spec and trials that are new.

    Raises UserError where another process runs it, or the disk refuses.
    """
    with lock_run(folder.folder):
        damage = folder.damage(prepared.home)
        try:
            past = _store(prepared, folder, read_past_trials(prepared, folder))
        except OSError as error:
            raise home_write_error(prepared.home, error) from error
    num_ended = sum(one.has_ended for one in past)
    note = (
        f"sweep {folder.sweep_id}: going on, {num_ended} of {prepared.num_trials} trials are done"
    )
    return StartedSweep(prepared, folder, past, [*damage, note])


def find_stored_sweep(home: Home, sweep_id: str, given: Sweep | None) -> StoredSweep:
    """Find an earlier sweep by its id or name, and apply the changes that `given` makes to it.

    Raises UserError for a change of what its trials are.
    """
    found = find_run(home, sweep_id)
    folder = SweepFolder(found.folder)
    stored = folder.load_sweep()
    if given is None:
        return StoredSweep(folder, stored, stored, found.note)
    check_sweep(given, sweep_id)
    given, _ = portable_sweep(given, home, stored)
    changed = differences(stored, given)
    if changed:
        raise UserError(
            f"sweep {folder.sweep_id} was started as another one: {'; '.join(changed)}. Resume "
            "it with its own file, or without one, or start a new sweep without --resume."
        )
    return StoredSweep(folder, given, stored, found.note)


def find_unfinished_sweep(home: Home, given: Sweep) -> tuple[str | None, str]:
    """Return the id of the newest unfinished sweep with this name and equal content, None where
    there is none, and a line on it."""
    for record in list_runs(home):
        run_id = record.run_id
        is_sweep = record.trials and not record.is_group
        if not is_sweep or record.name != given.name or record.status == "finished":
            continue
        with suppress(UserError):  # of another kind, damaged, or of an add-on that is not here
            stored = SweepFolder(home.run(run_id)).load_sweep()
            if not differences(stored, portable_sweep(given, home, stored)[0]):
                return run_id, f"--resume auto: sweep {run_id} ({given.name}), {record.status}"
    note = f"--resume auto: no unfinished sweep {given.name} has this content, so a new one begins"
    return None, note


def read_past_trials(prepared: PreparedSweep, folder: SweepFolder) -> list[Trial]:
    """Read the state in which an earlier session left each trial of the ledger; writes nothing.

    Raises UserError where sweep.yaml does not make the ledger's trials.
    """
    planned = folder.planned_trials()
    known = {trial.configuration: trial.values for trial in prepared.trials}
    # An earlier version planned repeats too: the number of a configuration without them.
    places: dict[str, int] = {}
    for trial in sorted(planned, key=lambda trial: trial.configuration):
        places.setdefault(values_key(trial.values), len(places))
    others = [
        trial
        for trial in planned
        if trial.values != known.get(trial.configuration)
        and trial.values != known.get(places[values_key(trial.values)])
    ]
    if known and others:
        raise UserError(
            f"sweep {folder.sweep_id}: trial {others[0].number} has "
            f"{written(others[0].values)} in {folder.ledger}, which its sweep.yaml does not "
            f"make ({len(others)} trials differ); restore sweep.yaml, or start a new sweep "
            "without --resume."
        )
    found = []
    for trial in planned:
        record = find_record(prepared.home, trial)
        if record:
            metrics = final_values(metric_history(prepared.home.run(trial.run_id)))
            trial = replace(trial, status=record.status, step=record.step, metrics=metrics)
        found.append(trial)
    return found


def _store(prepared: PreparedSweep, folder: SweepFolder, past: list[Trial]) -> list[Trial]:
    """Write the spec, and add the trials that the ledger lacks, as far as their values are known;
    return the trials of the whole ledger. Those of a configuration that a search proposed are
    known, too, where the sweep has more seeds now."""
    write_durably(folder.spec, encode_recorded(prepared.sweep.to_dict()))
    configurations = {trial.configuration: trial.values for trial in prepared.trials}
    configurations |= {trial.configuration: dict(trial.values) for trial in past}
    there = {(trial.configuration, seed_of(prepared.sweep, trial)) for trial in past}
    numbers = free_numbers(past)
    places = []
    for seed, configuration in product(prepared.sweep.first_seeds, sorted(configurations)):
        if (configuration, seed) not in there:
            values = configurations[configuration]
            places.append((next(numbers), values, configuration, seed))
    trials = list(past)
    if places:
        trials += folder.plan_trials(prepared.home, places)
    return sorted(trials, key=lambda trial: trial.number)
