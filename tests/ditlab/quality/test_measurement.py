"""Digests of measurements: every field that changes a figure changes them, and nothing else
does.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ditlab.data.splits import DataSplits, open_data
from ditlab.home import Home
from ditlab.quality.measurement import (
    FLOAT,
    family_measurement,
    held_out_measurement,
    quality_measurement,
    weights_digest,
)
from ditlab.receipts.records import Measurement, differing_parts, evaluation_digest
from ditlab.spec.data import DigitsData
from support.trainings.workers import tiny

DRAWING: dict[str, Any] = {
    "num": 100,
    "batch_size": 64,
    "seed": 5,
    "precision": FLOAT,
    "device_type": "cpu",
    "features": "f" * 64,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    return Home(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def data(home) -> Callable[[Any], DataSplits]:
    """Return the splits of digits under a share that is held out."""
    return lambda hold_out=0.1: open_data(DigitsData(hold_out=hold_out), home)


def of_held_out(
    home: Home, data: DataSplits, num: int | None = 32, device: str = "cpu", **changes: Any
) -> Measurement:
    return held_out_measurement(tiny(**changes), data, num, FLOAT, device, home)


def test_fields_that_change_a_held_out_figure(home, data) -> None:
    """Each other measurement names the part that differs."""
    base, rows = of_held_out(home, data()), data()
    others = {
        "held-out samples": [
            of_held_out(home, rows, 33),
            of_held_out(home, rows, None),
            of_held_out(home, data(0.2), None),
        ],
        "precision": [held_out_measurement(tiny(), rows, 32, "bf16", "cpu", home)],
        # its generator draws other times and noise
        "device": [of_held_out(home, rows, device="cuda")],
    }
    for part, measured in others.items():
        for each in measured:
            assert differing_parts([base, each]) == [part] and each.digest != base.digest
            assert differing_parts([base, Measurement.parse(each.to_tag())]) == [part], (
                "as a tag says it, too"
            )
    assert of_held_out(home, data(0.2)) == base, "the first rows are the same ones"
    assert (
        len({base.digest, *(each.digest for measured in others.values() for each in measured)}) == 6
    )


def test_fields_that_do_not(home, data) -> None:
    """Cuts, training and the seed of a run: times and noise of a held-out row are of its place
    alone.
    """
    base, rows = of_held_out(home, data()), data()
    alike: list[dict[str, Any]] = [
        {"seed": 7},
        {"batch__micro": 4},
        {"resources__workers": 2},
        {"optimizer__lr": 0.1},
        {"engine__zero__stage": 2},
        {"model__width": 64},
        {"sampling__steps": 3},
        {"training__steps": 9},
        {"name": "other"},
        {"tracking__every": 3},
        {"checkpoint__every": 2},
        {"objective__weights": {"velocity": 1.0, "direction": 0.7}},
        {"objective__time": {"kind": "logit_normal"}},
    ]
    for changes in alike:
        assert of_held_out(home, rows, **changes) == base, changes
    assert Measurement.parse(base.to_tag()).digest == base.digest


def test_fields_that_change_the_quality_of_samples(home, data) -> None:
    rows, experiment = data(), tiny()
    base = quality_measurement(experiment, rows, **DRAWING)
    others: dict[str, list[Measurement]] = {
        "sampler": [
            quality_measurement(tiny(**changes), rows, **DRAWING)
            for changes in ({"sampling__steps": 3}, {"sampling__solver": "heun"})
        ],
        "number": [quality_measurement(experiment, rows, **{**DRAWING, "num": 200})],
        "batch": [quality_measurement(experiment, rows, **{**DRAWING, "batch_size": 32})],
        "seed": [quality_measurement(experiment, rows, **{**DRAWING, "seed": 6})],
        "precision": [quality_measurement(experiment, rows, **{**DRAWING, "precision": "bf16"})],
        "features": [quality_measurement(experiment, rows, **{**DRAWING, "features": "0" * 64})],
        "device": [quality_measurement(experiment, rows, **{**DRAWING, "device_type": "cuda"})],
    }
    for part, measured in others.items():
        for each in measured:
            assert differing_parts([base, each]) == [part]
    split = quality_measurement(experiment, data(0.2), **DRAWING)
    assert differing_parts([base, split]) == ["held-out samples", "training samples"]
    whole = quality_measurement(experiment, rows, **{**DRAWING, "batch_size": 100})
    elsewhere = tiny(resources__workers=2, batch__micro=4)
    beyond = quality_measurement(elsewhere, rows, **{**DRAWING, "batch_size": 512})
    assert whole == beyond, "a batch beyond the number of samples is none"


def test_a_family_s_own_evaluation_is_of_its_batches(home, data) -> None:
    base = family_measurement(tiny(), data(), 32, 16, "cpu", home)
    assert differing_parts([base, family_measurement(tiny(), data(), 32, 8, "cpu", home)]) == [
        "batch"
    ]


def test_an_evaluation_is_of_measurement_spec_and_weights(home, data) -> None:
    """A weight, a name, a type, a shape: each is another digest; the order of names is not."""
    weights = {"a": torch.ones(2, 3), "b": torch.zeros(3)}
    other = [
        {"a": torch.ones(2, 3), "b": torch.tensor([0.0, 0.0, -0.0])},
        {"a": torch.ones(3, 2), "b": torch.zeros(3)},
        {"a": torch.ones(2, 3), "c": torch.zeros(3)},
        {"a": torch.ones(2, 3, dtype=torch.int32), "b": torch.zeros(3)},
        {"a": torch.ones(2, 3)},
    ]
    assert weights_digest(dict(reversed(weights.items()))) == weights_digest(weights)
    digests = {weights_digest(each) for each in other}
    assert len(digests | {weights_digest(weights)}) == 6
    held_out = of_held_out(home, data())
    base = evaluation_digest({"held_out": held_out}, "spec", weights_digest(weights))
    found = {
        evaluation_digest({"held_out": held_out}, "spec", next(iter(digests))),
        evaluation_digest({"held_out": held_out}, "other", weights_digest(weights)),
        evaluation_digest({"eval": held_out}, "spec", weights_digest(weights)),
        evaluation_digest(
            {"held_out": of_held_out(home, data(), 31)}, "spec", weights_digest(weights)
        ),
    }
    assert len(found | {base}) == 5
    assert evaluation_digest({"held_out": held_out}, "spec", weights_digest(weights)) == base
