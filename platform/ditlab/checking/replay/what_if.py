"""A step once more under another spec, from the state that the run's own spec led to."""

from collections.abc import Mapping, Sequence
from typing import Any

from ditlab.checking.replay.opening import ReplaySource
from ditlab.checking.replay.plan import ReplayPlan
from ditlab.checking.replay.replaying import ReplayedSteps, replay_executions
from ditlab.checkpoints.start_point import order_changes
from ditlab.errors import UserError
from ditlab.runs.forks import shape_differences, tensor_shapes
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.loading import build_experiment
from ditlab.spec.reading.overrides import assign, parse_overrides

MOST_LISTED = 6
"""Tensors of other shapes that a message lists."""


def replay_changed(source: ReplaySource, step: int, overrides: Sequence[str]) -> ReplayedSteps:
    """Replay a step by the run's own spec and once more with overrides (`training.clip.max_norm=0.5`).

    Raises UserError for overrides that do not fit the run's state or change what the step is fed with.
    """
    source.check_steps(step, step)
    target = source.course.final(step)
    if target.left_out:
        raise UserError(f"--step {step}: the run has left this step's batch out, so that nothing follows from --set.")
    changed = changed_experiment(source, source.spec_of(target), overrides)
    spec = changed.to_dict()
    own_workers = source.spec_of(target)["resources"]["workers"]
    workers = changed.resources.max_workers if spec["resources"]["workers"] != own_workers else target.workers

    def change(plan: ReplayPlan) -> ReplayPlan:
        return plan.with_variant(spec, workers)

    return replay_executions(source, [target], (step,), change)


def changed_experiment(source: ReplaySource, spec: Mapping[str, Any], overrides: Sequence[str]) -> Experiment:
    """Return the experiment with overrides applied. Raises UserError where the run's state does not fit it."""
    name = f"run {source.run.folder.run_id}"
    own = class_for(spec).model_validate(dict(spec))
    changed = build_experiment(assign(dict(spec), parse_overrides(overrides), class_for), name)
    given = ", ".join(f"--set {text}" for text in overrides)
    if changed.model.family != own.model.family:
        raise UserError(
            f"{given}: the state of {name} is of model.family={own.model.family}; leave the family as it is."
        )
    if fed := order_changes(spec, changed):
        raise UserError(
            f"{given} changes which samples the step takes ({', '.join(fed)}), so that the two would not be compared; "
            "leave data, seed and batch.size as they are."
        )
    if changed.optimizer.kind != own.optimizer.kind:
        raise UserError(
            f"{given}: the state of {name} is that of optimizer.kind={own.optimizer.kind}; leave optimizer.kind as "
            "it is."
        )
    if others := shape_differences(changed, tensor_shapes(own)):
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        raise UserError(
            f"{given}: the state of {name} does not fit, in {len(others)} tensors: "
            f"{', '.join(others[:MOST_LISTED])}{more}; change what leaves their shapes alone."
        )
    return changed
