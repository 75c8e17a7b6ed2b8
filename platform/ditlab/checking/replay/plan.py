"""Plan of a replay: from which checkpoint, through which segments of equal settings. Pure decisions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ditlab.checking.replay.course.course import Course, Execution
from ditlab.checking.replay.segment import Segment


@dataclass(frozen=True)
class ReplayPlan:
    """One way through a run's steps, and those of them that are asked for."""

    origin: int
    """Step of the state to begin from."""
    is_checkpoint: bool
    """True for one of the run's own checkpoints; False for what the run itself began from."""
    segments: tuple[Segment, ...]
    way: tuple[Execution, ...]
    """Executions that are done again, from the origin on."""
    executions: tuple[Execution, ...]
    """Executions of the way that are replayed for their own sake, in the order of their steps."""
    variant: Segment | None = None
    """The last step once more under another spec, from the same state."""

    @property
    def num_steps(self) -> int:
        """Steps that are trained."""
        return self.segments[-1].last - self.origin

    def with_variant(self, spec: Mapping[str, Any], workers: int) -> "ReplayPlan":
        """Return the plan with its last step done once more under another spec, from the same state."""
        *before, final = self.segments
        last = final.last
        if final.first < last:
            earlier = tuple(step for step in final.left_out if step < last)
            before.append(replace(final, last=last - 1, left_out=earlier))
        own = replace(final, first=last, left_out=tuple(step for step in final.left_out if step == last))
        variant = replace(own, spec=spec, workers=workers, left_out=(), is_changed=True)
        return replace(self, segments=(*before, own), variant=variant)


SpecOf = Callable[[Execution], Mapping[str, Any]]
"""Returns the resolved spec by which a step was done."""


def plan_replay(
    course: Course, targets: Sequence[Execution], checkpoints: Collection[int], spec_of: SpecOf
) -> list[ReplayPlan]:
    """Plan the replay of some executions, those that lie on one way together.

    `checkpoints` are the steps of the run's whole ones. Each way that a kill or a roll-back cut off
    takes a pass of its own, and so does a target that a later checkpoint brings nearer.
    """
    plans, left = [], sorted(targets, key=lambda each: each.step)
    while left:
        way = course.lineage(left[-1])
        known = {id(each) for each in way}
        steps = {each.step for each in way if not each.is_recorded}
        taken = [each for each in left if id(each) in known or (not each.is_recorded and each.step in steps)]
        left = [each for each in left if not any(each is other for other in taken)]
        usable = [step for step in checkpoints if course.first < step < way[-1].step and course.is_final_at(way, step)]
        plans += [_plan(course, way, part, usable, spec_of) for part in _apart(taken, usable)]
    return plans


def _apart(targets: Sequence[Execution], usable: Collection[int]) -> list[list[Execution]]:
    """Cut targets on one way, by step, where a checkpoint behind one saves steps on the way to the next."""
    parts: list[list[Execution]] = []
    for target in targets:
        if parts and not any(parts[-1][-1].step < step < target.step for step in usable):
            parts[-1].append(target)
        else:
            parts.append([target])
    return parts


def _plan(
    course: Course,
    way: Sequence[Execution],
    targets: Sequence[Execution],
    usable: Collection[int],
    spec_of: SpecOf,
) -> ReplayPlan:
    first, last = targets[0].step, targets[-1].step
    origin = max((step for step in usable if step < first), default=course.first)
    segments: list[Segment] = []
    done = tuple(way[origin - course.first : last - course.first])
    for execution in done:
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
    return ReplayPlan(origin, origin > course.first, tuple(segments), done, tuple(targets))


def with_workers(spec: Mapping[str, Any], workers: int) -> Mapping[str, Any]:
    """Return a spec for so many workers; that of an elastic run, whose range decides the micro-batches, as it is."""
    resources = spec["resources"]
    if not isinstance(resources["workers"], int) or resources["workers"] == workers:
        return spec
    return {**spec, "resources": {**resources, "workers": workers}}
