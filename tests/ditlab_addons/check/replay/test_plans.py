"""Ways of a replay through a run's history: decided from receipts and journal alone."""

from typing import Any

import numpy as np
import pytest

from ditlab.receipts.records import RecordedAttempt
from ditlab.tracking.journal import JournalContent, JournalLine
from ditlab_addons.check.replay.history import Execution, StepHistory, journaled_steps, with_unwritten
from ditlab_addons.check.replay.norms import ParameterNorms
from ditlab_addons.check.replay.replaying import ReplayPlan, plan_replay
from ditlab_addons.check.replay.report import LossHistory, worst_steps
from ditlab_addons.check.replay.stepper import layers_of

SPEC: dict[str, Any] = {"resources": {"workers": 1}}
DEFAULT = Execution(0, workers=1)


def doing(step: int, attempt: int, workers: int = 1, **more: Any) -> Execution:
    return Execution(step, attempt, workers, **{"loss": step + attempt / 8, "norm": 1.0, **more})


def plans(history: StepHistory, targets: list[Execution], checkpoints: list[int]) -> list[ReplayPlan]:
    return plan_replay(history, targets, checkpoints, lambda execution: SPEC)


def ways(found: list[ReplayPlan]) -> list[tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]]:
    return [
        (
            plan.origin,
            [(segment.first, segment.last, segment.workers) for segment in plan.segments],
            [(execution.step, execution.attempt) for execution in plan.executions],
        )
        for plan in found
    ]


def killed_history() -> StepHistory:
    """1 worker to step 7, killed; 2 workers from checkpoint 4 to step 8, killed; 1 worker from checkpoint 8."""
    rows = [doing(step, 1) for step in range(1, 8)]
    rows += [doing(step, 2, 2) for step in range(5, 9)] + [doing(step, 3) for step in range(9, 13)]
    return StepHistory(rows, DEFAULT, 12)


def test_each_step_is_done_by_the_workers_that_did_it() -> None:
    history = killed_history()
    every = [history.final(step) for step in range(1, 13)]
    ((origin, segments, done),) = ways(plans(history, every, []))
    assert (origin, segments) == (0, [(1, 4, 1), (5, 8, 2), (9, 12, 1)])
    assert done == [(step, 1 + (step > 4) + (step > 8)) for step in range(1, 13)]
    assert ways(plans(history, [history.final(10)], [4, 8, 12])) == [(8, [(9, 10, 1)], [(10, 3)])]
    assert ways(plans(history, [history.final(8)], [4, 8, 12])) == [(4, [(5, 8, 2)], [(8, 2)])]


def test_a_way_that_a_kill_cut_off_takes_a_pass_of_its_own() -> None:
    history = killed_history()
    lost = history.all_of(7)[0]
    assert (lost.attempt, history.final(7).attempt) == (1, 2)
    found = ways(plans(history, [history.final(6), history.final(7), lost], [4, 8]))
    assert sorted(found) == [(4, [(5, 7, 1)], [(7, 1)]), (4, [(5, 7, 2)], [(6, 2), (7, 2)])]
    # the checkpoint of step 6 that a run has now is that of its second doing, which leads to no other
    assert ways(plans(history, [lost], [4, 6])) == [(4, [(5, 7, 1)], [(7, 1)])]
    assert ways(plans(history, [history.final(7)], [4, 6])) == [(6, [(7, 7, 2)], [(7, 2)])]


def test_targets_far_apart_begin_at_checkpoints_of_their_own() -> None:
    history = StepHistory([doing(step, 1) for step in range(1, 101)], DEFAULT, 100)
    found = ways(plans(history, [history.final(step) for step in (12, 14, 93)], [10, 50, 90]))
    assert found == [(10, [(11, 14, 1)], [(12, 1), (14, 1)]), (90, [(91, 93, 1)], [(93, 1)])]


def test_a_step_left_out_halvings_and_a_fork() -> None:
    rows = [doing(5, 1), doing(6, 1), doing(7, 2, microbatch_splits=1), doing(8, 2, microbatch_splits=1, skipped=True)]
    history = StepHistory(rows, DEFAULT, 8, first=4)
    (plan,) = plans(history, [history.final(8)], [])
    assert (plan.origin, plan.is_checkpoint, plan.segments[-1].last) == (4, False, 8)
    assert [(each.first, each.last, each.microbatch_splits, each.skipped) for each in plan.segments] == [
        (5, 6, 0, ()), (7, 8, 1, (8,)),
    ]  # fmt: skip
    changed = plan.with_variant({"resources": {"workers": 1}, "more": 1}, 1)
    assert [(each.first, each.last, each.is_changed) for each in changed.segments] == [
        (5, 6, False), (7, 7, False), (8, 8, False), (8, 8, True),
    ]  # fmt: skip


def test_an_elastic_range_decides_the_micro_batches_and_stays() -> None:
    spec = {"resources": {"workers": {"min": 1, "max": 2}}}
    history = killed_history()
    (plan,) = plan_replay(history, [history.final(6)], [], lambda execution: spec)
    assert [segment.spec for segment in plan.segments] == [spec, spec]
    (plan,) = plans(history, [history.final(6)], [])
    assert [segment.spec["resources"]["workers"] for segment in plan.segments] == [1, 2]


def attempt(number: int, step: int, workers: int) -> RecordedAttempt:
    return RecordedAttempt(number, step, workers, 0, [], "cpu", "", 1, {}, "", "", "", 1, "eager", "")


def journaled(losses: dict[int, float]) -> dict[int, Execution]:
    """Return the values that a journal logs of losses by step."""
    content = JournalContent()
    for step, loss in losses.items():
        values = {"train/loss": loss, "train/grad_norm": 1.0}
        content.add(JournalLine(0, 0, {"kind": "metrics", "time": step, "step": step, "values": values}, True))
    return journaled_steps(content)


def test_steps_that_the_journal_alone_has_belong_to_the_attempt_that_was_killed() -> None:
    rows = [doing(step, 1) for step in range(1, 5)] + [doing(step, 2, 2) for step in range(5, 9)]
    attempts = {1: attempt(1, 0, 1), 2: attempt(2, 4, 2)}
    logged = {step: step + 1 / 8 for step in range(1, 8)} | {8: 8 + 2 / 8, 9: 9.5}
    logged[5] = 5 + 2 / 8  # by chance the bits that two workers give
    found = with_unwritten(rows, attempts, journaled(logged))
    assert [(each.step, each.attempt, each.loss is None) for each in found] == [
        *((step, 1, False) for step in range(1, 5)), *((step, 1, True) for step in range(5, 8)),
        *((step, 2, False) for step in range(5, 9)), (9, 2, True),
    ]  # fmt: skip
    assert journaled(logged)[9].loss == 9.5
    assert with_unwritten(rows, attempts, journaled({step: step + 1 / 8 for step in range(1, 5)})) == rows


def test_the_worst_steps_stand_out_against_their_neighbours() -> None:
    losses, norms = np.linspace(4, 1, 100), np.ones(100)
    losses[60], norms[20], losses[80] = 5.0, 9.0, np.nan
    history = LossHistory(np.arange(1, 101), losses, norms)
    assert worst_steps(history, 3) == [81, 21, 61]


def test_layers_end_at_their_first_number() -> None:
    names = [
        "network.blocks.10.mlp.0.weight",
        "network.head.weight",
        "objective.modules_list.2.bias",
        "objective.head.w",
    ]
    found = layers_of(
        {name: ParameterNorms(3.0, 1.0, 2.0) for name in [*names, "network.blocks.9.a", "network.head.b"]}
    )
    assert [*found] == ["blocks.9", "blocks.10", "head", "objective.head", "objective.modules_list.2"]
    assert found["head"].gradient == pytest.approx(18**0.5) and found["head"].ratio == pytest.approx(0.5)
