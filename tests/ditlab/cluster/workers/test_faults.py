"""One worker of two breaks: each class of failure ends as promised, under its name."""

import pytest

from ditlab.spec.experiment import class_for
from support.clusters.faults import tracked
from support.trainings.workers import tiny

pytestmark = pytest.mark.usefixtures("breaking_family")


def experiment(name, **fault):
    spec = tiny(
        name=name,
        resources={"workers": 2, "max_failures": 1},
        training__steps=9,
        engine__zero={"stage": 2},
    ).to_dict()
    spec["model"]["family"] = "breaking"
    spec["objective"]["fault"] = fault
    return class_for(spec).model_validate(spec)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_that_ends_in_one_worker_halves_the_micro_batch_of_all(go, home, where, capfd):
    whole = tracked_losses(go, home, experiment(f"whole-{where}"))
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


def tracked_losses(go, home, whole):
    go(whole)
    return tracked(home, whole.name)[0]["train/loss"]
