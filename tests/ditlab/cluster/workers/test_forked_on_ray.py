"""A fork on Ray whose worker is killed before its first checkpoint."""

import pytest

from ditlab.home import Home
from ditlab.tracking.records import read_record
from support.clusters.faults import kill_worker, once_at, tracked
from support.clusters.unbroken import STEPS, broken, checkpoint_of
from support.trainings.workers import same_state


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fork_whose_worker_is_killed_begins_again_from_its_parents_checkpoint(go, home):
    """It ends in the bits of the parent."""
    parent = go(broken("parent", checkpoint={"every": 7, "keep": 99}))
    start = {"run": parent.run_id, "step": 7}
    with once_at(home, "killed-fork", 30, kill_worker(1)):
        fork = go(broken("killed-fork", start=start, checkpoint={"every": None}))
    assert (fork.status, fork.step) == ("finished", STEPS)
    assert same_state(checkpoint_of(home, fork.run_id), checkpoint_of(home, parent.run_id))
    points, tags, status = tracked(home, "killed-fork")
    assert [step for step, _ in points["train/loss"]] == list(range(8, STEPS + 1))
    begun = f"{parent.run_id}@7"
    assert (status, tags["ditlab.failure"], tags["ditlab.forked_from"]) == (
        "FINISHED",
        "lost_worker",
        begun,
    )
    assert read_record(Home(home).run(fork.run_id)).start == begun
