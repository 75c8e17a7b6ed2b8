"""Parameter groups of AdamW under ZeRO, with state or parameters on the CPU too: against a plain
reading; resume.
"""

import pytest

from support.trainings.engines import Job, Pass, Step, drive_here, drive_workers
from support.trainings.grouped import (
    SCRIPT,
    SPLIT,
    assert_close,
    reference_training,
    resumed,
    small,
)

GROUPS = {"kind": "adamw", "lr_factors": {"head": 2.0}}
PARAMETERS_ON_CPU = {"offload_parameters": "cpu"}


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_groups_of_adamw_train_as_plain_ones_and_take_over_an_older_state(stage, tmp_path):
    """A state of one group goes into several, and back."""
    grouped = small(stage, kind="adamw", lr_factors={"head": 2.0})
    assert_close(drive_here(Job(grouped, SCRIPT)).state, reference_training(grouped, SCRIPT))
    single = small(stage, kind="adamw", no_decay=[])
    before = drive_here(Job(single, SCRIPT, save=tmp_path / "single")).state
    moved = drive_here(
        Job(
            grouped,
            [Step([[Pass(9)]], healthy=False)],
            load=tmp_path / "single",
            save=tmp_path / "many",
        )
    )
    back = drive_here(Job(single, [Step([[Pass(9)]], healthy=False)], load=tmp_path / "many"))
    assert moved.state.equals(before) and back.state.equals(before)


def offloaded():
    """Groups of AdamW with their state on the CPU at every stage that has it, and parameters there
    at stage 3.
    """
    places = [(stage, {"offload": "cpu"}) for stage in (1, 2, 3)]
    places += [(3, PARAMETERS_ON_CPU), (3, {"offload": "cpu", **PARAMETERS_ON_CPU})]
    return [small(stage, zero=zero, **GROUPS) for stage, zero in places]


def test_groups_of_adamw_on_the_cpu_train_as_plain_ones():
    expected = reference_training(small(0, **GROUPS), SCRIPT)
    for experiment in offloaded():
        assert_close(drive_here(Job(experiment, SCRIPT)).state, expected)


@pytest.mark.slow
def test_two_workers_with_groups_of_adamw_on_the_cpu(tmp_path):
    expected = reference_training(small(0, **GROUPS), SCRIPT)
    for trace in drive_workers([Job(experiment, SPLIT) for experiment in offloaded()], 2):
        assert_close(trace.state, expected)
    for unbroken, rest in resumed(offloaded(), 2, tmp_path):
        assert rest.state.equals(unbroken.state)
