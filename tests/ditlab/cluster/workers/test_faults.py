"""One worker of two breaks: each class of failure ends as promised, under its name."""

import pytest

from support.clusters.faults import tracked
from support.clusters.unbroken import breaking

pytestmark = pytest.mark.usefixtures("breaking_family")


def experiment(name, **fault):
    resources = {"workers": 2, "max_failures": 1}
    return breaking(name, resources, fault, training__steps=9)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_that_ends_in_one_worker_halves_the_micro_batch_of_all(go, home, where, capfd):
    go(experiment(f"whole-{where}"))
    whole = tracked(home, f"whole-{where}")[0]["train/loss"]
    result = go(experiment(f"oom-{where}", kind=where, step=5, above=8))
    assert (result.status, result.step) == ("finished", 9)
    points, tags, status = tracked(home, f"oom-{where}")
    assert [step for step, _ in points["train/loss"]] == list(range(1, 10))
    for (_, loss), (_, expected) in zip(points["train/loss"], whole, strict=True):
        assert loss == pytest.approx(expected, rel=1e-5)
    assert (status, tags["ditlab.failure"]) == ("FINISHED", "out_of_memory")
    said = capfd.readouterr().err
    assert "out of memory at step 5: trying again with emptied caches." in said
    assert (
        "out of memory at step 5: going on with micro-batches of 8, the batch stays the same."
        in said
    )
