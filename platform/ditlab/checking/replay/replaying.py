"""Replay of a run: it is opened, what of code, data and device is other here is said, and steps are done again."""

from collections.abc import Callable, Collection, Mapping, Sequence
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
from ditlab.checking.replay.segment import ReplayedStep, ReplayPlan, plan_replay, run_plan
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.splits import DataSplits, open_data
from ditlab.errors import UserError
from ditlab.runs.launch import checkpoint_store, start_point
from ditlab.spec.plugins import plugin_packages
from ditlab.training.receipts import code_digest

PlanChange = Callable[[ReplayPlan], ReplayPlan]


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

    def targets(self, first: int, last: int) -> list[Execution]:
        """The last execution of each step of a range. Raises UserError as `check_steps` does."""
        self.check_steps(first, last)
        return [self.history.final(step) for step in range(first, last + 1)]

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


@dataclass(frozen=True)
class ReplayedSteps:
    """Steps of a run that were done again."""

    run_id: str
    name: str
    last: int
    """Last step that the run has done."""
    steps: tuple[ReplayedStep, ...]
    """Replayed steps, ascending; two of one step where a kill or a roll-back cut one execution of it off."""
    way: tuple[Execution, ...]
    """Executions that were done again to come to these steps, themselves among them."""
    origins: tuple[str, ...]
    """From where each pass began, and how many steps it trained."""
    remarks: tuple[str, ...]
    """Sentences on what differs here from the run's, and on what the run does not record."""


def replay_executions(
    source: ReplaySource,
    targets: Sequence[Execution],
    shown: Collection[int] = (),
    change: PlanChange = lambda plan: plan,
) -> ReplayedSteps:
    """Do some executions of a run's steps again, by its training loop, without writing anything into the run.

    Each step is done with its own workers, microbatch splits and skipped steps as its receipts have them, from the
    newest whole checkpoint before it, or from what the run itself began from. `shown`: steps of which each sample's
    loss and each parameter's norms are measured. `change` alters each plan.

    Raises:
        UserError: a state is gone, or the steps were done by other code than here, or by more GPUs.
        RunFailed: a step does not fit into this machine's memory.
    """
    while True:
        plans = [change(plan) for plan in _plans(source, targets)]
        way = [execution for plan in plans for execution in plan.way]
        check_gpus(source, plans)
        check_code(source, way)
        try:
            return _replayed(source, plans, way, shown)
        except DamagedCheckpoint:
            there = source.checkpoints.steps()
            if all(plan.origin in there for plan in plans if plan.is_checkpoint):
                raise  # else a run in training has pruned it meanwhile


def _replayed(
    source: ReplaySource, plans: Sequence[ReplayPlan], way: Sequence[Execution], shown: Collection[int]
) -> ReplayedSteps:
    run, found, origins = source.run, [], []
    for plan in plans:
        origins.append(describe_origin(source, plan))
        run.progress(origins[-1], 0, None, "")
        found += run_plan(plan, run.folder.run_id, run.home, source.checkpoints, source.use_gpu, shown, run.progress)
    return ReplayedSteps(
        run.folder.run_id, run.record.name, source.history.last, tuple(sorted(found, key=lambda step: step.step)),
        tuple(way), tuple(origins), tuple(source.remarks),
    )  # fmt: skip


def _plans(source: ReplaySource, targets: Sequence[Execution]) -> list[ReplayPlan]:
    """Plan the replay from checkpoints that are whole, each hashed first; damaged ones are remarked on."""
    while True:
        plans = plan_replay(source.history, targets, source.whole, source.spec_of)
        for step in {plan.origin for plan in plans if plan.is_checkpoint}:
            try:
                source.checkpoints.open(step).close()
            except DamagedCheckpoint as error:
                source.remarks.append(f"{error} The replay begins before it.")
                source.whole.remove(step)
                break
        else:
            for plan in plans:
                check_origin(source, plan)
            return plans


def check_gpus(source: ReplaySource, plans: Sequence[ReplayPlan]) -> None:
    """Raise UserError for steps of more workers than this machine has GPUs for."""
    workers = max(segment.workers for plan in plans for segment in plan.segments)
    if source.use_gpu and workers > source.num_gpus:
        step = plans[-1].executions[-1].step
        raise UserError(
            f"step {step:,} of run {source.run.folder.run_id} takes {workers} workers with a GPU each, and this "
            f"machine has {source.num_gpus}; replay it on a machine with {workers} GPUs."
        )


def check_code(source: ReplaySource, way: Sequence[Execution]) -> None:
    """Raise UserError for steps that other code has done; remark on them with `anyway`."""
    codes = {execution.attempt: source.recorded.codes.get(execution.attempt) for execution in way}
    for attempt, code in sorted(codes.items()):
        if code and code != source.code and not any("code is other" in remark for remark in source.remarks):
            text = f"attempt {attempt}: {other_code(source.code, code)}"
            if not source.anyway:
                raise UserError(
                    f"run {source.run.folder.run_id}, {text}. Bring back what the run had, or replay with --anyway."
                )
            source.remarks.append(f"{text[0].upper()}{text[1:]}.")


def check_origin(source: ReplaySource, plan: ReplayPlan) -> None:
    """Raise UserError where the parent's checkpoint that a fork's replay begins from is gone."""
    run = source.run
    point = None if plan.is_checkpoint else start_point(run.experiment, run.home, run.folder.run_id)
    if point is None:
        return
    try:
        point.open(verify=False).close()
    except UserError as error:
        usable = next((step for step in source.whole if step < source.history.last), None)
        remedy = "bring it back"
        if usable is not None:
            remedy += f", or replay step {usable + 1:,} or a later one, from checkpoint {usable:,} of its own (1 step)"
        raise UserError(
            f"step {plan.executions[0].step:,} of run {run.folder.run_id} is replayed from its parent's checkpoint, "
            f"and that is gone: {str(error).rstrip('.')}; {remedy}."
        ) from None


def describe_origin(source: ReplaySource, plan: ReplayPlan) -> str:
    """Return from where a pass begins, and how many steps it trains."""
    num = f"{plan.num_steps:,} step{'s' if plan.num_steps > 1 else ''} to train"
    if plan.is_checkpoint:
        return f"from checkpoint {plan.origin:,}: {num}"
    start = source.run.experiment.start
    where = f"from checkpoint {start.step:,} of run {start.run}" if start else "from step 0"
    wanted = plan.executions[0].step
    if wanted == plan.origin + 1:
        return f"{where}: {num}"
    later = f" (the earliest is of step {min(source.whole):,})" if source.whole else ""
    return f"{where}, as no checkpoint before step {wanted:,} is left{later}: {num}"
