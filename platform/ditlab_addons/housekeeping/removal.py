"""Deletion of runs and stores: never of one that is in use, or that another needs."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ditlab.api.imports import ListedStore, list_stores
from ditlab.data.named_stores import pointed_folder
from ditlab.errors import RunFailed, UserError, disk_remedy, first_line
from ditlab.home import Home, RunFolder
from ditlab.runs.description import flat_spec, storage_of
from ditlab.runs.launch import recorded_checkpoints
from ditlab.runs.lineage import forks_by_parent
from ditlab.runs.locks import is_locked, lock_run
from ditlab.spec.start import parse_start
from ditlab.storage.files import folder_size, sync_folder, writing_into
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.sweeps.folder import SweepFolder
from ditlab.tracking.access import access_fault, redact, resolve_tracking_uri
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.mlflow_runs import find_mlflow_run, search_models
from ditlab.tracking.records import RunList, RunRecord, find_run, scan_runs
from ditlab.tracking.upload import num_unsent
from ditlab_addons.housekeeping.sync import SPECS

_REMOVED = ".removed"
"""Folder beside the runs, to which a run is renamed before its files are deleted."""


@dataclass(frozen=True)
class RunToDelete:
    """A run that is to be deleted."""

    folder: RunFolder
    name: str
    status: str
    size: int
    """Bytes of its folder."""
    unsent: int
    """Records that MLflow has not received, and never will."""
    address: str
    """Resolved address of MLflow, which keeps what it has received."""
    checkpoints: str
    """Place of checkpoints outside the run's folder, which stay; empty where there are none."""

    def to_dict(self) -> dict[str, Any]:
        """The run in JSON's types, for `--json`."""
        return {
            "run_id": self.folder.run_id,
            "name": self.name,
            "status": self.status,
            "bytes": self.size,
            "unsent": self.unsent,
            "tracking_uri": redact(self.address),
            "checkpoints": self.checkpoints or None,
        }


@dataclass(frozen=True)
class RemovalPlan:
    """Runs that may be deleted together; nothing is deleted yet."""

    home: Home
    runs: list[RunToDelete]

    @property
    def size(self) -> int:
        """Bytes of all folders."""
        return sum(run.size for run in self.runs)

    def remove(self, *, mlflow: bool = False) -> None:
        """Delete the runs, with `mlflow` first in MLflow. Each goes in one step: after a crash it
        is whole or gone. Raises UserError for a run that has come into use, and RunFailed where the
        disk refuses."""
        known = scan_runs(self.home)
        check_unneeded(self.home, known, [run.folder.run_id for run in self.runs])
        if mlflow:
            for run in self.runs:
                delete_mlflow_run(run.folder.run_id, run.address, self.home)
        records = {record.run_id: record for record in known.records}
        trash = self.home.runs / _REMOVED
        try:
            trash.mkdir(exist_ok=True)
            for run in self.runs:
                run_id = run.folder.run_id
                renamed = trash / f"{run_id}-{secrets.token_hex(4)}"
                with lock_run(run.folder):  # refused where it has come into use
                    run.folder.path.rename(renamed)
                    sync_folder(run.folder.path.parent)
                shutil.rmtree(renamed)
                if run_id in records:
                    _release_start(self.home, records[run_id])
            shutil.rmtree(trash)  # also what a killed process has left there
        except OSError as error:
            place = error.filename or trash
            remedy = disk_remedy(error, "change its permissions")
            raise RunFailed(
                f"{place} cannot be deleted ({error.strerror}); {remedy}, and try again."
            ) from error


def plan_removal(names: Sequence[str]) -> RemovalPlan:
    """Find the runs that `names` name, a sweep with its trials, and check that each may be deleted.

    A name must be one run's alone. Raises UserError for a run that is unknown, that a process
    trains, or that a sweep, another run or a store needs.
    """
    home = Home.from_environment()
    known = scan_runs(home)
    chosen = list(
        dict.fromkeys(run_id for name in names for run_id in _with_trials(home, known, name))
    )
    for run_id in chosen:
        folder = home.run(run_id)
        if folder.path.is_symlink():
            raise UserError(
                f"run {run_id} is a link to {folder.path.readlink()}; delete the link itself."
            )
        if is_locked(folder):
            raise UserError(
                f"run {run_id} is being trained by another process; stop that one first."
            )
    check_unneeded(home, known, chosen)
    records = {record.run_id: record for record in known.records}
    return RemovalPlan(
        home, [_run_to_delete(home, run_id, records.get(run_id)) for run_id in chosen]
    )


def _run_to_delete(home: Home, run_id: str, record: RunRecord | None) -> RunToDelete:
    """Describe a run; `record` is None where it cannot be read."""
    folder = home.run(run_id)
    name = "?"
    status = "unreadable"
    uri = None
    if record:
        name = record.name
        status = record.status
        uri = record.tracking_uri or None
    address = resolve_tracking_uri(uri, home)
    unsent = 0
    with suppress(OSError):
        unsent = num_unsent(folder, address, home)
    storage = storage_of(flat_spec(folder.spec, []))
    checkpoints = f"{storage.rstrip('/')}/{run_id}" if storage else ""
    return RunToDelete(folder, name, status, folder_size(folder.path), unsent, address, checkpoints)


def remove_runs(*names: str, mlflow: bool = False) -> list[str]:
    """Delete runs by id or name, a sweep with its trials; returns the ids. With `mlflow`, MLflow's
    runs as well. Asks nothing: see `plan_removal`. Raises UserError for a run that trains, or that
    another needs."""
    plan = plan_removal(names)
    plan.remove(mlflow=mlflow)
    return [run.folder.run_id for run in plan.runs]


def _with_trials(home: Home, known: RunList, name: str) -> list[str]:
    """Id of the run that a name names, and those of its trials. Raises UserError for a name of
    several runs.
    """
    if name in known.unreadable:
        return [name]
    named = [record.run_id for record in known.records if record.name == name]
    if len(named) > 1:
        raise UserError(
            f"{len(named)} runs are named '{name}' ({', '.join(named[:8])}); name one by its id."
        )
    record = find_run(home, name).record
    if not record.trials:
        return [record.run_id]
    trials = {each.run_id for each in known.records if each.parent == record.run_id}
    trials |= {trial.run_id for trial in SweepFolder(home.run(record.run_id)).planned_trials()}
    return [record.run_id, *sorted(run_id for run_id in trials if home.run(run_id).path.is_dir())]


def check_unneeded(home: Home, known: RunList, leaving: Sequence[str]) -> None:
    """Raise UserError for the first run that must stay, of those that are to be `leaving` together;
    `known` are all.
    """
    staying = [record for record in known.records if record.run_id not in leaving]
    users = {record.run_id: f"{record.run_id} ({record.name})" for record in staying}
    users |= {run_id: run_id for run_id in known.unreadable if run_id not in leaving}
    groups = {record.run_id for record in staying if record.is_group}
    trial_of = _trial_numbers(home, known, staying)
    forks = forks_by_parent(staying)
    texts = _naming_texts(home, users)
    for run_id in leaving:
        sweep_id, number = trial_of.get(run_id, ("", -1))
        if sweep_id in groups:
            raise UserError(
                f"run {run_id} is run {number} of the group of seeds {users[sweep_id]}, whose "
                "means need it; delete the group, and its runs go with it."
            )
        if sweep_id in users:
            raise UserError(
                f"run {run_id} is trial {number} of sweep {users[sweep_id]}, whose ranking, "
                "report and best.yaml need it; delete the sweep, and its trials go with it."
            )
        below = forks.get(run_id)
        if below:
            listed = ", ".join(
                f"{each.run_id} ({each.name}, from step {parse_start(each.start).step})"
                for each in below
            )
            raise UserError(
                f"run {run_id} is the parent of {listed}, and forks need their parent's "
                "checkpoints; delete those first."
            )
        needed_by = _user_of(run_id, texts)
        if needed_by:
            raise UserError(
                f"run {run_id} is needed by {needed_by}, which names it or a file in its "
                "folder; delete that first."
            )


def _trial_numbers(
    home: Home, known: RunList, staying: Sequence[RunRecord]
) -> dict[str, tuple[str, int]]:
    """Sweep and number of each trial by id, of sweeps that stay also of trials that have not
    begun.
    """
    found = {
        record.run_id: (record.parent, record.trial) for record in known.records if record.parent
    }
    for record in staying:
        if record.trials and not record.is_group:
            trials = SweepFolder(home.run(record.run_id)).planned_trials()
            found |= {trial.run_id: (record.run_id, trial.number) for trial in trials}
    return found


def _naming_texts(home: Home, users: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Whose and which text of all that may name a run: specs of the runs that stay, and records of
    stores.
    """
    places = []
    for run_id, user in users.items():
        places += [(f"run {user}", home.runs / run_id / name) for name in SPECS]
    places += [(f"store {path.parent.name}", path) for path in sorted(home.stores.glob("*/*.json"))]
    texts = []
    for user, path in places:
        with suppress(OSError):
            texts.append((user, read_plain(path, 16 * MIB)))
    return texts


def _user_of(run_id: str, texts: Sequence[tuple[str, bytes]]) -> str | None:
    """The first whose text names a run."""
    # A line of YAML or JSON that has the run's id as a word, such as a part of a path; a name is no
    # use.
    named = re.compile(rf"^(?!\W*(?:name|run_id)\W).*(?<!\w){run_id}(?!\w)".encode(), re.MULTILINE)
    return next((user for user, text in texts if named.search(text)), None)


def _release_start(home: Home, fork: RunRecord) -> None:
    """Take back the hold of a fork, and of its sweep, on its parent's checkpoint; for forks that
    were deleted.
    """
    if fork.start:
        # a parent that is gone, or cannot be reached: the mark costs a checkpoint's room
        with suppress(UserError):
            named = parse_start(fork.start)
            store = recorded_checkpoints(home.run(named.run))
            for run_id in filter(None, (fork.run_id, fork.parent)):
                store.release(named.step or 0, run_id)


def delete_mlflow_run(run_id: str, address: str, home: Home) -> bool:
    """Mark a run as deleted until `mlflow gc`; False where MLflow has none. Raises UserError where
    the address does not answer, or refuses."""
    fault = access_fault(address, f"start that server, or delete run {run_id} without --mlflow")
    if fault:
        if address.startswith("sqlite:"):
            return False
        raise UserError(fault)
    try:
        client = connect(address, home)
        mlflow_run_id = find_mlflow_run(client, run_id)
        if mlflow_run_id is None:
            return False
        for model in search_models(
            client, str(client.get_run(mlflow_run_id).info.experiment_id), mlflow_run_id
        ):
            client.delete_logged_model(model.model_id)
        client.delete_run(mlflow_run_id)
    except Exception as error:
        # MLflow's client and its database drivers raise errors of a dozen kinds.
        raise UserError(
            f"tracking.uri={redact(address)} does not delete run {run_id} "
            f"({first_line(error)}); delete it in MLflow's UI, and the run without --mlflow."
        ) from error
    return True


def plan_store_removal(names: Sequence[str], needed: bool = False) -> list[ListedStore]:
    """Find the stores of DITLAB_HOME that names name. Raises UserError for none, and for one that
    runs need.
    """
    home = Home.from_environment()
    chosen = {}
    known = {each.path: each for each in list_stores()}
    for name in names:
        store = known.get(pointed_folder(home.stores / name))
        if store is None:
            raise UserError(
                f"STORE={name} is no store of {home.stores}; `ditlab data list` lists them."
            )
        if store.runs and not needed:
            raise UserError(
                f"{store.folder} is needed by {', '.join(store.runs)}, trained on it; delete "
                "those first, or give --needed."
            )
        chosen[store.path] = store
    return [*chosen.values()]


def remove_store(store: ListedStore) -> None:
    """Delete a store, and the name that means it first. Raises UserError where the disk refuses."""
    with writing_into(store.path.parent):
        if store.name and store.name != store.folder:
            (store.path.parent / store.name).unlink(missing_ok=True)
        shutil.rmtree(store.path)
