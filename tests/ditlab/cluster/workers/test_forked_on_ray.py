"""Forks on Ray: killed before their first checkpoint, on another number of workers and another ZeRO
stage.
"""

import pytest

from ditlab.home import Home
from ditlab.tracking.records import read_record
from support.clusters.faults import kill_worker, once_at, tracked
from support.clusters.unbroken import STEPS, broken, checkpoint_of
from support.trainings.workers import same_state


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fork_whose_worker_is_killed_begins_again_from_its_parents_checkpoint(go, home):
    """Two workers: the bits of the parent. One worker at stage 3: the same position and losses."""
    parent = go(broken("parent", checkpoint={"every": 7, "keep": 99}))
    start = {"run": parent.run_id, "step": 7}
    with once_at(home, "killed-fork", 30, kill_worker(1)):
        fork = go(broken("killed-fork", start=start, checkpoint={"every": None}))
    assert (fork.status, fork.step) == ("finished", STEPS)
    whole = checkpoint_of(home, parent.run_id)
    assert same_state(checkpoint_of(home, fork.run_id), whole)
    points, tags, status = tracked(home, "killed-fork")
    assert [step for step, _ in points["train/loss"]] == list(
        range(8, STEPS + 1)
    ) and status == "FINISHED"
    assert (tags["ditlab.failure"], tags["ditlab.forked_from"]) == (
        "lost_worker",
        f"{parent.run_id}@7",
    )
    assert read_record(Home(home).run(fork.run_id)).start == f"{parent.run_id}@7"

    alone = go(
        broken("alone", start=start, resources={"workers": 1}, engine={"zero": {"stage": 3}})
    )
    found = checkpoint_of(home, alone.run_id)
    assert (found.manifest.position, found.manifest.scalars) == (
        whole.manifest.position,
        whole.manifest.scalars,
    )
    # Losses, as an Adam step from a gradient near zero is a matter of the order of sums.
    first, second = (
        dict(tracked(home, "parent")[0]["train/loss"]),
        dict(tracked(home, "alone")[0]["train/loss"]),
    )
    assert second == pytest.approx({step: first[step] for step in range(8, STEPS + 1)}, rel=1e-5)
