"""Averages of power-function profile in the engine: the profile's weights of the master weights, at
every stage.
"""

import pytest
import torch

from ditlab.averages import START, PowerProfile, field_of
from support.marks import slow
from support.trainings.engines import Job, Pass, Step, drive_here
from support.trainings.workers import tiny

LENGTHS = (0.05, 0.20)
LEFT_OUT = 2
"""Step of the script whose update is not applied."""


def experiment_of(**changes):
    return tiny(training__averages__lengths=LENGTHS, **changes)


def script():
    return [Step([[Pass(number, poison=number == LEFT_OUT)]]) for number in range(6)]


def assert_weighted(states):
    """Each average after the last update is the profile's sum of the master weights after every
    update.
    """
    applied = [states[number] for number in sorted(states) if number != LEFT_OUT]
    names = [name for field, name in applied[-1].tensors if field == "master"]
    for length in LENGTHS:
        edges = torch.arange(len(applied) + 1).numpy()
        weights = torch.tensor(PowerProfile(length).cumulative(edges, len(applied))).diff()
        for name in names:
            masters = torch.stack([state.tensors["master", name].double() for state in applied])
            expected = (weights[:, None] * masters).sum(0)
            found = applied[-1].tensors[field_of(length), name].double()
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine__zero": {"stage": 0}},
        {"engine__zero": {"stage": 3}},
        *slow(
            {"engine__zero": {"stage": 2}, "training__precision": "bf16"},
            {"engine__zero": {"stage": 1}, "optimizer": {"kind": "muon"}},
            {"engine__zero": {"stage": 2, "offload": "cpu"}},
        ),
    ],
    ids=str,
)
def test_averages_are_the_profiles_sums_of_the_applied_updates(changes):
    states = drive_here(Job(experiment_of(**changes), script(), kept=range(6))).states
    assert_weighted(states)
    before, after = states[LEFT_OUT - 1].tensors, states[LEFT_OUT].tensors
    assert all(torch.equal(before[key], after[key]) for key in before if "power" in key[0])


def test_keeping_averages_changes_nothing_else():
    plain, kept = (drive_here(Job(each, script())).state for each in (tiny(), experiment_of()))
    assert all(torch.equal(value, kept.tensors[key]) for key, value in plain.tensors.items())
    added = {field for field, _ in kept.tensors.keys() - plain.tensors.keys()}
    assert added == {"power_0.05", "power_0.2"}
    assert kept.scalars.items() - plain.scalars.items() == {(START, 0.0)}


def test_averages_begin_anew_on_a_state_without_them(tmp_path):
    steps = script()
    drive_here(Job(tiny(), steps[:2], save=tmp_path / "plain"))
    found = drive_here(Job(experiment_of(), steps[3:4], load=tmp_path / "plain")).state
    assert found.scalars[START] == 2 and found.scalars["adam_step"] == 3
    for (field, name), value in found.tensors.items():
        if field.startswith("power"):
            assert torch.equal(value, found.tensors["master", name])
