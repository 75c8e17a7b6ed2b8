"""Ways of a replay through a run's history: decided from receipts and journal alone."""

import pytest

from ditlab_addons.check.replay.history import Execution, StepHistory
from ditlab_addons.check.replay.replaying import plan_replay
from ditlab_addons.check.replay.stepper import ParameterNorms, layers_of

SPEC = {"resources": {"workers": 1}}
DEFAULT = Execution(0, workers=1)


def doing(step, attempt, workers=1, **more):
    return Execution(step, attempt, workers, **{"loss": step + attempt / 8, "norm": 1.0, **more})


def plan(history, first, last, checkpoints):
    return plan_replay(history, first, last, checkpoints, lambda execution: SPEC)


def way(found):
    """Return the origin, the segments (first, last, workers), and the executions (step,
    attempt).
    """
    return (
        found.origin,
        [(segment.first, segment.last, segment.workers) for segment in found.segments],
        [(execution.step, execution.attempt) for execution in found.way],
    )


def killed_history():
    """1 worker to step 7, killed; 2 workers from checkpoint 4 to step 8, killed; 1 worker from
    checkpoint 8.
    """
    rows = [doing(step, 1) for step in range(1, 8)]
    rows += [doing(step, 2, 2) for step in range(5, 9)] + [doing(step, 3) for step in range(9, 13)]
    return StepHistory(rows, DEFAULT, 12)


def test_each_step_is_done_by_the_workers_that_did_it():
    history = killed_history()
    origin, segments, done = way(plan(history, 1, 12, []))
    assert (origin, segments) == (0, [(1, 4, 1), (5, 8, 2), (9, 12, 1)])
    assert done == [(step, 1 + (step > 4) + (step > 8)) for step in range(1, 13)]
    assert way(plan(history, 10, 10, [4, 8, 12])) == (8, [(9, 10, 1)], [(9, 3), (10, 3)])
    assert way(plan(history, 8, 8, [4, 8, 12]))[:2] == (4, [(5, 8, 2)])
    assert way(plan(history, 7, 7, [4, 6])) == (6, [(7, 7, 2)], [(7, 2)])


def test_steps_that_a_kill_cut_off_are_those_that_led_to_the_last_one():
    rows = [doing(step, 1) for step in range(1, 8)] + [doing(step, 2, 2) for step in range(5, 7)]
    history = StepHistory(rows, DEFAULT, 7)
    assert way(plan(history, 6, 6, [4])) == (4, [(5, 6, 2)], [(5, 2), (6, 2)])
    assert way(plan(history, 6, 7, [4])) == (4, [(5, 7, 1)], [(5, 1), (6, 1), (7, 1)])
    # the checkpoint of step 6 that the run has now is that of its second doing, which does not lead
    # to step 7
    assert way(plan(history, 7, 7, [4, 6])) == (4, [(5, 7, 1)], [(5, 1), (6, 1), (7, 1)])


def test_a_step_left_out_halvings_and_a_fork():
    rows = [
        doing(5, 1),
        doing(6, 1),
        doing(7, 2, microbatch_splits=1),
        doing(8, 2, microbatch_splits=1, skipped=True),
    ]
    history = StepHistory(rows, DEFAULT, 8, first=4)
    found = plan(history, 8, 8, [])
    assert (found.origin, found.is_checkpoint, found.last, found.num_steps) == (4, False, 8, 4)
    assert [
        (each.first, each.last, each.microbatch_splits, each.skipped) for each in found.segments
    ] == [(5, 6, 0, ()), (7, 8, 1, (8,))]


def test_an_elastic_range_decides_the_micro_batches_and_stays():
    spec = {"resources": {"workers": {"min": 1, "max": 2}}}
    history = killed_history()
    found = plan_replay(history, 6, 6, [], lambda execution: spec)
    assert [segment.spec for segment in found.segments] == [spec, spec]
    found = plan(history, 6, 6, [])
    assert [segment.spec["resources"]["workers"] for segment in found.segments] == [1, 2]


def test_layers_end_at_their_first_number():
    names = [
        "network.blocks.10.mlp.0.weight",
        "network.head.weight",
        "objective.modules_list.2.bias",
        "objective.head.w",
    ]
    found = layers_of(
        {
            name: ParameterNorms(3.0, 1.0, 2.0)
            for name in [*names, "network.blocks.10.a", "network.head.b"]
        }
    )
    assert [*found] == ["blocks.10", "head", "objective.modules_list.2", "objective.head"]
    assert found["head"].gradient == pytest.approx(18**0.5)
    assert found["head"].ratio == pytest.approx(0.5)
