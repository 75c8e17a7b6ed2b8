"""`resources.network` where it counts: in the workers, before they meet; and a worker that never
comes.
"""

import json

import pytest

from ditlab.errors import UserError
from support.clusters.faults import tracked
from support.clusters.unbroken import breaking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("breaking_family"),
    pytest.mark.timeout(600),
]


def experiment(name, timeout, **fault):
    network = {"timeout": timeout}
    resources = {"workers": 2, "max_failures": 1, "hang_timeout": 10, "network": network}
    return breaking(name, resources, fault)


def told(error):
    return json.loads(str(error).partition("network ")[2])


def test_every_group_has_the_timeout(go):
    with pytest.raises(UserError) as said:
        go(experiment("told", 40, kind="tell", step=2))
    network = told(said.value)
    # DeepSpeed's and our own beside Ray Train's
    assert network["groups"] > 1 and network["limits"] == [40.0]


def test_a_worker_that_never_comes_is_given_up_after_the_timeout(go, home, capfd):
    """Building is not watched: it may take any time. The others' collective gives up after 12 s,
    not after 1800.
    """
    result = go(experiment("away", 12, kind="away"))
    assert (result.status, result.step) == ("finished", 6)
    points, tags, status = tracked(home, "away")
    assert [step for step, _ in points["train/loss"]] == list(range(1, 7))
    assert (status, tags["ditlab.failure"]) == ("FINISHED", "lost_worker")
    assert "lost worker: a worker lost touch with the others" in capfd.readouterr().err
