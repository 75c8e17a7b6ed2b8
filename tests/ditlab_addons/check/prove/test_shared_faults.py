"""Faults in code that engine and reference share: a proof names each, but for one."""

import re

import pytest

from ditlab_addons.check.prove.findings import Proof
from support.planted.shared_faults import SHARED_FAULTS
from support.trainings.family_specs import smallest
from support.trainings.proven import prove_here

FAST = (
    "biases decay as matrices",
    "times lean to the data",
    "guidance + 1",
    "the last step is left out",
    "evaluation on training rows",
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[] if fault.name in FAST else [pytest.mark.slow],
        )
        for fault in SHARED_FAULTS
    ],
)
def test_a_fault_in_shared_code_is_named(fault, home, monkeypatch):
    experiment = smallest(fault.family, training__steps=4, evaluation__limit=8, **fault.settings)
    fault.plant(monkeypatch)
    wrong = [each for each in prove_here(experiment, home) if not each.holds]
    said = [Proof((each,), "", "", 1.0).first_off.removeprefix("First off: ") for each in wrong]
    if not fault.named:
        assert not said
        return
    assert any(re.match(fault.named, each) for each in said), said
