"""Plan of a run, from its spec and the size of its data."""

from types import SimpleNamespace

import numpy as np
import pytest

from ditlab.data.splits import open_data
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.training.plan import RunPlan, plan_run
from support.trainings.workers import tiny


def data(train, held_out=0):
    store = SimpleNamespace(bucket_of=lambda rows: np.zeros(len(rows), np.int64), parts=(None,))
    views = [View(store, np.arange(length), "data.kind=test") for length in (train, held_out)]
    return SimpleNamespace(train=views[0], held_out=views[1], mixture=None)


def test_the_digits(tmp_path):
    """1,617 digits make twelve batches of 128; the 81 that are left are dropped."""
    experiment = tiny(batch={"size": 128}, training={"epochs": 3})
    plan = plan_run(experiment, open_data(experiment.data, Home(tmp_path)))
    assert plan == RunPlan(
        36, epoch_steps=12, train_samples=1617, held_out_samples=180, left_out_samples=81
    )


def test_mnist_has_468_steps_an_epoch():
    assert (
        plan_run(tiny(batch={"size": 128}, training={"epochs": 30}), data(60_000)).total_steps
        == 30 * 468
    )


@pytest.mark.parametrize(("samples", "steps"), [(128, 1), (255, 1), (256, 2)])
def test_the_last_partial_batch_is_dropped(samples, steps):
    assert (
        plan_run(tiny(batch={"size": 128}, training={"epochs": 1}), data(samples)).total_steps
        == steps
    )


def test_steps_are_steps_whatever_the_data():
    plan = plan_run(tiny(batch={"size": 128}, training={"steps": 1000}), data(256))
    assert (plan.total_steps, plan.epoch_steps) == (1000, 2)


def test_less_than_a_batch_is_refused():
    with pytest.raises(UserError, match=r"batch\.size=128 is larger than the 127 training samples"):
        plan_run(tiny(batch={"size": 128}), data(127))


def test_a_warmup_as_long_as_the_run_is_refused():
    spec = {"training": {"epochs": 2}, "schedule": {"kind": "warmup_cosine", "warmup": 24}}
    with pytest.raises(
        UserError,
        match=r"warmup=24 leaves nothing .* 24 steps; set schedule\.warmup to 2, or to 0\.",
    ):
        plan_run(tiny(batch={"size": 128}, **spec), data(1617))
    spec["schedule"]["warmup"] = 2
    assert plan_run(tiny(batch={"size": 128}, **spec), data(1617)).total_steps == 24


def test_a_warmup_in_epochs_follows_the_data():
    spec = {"training": {"epochs": 3}, "schedule": {"kind": "constant", "warmup_epochs": 1.5}}
    experiment = tiny(batch={"size": 128}, **spec)
    assert experiment.schedule.warmup_steps(plan_run(experiment, data(1617)).epoch_steps) == 18
    spec["schedule"]["warmup_epochs"] = 3.0
    with pytest.raises(
        UserError,
        match=r"warmup_epochs=3 leaves nothing .*36 steps; set .*_epochs to 0\.3, or to 0\.",
    ):
        plan_run(tiny(batch={"size": 128}, **spec), data(1617))


@pytest.mark.parametrize(("start", "remedy"), [(36, 29), (40, 29), (5, 29)])
def test_a_decay_without_room_is_refused(start, remedy):
    decay = {"kind": "warmup_stable_decay", "decay_start": start}
    message = rf"decay_start={start} does not lie .* about {remedy}, or to null"
    with pytest.raises(UserError, match=message):  # by its plan: its data say how long an epoch is
        plan_run(
            tiny(
                batch={"size": 128},
                training={"epochs": 3},
                schedule={**decay, "warmup_epochs": 1.5},
            ),
            data(1617),
        )
    with pytest.raises(ValueError, match=message):
        tiny(training={"steps": 36}, schedule={**decay, "warmup": 18})


def test_two_lengths_of_one_warmup_are_refused():
    with pytest.raises(
        ValueError, match=r"schedule\.warmup=2 and schedule\.warmup_epochs=1 are two lengths"
    ):
        tiny(schedule={"kind": "constant", "warmup": 2, "warmup_epochs": 1.0})
