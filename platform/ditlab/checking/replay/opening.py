"""A run opened for replay: its step history, checkpoints and data, and what of code, data and device is other here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.replay.history import (
    AttemptSpecs,
    Execution,
    JournaledStep,
    MachineKind,
    RecordedRun,
    StepHistory,
    journaled_steps,
    machine_here,
    read_recorded,
)
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.errors import UserError
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import code_digest


@dataclass(frozen=True)
class ReplaySource:
    """A run, opened for replay."""

    run: OpenedRun
    recorded: RecordedRun
    checkpoints: CheckpointStore
    whole: list[int]
    """Steps of checkpoints with an undamaged manifest, without those that were found damaged since."""
    data: DataSplits
    num_gpus: int
    """GPUs that the steps are done on; 0: on the CPU."""
    here: MachineKind
    """Kind of this machine."""
    code: str
    """Hash of the code here."""
    anyway: bool = False
    """Go on with other code than that which did a step."""
    remarks: list[str] = field(default_factory=list)
    """Sentences on what is other here than the run's, with `anyway`."""

    @property
    def history(self) -> StepHistory:
        """Executions of the run's steps."""
        return self.recorded.history

    @cached_property
    def spec_of(self) -> AttemptSpecs:
        """Specs by which the run's steps were done, for the device of this replay."""
        current = self.run.experiment.to_dict()
        return AttemptSpecs(self.history, self.checkpoints, current, on_cpu=not self.use_gpu)

    @property
    def use_gpu(self) -> bool:
        """True if the steps are done on GPUs."""
        return self.num_gpus > 0

    @cached_property
    def journaled(self) -> Mapping[int, JournaledStep]:
        """Steps of the run's journal."""
        return journaled_steps(self.recorded.journal)

    def machine_differences(self, executions: Sequence[Execution]) -> list[str]:
        """Return in what this machine is of another kind than those that did some steps, a phrase each."""
        found: dict[str, None] = {}
        for attempt in sorted({execution.attempt for execution in executions}):
            machine = self.recorded.machines.get(attempt)
            phrases = machine.differences(self.here) if machine else ["the run's machine is not recorded"]
            found |= dict.fromkeys(phrases)
        return list(found)

    def check_steps(self, first: int, last: int) -> None:
        """Raise UserError for steps that the run has not done, and for those whose state nothing leads to."""
        own = self.history.first + 1
        about = f"run {self.run.folder.run_id} ({self.run.record.name})"
        if first > last:
            raise UserError(f"--step {first} is behind --to {last}; give --to a later step.")
        wrong = first if not own <= first <= self.history.last else last
        if not own <= wrong <= self.history.last:
            option = "--step" if wrong == first else "--to"
            if self.history.last < own:
                raise UserError(f"{option} {wrong}: {about} has done no step yet; wait for its first one.")
            raise UserError(
                f"{option} {wrong}: {about} has no such step; it has steps {own:,} to {self.history.last:,}."
            )


def open_source(run: OpenedRun, anyway: bool = False) -> ReplaySource:
    """Open a run for replay, reading alone.

    Raises UserError where the data are not here, and, without `anyway`, where code, data or device are other than the
    run's.
    """
    experiment, home = run.experiment, run.home
    data = open_data(experiment.data, home)
    recorded = read_recorded(run)
    remarks = [recorded.history.note] if recorded.history.note else []
    num_gpus = torch.cuda.device_count()
    wants_gpu = experiment.resources.gpus_per_worker > 0
    differences = []
    if recorded.data and recorded.data != data.fingerprint:
        differences.append(
            f"the data are other than the run's (fingerprint {data.fingerprint[:12]}, the run's: "
            f"{recorded.data[:12]}): the same rows hold other samples"
        )
    code = code_digest(tuple(plugin_packages(experiment.to_dict())))
    if recorded.codes and code not in recorded.codes.values():
        differences.append(other_code(code, list(recorded.codes.values())[-1]))
    if wants_gpu and not num_gpus:
        names = ", ".join(sorted({machine.device for machine in recorded.machines.values()})) or "one"
        differences.append(
            f"this machine has no GPU, and the run was trained on {names}: a CPU draws other times and noise, so that "
            "losses agree as those of other draws do"
        )
    if differences and not anyway:
        raise UserError(
            f"run {run.folder.run_id}: {'; '.join(differences)}. Bring back what the run had, or replay with --anyway."
        )
    remarks += [f"{difference[0].upper()}{difference[1:]}." for difference in differences]
    store, num_gpus = checkpoint_store(run.folder, experiment.checkpoint.storage), num_gpus if wants_gpu else 0
    here = machine_here(use_gpu=num_gpus > 0)
    return ReplaySource(run, recorded, store, _whole(store), data, num_gpus, here, code, anyway, remarks)


def other_code(here: str, theirs: str) -> str:
    """Return a clause on code that is other than the run's."""
    return (
        f"the code is other than the run's (hash {here[:12]}, the run's: {theirs[:12]}): what differs may be the "
        "code's doing"
    )


def _whole(store: CheckpointStore) -> list[int]:
    """Steps of checkpoints with an undamaged manifest, whose shards are there in their sizes."""
    found = []
    for step in store.steps():
        try:
            with store.open(step, verify=False) as reader:
                sizes = store.files.sizes(reader.location.rstrip("/").rpartition("/")[2])
                if all(sizes.get(name) == digest.size for name, digest in reader.manifest.shards.items()):
                    found.append(step)
        except DamagedCheckpoint:
            continue
    return found


def targets_of(source: ReplaySource, first: int, last: int) -> list[Execution]:
    """Return the last execution of each step of a range."""
    return [source.history.final(step) for step in range(first, last + 1)]
