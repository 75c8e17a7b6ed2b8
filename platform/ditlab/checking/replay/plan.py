"""Plan of a replay: from which checkpoint, through which segments of equal settings. Pure decisions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ditlab.checking.replay.course import Course, Execution
from ditlab.checking.replay.segment import Segment


@dataclass(frozen=True)
class ReplayPlan:
    """One way through a run's steps, and those of them that are asked for."""

    origin: int
    """Step of the state to begin from."""
    is_checkpoint: bool
    """True for one of the run's own checkpoints; False for what the run itself began from."""
    segments: tuple[Segment, ...]
    executions: tuple[Execution, ...]
    """Executions that are replayed for their own sake, in the order of their steps."""

    @property
    def num_steps(self) -> int:
        """Steps that are trained."""
        return self.segments[-1].last - self.origin


SpecOf = Callable[[Execution], Mapping[str, Any]]
"""Returns the resolved spec by which a step was done."""


def plan_replay(
    course: Course, targets: Sequence[Execution], checkpoints: Collection[int], spec_of: SpecOf
) -> list[ReplayPlan]:
    """Plan the replay of some executions, those that lie on one way together.

    `checkpoints` are the steps of the run's whole ones. Most targets lie in the history of the run's weights and take
    one pass; each way that a kill or a roll-back cut off takes one of its own.
    """
    plans, left = [], sorted(targets, key=lambda each: each.step)
    while left:
        way = course.lineage(left[-1])
        known = {id(each) for each in way}
        steps = {each.step for each in way if not each.is_recorded}
        taken = [each for each in left if id(each) in known or (not each.is_recorded and each.step in steps)]
        left = [each for each in left if not any(each is other for other in taken)]
        plans.append(_plan(course, way, taken, checkpoints, spec_of))
    return plans


def _plan(
    course: Course,
    way: Sequence[Execution],
    targets: Sequence[Execution],
    checkpoints: Collection[int],
    spec_of: SpecOf,
) -> ReplayPlan:
    first = targets[0].step
    usable = [step for step in checkpoints if course.first < step < first and course.is_final_at(way, step)]
    origin = max(usable, default=course.first)
    segments: list[Segment] = []
    for execution in way[origin - course.first :]:
        spec = with_workers(spec_of(execution), execution.workers)
        settings = (execution.workers, execution.threads, execution.halvings, spec)
        left_out = (execution.step,) if execution.left_out else ()
        before = segments[-1] if segments else None
        if before and (before.workers, before.threads, before.halvings, before.spec) == settings:
            segments[-1] = replace(before, last=execution.step, left_out=(*before.left_out, *left_out))
        else:
            segments.append(
                Segment(
                    execution.step, execution.step, execution.workers, execution.threads, spec, execution.halvings,
                    left_out,
                )
            )  # fmt: skip
    return ReplayPlan(origin, bool(usable), tuple(segments), tuple(targets))


def with_workers(spec: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
    """Return a spec for so many workers; that of an elastic run, whose range decides the micro-batches, as it is."""
    resources = spec["resources"]
    if not isinstance(resources["workers"], int) or resources["workers"] == workers:
        return spec
    return {**spec, "resources": {**resources, "workers": workers}}
