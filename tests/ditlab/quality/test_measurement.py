"""Digests of measurements: every field that changes a figure changes them, and nothing else
does.
"""

from typing import Any

import pytest
import torch

from ditlab.data.splits import open_data
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

DRAWING = {
    "num": 100,
    "batch_size": 64,
    "seed": 5,
    "precision": FLOAT,
    "device_type": "cpu",
    "features": "f" * 64,
}


@pytest.fixture(scope="module")
def data(home):
    """Return the splits of digits under a share that is held out."""
    return lambda hold_out=0.1: open_data(DigitsData(hold_out=hold_out), home)


def of_held_out(home, data, num=32, device="cpu", **changes: Any):
    return held_out_measurement(tiny(**changes), data, num, FLOAT, device, home)


def test_fields_that_change_a_held_out_figure(home, data):
    """Each other measurement names the part that differs."""
    base, rows = of_held_out(home, data()), data()
    others = [
        ("held-out samples", of_held_out(home, rows, 33)),
        ("held-out samples", of_held_out(home, rows, None)),
        ("held-out samples", of_held_out(home, data(0.2), None)),
        ("precision", held_out_measurement(tiny(), rows, 32, "bf16", "cpu", home)),
        # its generator draws other times and noise
        ("device", of_held_out(home, rows, device="cuda")),
    ]
    for part, each in others:
        assert differing_parts([base, each]) == [part]
        assert differing_parts([base, Measurement.parse(each.to_tag())]) == [part], "as a tag, too"
    assert of_held_out(home, data(0.2)) == base, "the first rows are the same ones"
    assert len({base.digest, *(each.digest for _, each in others)}) == 6


def test_fields_that_do_not(home, data):
    """Cuts, training and the seed of a run: times and noise of a held-out row are of its place
    alone.
    """
    base, rows = of_held_out(home, data()), data()
    alike = [
        {"seed": 7},
        {"batch__micro": 4},
        {"resources__workers": 2},
        {"model__width": 64},
        {"sampling__steps": 3},
        {"training__steps": 9},
        {"objective__weights": {"velocity": 1.0, "direction": 0.7}},
        {"objective__time": {"kind": "logit_normal"}},
    ]
    for changes in alike:
        assert of_held_out(home, rows, **changes) == base, changes
    assert Measurement.parse(base.to_tag()).digest == base.digest


def test_fields_that_change_the_quality_of_samples(home, data):
    rows, experiment = data(), tiny()

    def measured(experiment=experiment, rows=rows, **changes):
        return quality_measurement(experiment, rows, **{**DRAWING, **changes})

    base = measured()
    for part, other in (
        ("sampler", measured(tiny(sampling__steps=3))),
        ("sampler", measured(tiny(sampling__solver="heun"))),
        ("number", measured(num=200)),
        ("batch", measured(batch_size=32)),
        ("seed", measured(seed=6)),
        ("precision", measured(precision="bf16")),
        ("features", measured(features="0" * 64)),
        ("device", measured(device_type="cuda")),
    ):
        assert differing_parts([base, other]) == [part]
    split = measured(rows=data(0.2))
    assert differing_parts([base, split]) == ["held-out samples", "training samples"]
    beyond = measured(tiny(resources__workers=2, batch__micro=4), batch_size=512)
    assert measured(batch_size=100) == beyond, "a batch beyond the number of samples is none"


def test_a_family_s_own_evaluation_is_of_its_batches(home, data):
    measured = [family_measurement(tiny(), data(), 32, size, "cpu", home) for size in (16, 8)]
    assert differing_parts(measured) == ["batch"]


def test_an_evaluation_is_of_measurement_spec_and_weights(home, data):
    """A weight, a name, a type, a shape: each is another digest; the order of names is not."""
    ones, zeros = torch.ones(2, 3), torch.zeros(3)
    weights = {"a": ones, "b": zeros}
    other = [
        {"a": ones, "b": -zeros},
        {"a": ones.T, "b": zeros},
        {"a": ones, "c": zeros},
        {"a": ones.int(), "b": zeros},
        {"a": ones},
    ]
    assert weights_digest(dict(reversed(weights.items()))) == weights_digest(weights)
    digests = {weights_digest(each) for each in other}
    assert len(digests | {weights_digest(weights)}) == 6
    held_out, digest = of_held_out(home, data()), weights_digest(weights)
    found = {
        evaluation_digest({group: measured}, spec, of)
        for group, measured, spec, of in (
            ("held_out", held_out, "spec", digest),
            ("held_out", held_out, "spec", digest),  # equal for one evaluation made twice
            ("held_out", held_out, "spec", next(iter(digests))),
            ("held_out", held_out, "other", digest),
            ("eval", held_out, "spec", digest),
            ("held_out", of_held_out(home, data(), 31), "spec", digest),
        )
    }
    assert len(found) == 5
