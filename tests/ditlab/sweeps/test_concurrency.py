"""How many trials train at once, on machines that are only described."""

import pytest

from ditlab.cluster.capacity import Share
from ditlab.errors import UserError
from ditlab.sweeps.concurrency import find_room
from support.sweeps import sweep_of
from support.workers import tiny

TWO, EIGHT = [{"CPU": 2.0}], [{"CPU": 8.0}]
GPUS = [{"CPU": 8.0, "GPU": 2.0}]


def room(nodes, trials, resources=None, **changes):
    return find_room(sweep_of(**changes), tiny(resources=resources or {}), nodes, trials)


def test_a_trial_a_core_unless_the_sweep_says_otherwise():
    assert room(EIGHT, 20) == (Share(1, 1.0), 8, "")
    assert room(EIGHT, 3) == (Share(2, 2.0), 3, "")  # few trials have more cores each
    assert room(EIGHT, 20, concurrent=2) == (Share(4, 4.0), 2, "")
    assert room(TWO, 20, concurrent=4) == (Share(1, 0.5), 4, "")
    assert room(EIGHT, 20, {"cpus_per_worker": 3}) == (Share(3, 3.0), 2, "")


def test_fewer_than_were_asked_for_are_told():
    share, fit, note = room(TWO, 20, {"cpus_per_worker": 1}, concurrent=4)
    assert (share, fit, note) == (Share(1, 1.0), 2, "concurrent=4 trials do not fit at once: 2 of them do.")
    assert room(GPUS, 20, {"gpus_per_worker": 0.5}, concurrent=6)[1:] == (
        4, "concurrent=6 trials do not fit at once: 4 of them do."
    )  # fmt: skip


def test_a_population_trains_at_once_or_not_at_all():
    pbt = {"kind": "pbt", "interval": 2}
    assert room(TWO, 6, scheduler=pbt) == (Share(1, 0.33), 6, "")
    with pytest.raises(UserError, match=r"trains all of trials=6 at once, and 2 of them fit; lower trials, or"):
        room(TWO, 6, {"cpus_per_worker": 1}, scheduler=pbt)


def test_not_one_trial_fits():
    with pytest.raises(UserError, match="at 3 CPUs each do not fit"):
        room(TWO, 4, {"cpus_per_worker": 3})
