"""Plan of a run, from its spec and the size of its data."""

from types import SimpleNamespace

import numpy as np
import pytest

from ditlab.data.splits import open_data
from ditlab.data.stores.view import View
from ditlab.home import Home
from ditlab.training.plan import RunPlan, plan_run
from support.damage import refused
from support.trainings.workers import tiny


def data(train, held_out=0):
    store = SimpleNamespace(bucket_of=lambda rows: np.zeros(len(rows), np.int64), parts=(None,))
    views = [View(store, np.arange(length), "data.kind=test") for length in (train, held_out)]
    return SimpleNamespace(train=views[0], held_out=views[1], mixture=None)


def plan_of(samples, **spec):
    return plan_run(tiny(batch={"size": 128}, **spec), data(samples))


def test_the_digits(tmp_path):
    """1,617 digits make twelve batches of 128; the 81 that are left are dropped."""
    experiment = tiny(batch={"size": 128}, training={"epochs": 3})
    plan = plan_run(experiment, open_data(experiment.data, Home(tmp_path)))
    assert plan == RunPlan(
        36, epoch_steps=12, train_samples=1617, held_out_samples=180, left_out_samples=81
    )


@pytest.mark.parametrize(
    ("samples", "training", "steps"),
    [
        (128, {"epochs": 1}, 1),
        (255, {"epochs": 1}, 1),
        (60_000, {"epochs": 30}, 30 * 468),
        (256, {"steps": 1000}, 1000),
    ],
)
def test_the_last_partial_batch_is_dropped(samples, training, steps):
    assert plan_of(samples, training=training).total_steps == steps


@pytest.mark.parametrize(
    ("samples", "warmup", "sentence"),
    [
        (127, {}, r"batch\.size=128 is larger than the 127 training samples"),
        (1617, {"warmup": 36}, r"warmup=36 leaves nothing .* 36 steps; set .*warmup to 3, or to 0"),
        (
            1617,
            {"warmup_epochs": 3.0},
            r"warmup_epochs=3 leaves nothing .*36 steps; set .*_epochs to 0\.3, or to 0\.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(samples, warmup, sentence):
    with refused(sentence):
        plan_of(samples, training={"epochs": 3}, schedule={"kind": "constant", **warmup})


def test_two_lengths_of_one_warmup_are_refused():
    with pytest.raises(ValueError, match=r"warmup=2 and schedule\.warmup_epochs=1 are two lengths"):
        tiny(schedule__kind="constant", schedule__warmup=2, schedule__warmup_epochs=1.0)


@pytest.mark.parametrize("start", [36, 40, 5])
def test_a_decay_without_room_is_refused(start):
    decay = {"kind": "warmup_stable_decay", "decay_start": start}
    message = rf"decay_start={start} does not lie .* about 29, or to null"
    with refused(message):  # by its plan: its data say how long an epoch is
        plan_of(1617, training={"epochs": 3}, schedule={**decay, "warmup_epochs": 1.5})
    with pytest.raises(ValueError, match=message):
        tiny(training={"steps": 36}, schedule={**decay, "warmup": 18})
