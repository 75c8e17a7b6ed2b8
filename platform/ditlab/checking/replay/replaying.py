"""Replay of a run's steps, from the plan to the findings."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ditlab.analysis.opened_run import OpenedRun
from ditlab.checking.replay.history import Execution
from ditlab.checking.replay.opening import ReplaySource, open_source, other_code, targets_of
from ditlab.checking.replay.segment import ReplayedStep, ReplayPlan, plan_replay, run_plan
from ditlab.checkpoints.manifest import DamagedCheckpoint
from ditlab.errors import UserError
from ditlab.runs.launch import start_point

PlanChange = Callable[[ReplayPlan], ReplayPlan]


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


def replay_steps(run: OpenedRun, first: int, last: int, *, shown: bool = True, anyway: bool = False) -> ReplayedSteps:
    """Do steps `first` to `last` (from 1) of a run again, by its training loop, without writing anything into the run.

    Each step is done with its own workers, microbatch splits and skipped steps as its receipts have them, from the
    newest whole checkpoint before `first`, or from what the run itself began from. `shown`: measure each sample's loss
    and each parameter's norms. `anyway`: go on with other code, data or device than the run's.

    Raises:
        UserError: steps that the run has not done, data that are gone, or other code, data or device than the run's.
        RunFailed: a step does not fit into this machine's memory.
    """
    source = open_source(run, anyway)
    source.check_steps(first, last)
    steps = range(first, last + 1) if shown else ()
    return replay_executions(source, targets_of(source, first, last), steps)


def replay_executions(
    source: ReplaySource,
    targets: Sequence[Execution],
    shown: Collection[int] = (),
    change: PlanChange = lambda plan: plan,
) -> ReplayedSteps:
    """Do some executions of a run's steps again; `change` alters each plan. Raises as `replay_steps` does."""
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
