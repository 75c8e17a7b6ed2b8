"""Number of trials that train at once, on machines that are only described."""

from ditlab.cluster.capacity import CpuShare
from ditlab.spec.resources import Resources
from ditlab.sweeps.prepare import Concurrency, plan_concurrency
from support.damage import refused
from support.sweeps import sweep_of

TWO, EIGHT = [{"CPU": 2.0}], [{"CPU": 8.0}]


def plan(nodes, trials, resources=None, **changes):
    return plan_concurrency(sweep_of(**changes), Resources(**(resources or {})), nodes, trials)


def test_one_trial_a_core_unless_the_sweep_sets_concurrent():
    assert plan(EIGHT, 20) == Concurrency(8, CpuShare(1, 1.0))
    assert plan(EIGHT, 3) == Concurrency(3, CpuShare(2, 2.0))  # few trials have more cores each
    assert plan(EIGHT, 20, concurrent=2) == Concurrency(2, CpuShare(4, 4.0))
    assert plan(TWO, 20, concurrent=4) == Concurrency(4, CpuShare(1, 0.5))
    assert plan(EIGHT, 20, {"cpus_per_worker": 3}) == Concurrency(2, CpuShare(3, 3.0))


def test_note_where_fewer_trials_fit_than_concurrent():
    note = "concurrent=4 trials do not fit at once: 2 of them do."
    assert plan(TWO, 20, {"cpus_per_worker": 1}, concurrent=4) == Concurrency(
        2, CpuShare(1, 1.0), note
    )
    on_gpus = plan([{"CPU": 8.0, "GPU": 2.0}], 20, {"gpus_per_worker": 0.5}, concurrent=6)
    assert on_gpus.note == "concurrent=6 trials do not fit at once: 4 of them do."
    assert on_gpus.num_trials == 4


def test_population_trains_all_at_once_or_is_refused():
    pbt = {"kind": "pbt", "interval": 2}
    assert plan(TWO, 6, scheduler=pbt) == Concurrency(6, CpuShare(1, 0.33))
    with refused(r"trains all of trials=6 at once, and 2 of them fit; lower trials, or"):
        plan(TWO, 6, {"cpus_per_worker": 1}, scheduler=pbt)
