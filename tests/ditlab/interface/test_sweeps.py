"""The Python API of sweeps, as far as it needs no Ray; `tests/ditlab/sweeps/test_session.py` runs
whole sweeps.
"""

import pytest

from ditlab.api.sweeps import plan_sweep, tune
from support.damage import refused
from support.sweeps import sweep_of, written_sweep


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_plan_of_a_sweep_starts_nothing(home, tmp_path, capfd):
    plan = plan_sweep(written_sweep(tmp_path), ["trials=3"])
    assert plan.forecast.total > 0 and "rates: dit, 1 axis, random search" in plan.notes[0]
    assert plan.to_dict()["status"] == "dry-run" and not (home / "train").exists()
    assert capfd.readouterr() == ("", "")  # the API prints nothing
    assert plan.prepared.trials == plan_sweep(sweep_of(trials=3)).prepared.trials
    assert len(plan.prepared.trials) == 3


def test_arguments_that_name_no_sweep_are_refused(home):
    for call in (tune, plan_sweep):
        with refused("neither SWEEP nor --resume is given"):
            call()
        with refused("--set trials=3 changes a file, and none is given"):
            call(sweep_of(), ["trials=3"])
        with refused("--resume auto finds a sweep by its file"):
            call(resume="auto")
    assert not home.exists()


def test_resume_auto_without_an_unfinished_sweep_plans_a_new_one(home):
    assert plan_sweep(sweep_of(trials=2), resume="auto").prepared.num_trials == 2
