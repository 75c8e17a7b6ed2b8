"""One worker of two breaks: each class of failure ends as promised, under its name."""

import math

import pytest

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.spec.experiment import class_for
from ditlab.tracking.records import list_runs
from support.clusters.faults import tracked, worker_processes
from support.trainings.workers import newest, tiny

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


def final(home, result):
    return newest(Home(home).run(result.run_id).checkpoints)


@pytest.mark.slow
def test_nan_in_one_workers_loss_is_left_out_by_all(go, home, capfd):
    result = go(experiment("nan", kind="nan", step=5))
    assert result.status == "finished"
    points, tags, status = tracked(home, "nan")
    assert [step for step, loss in points["train/loss"] if not math.isfinite(loss)] == [5]
    assert [step for step, _ in points["train/loss"]] == list(range(1, 10))
    assert (status, tags["ditlab.failure"], tags["ditlab.skipped_steps"]) == (
        "FINISHED",
        "non_finite",
        "1",
    )
    assert final(home, result).manifest.scalars["adam_step"] == 8
    assert "step 5 was skipped: its loss or gradient was NaN or infinite." in capfd.readouterr().err


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


@pytest.mark.slow  # the same without processes: test_failure_record.py
@pytest.mark.parametrize(
    ("kind", "error", "code", "words"),
    [
        ("bug", RunFailed, "crash", r"worker 1 failed: ValueError: a bug, by a test"),
        ("input", UserError, "user_error", r"the input is wrong, by a test$"),
    ],
)
def test_what_would_happen_again_fails_once(go, home, kind, error, code, words):
    with pytest.raises(error, match=words):
        go(experiment(kind, kind=kind))
    _, tags, status = tracked(home, kind)
    assert (status, tags["ditlab.failure"], tags["ditlab.failures"]) == ("FAILED", code, "1")
    (record,) = [record for record in list_runs(Home(home)) if record.name == kind]
    assert record.status == "failed"
    assert worker_processes() == []
