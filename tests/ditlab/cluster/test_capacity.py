"""Capacity of a cluster, computed before anything starts."""

import pytest

from ditlab.cluster.capacity import CpuShare, check_capacity, cpu_share, runs_that_fit
from ditlab.errors import UserError
from ditlab.spec.resources import Resources


def test_cores_are_shared_out_and_fit_on_a_node():
    one = [{"CPU": 8.0}]
    assert cpu_share(Resources(), one).threads == 8
    assert cpu_share(Resources(workers=2), one).threads == 4
    assert cpu_share(Resources(), [{"CPU": 4.0}, {"CPU": 16.0}]).threads == 16
    assert cpu_share(Resources(workers=2), [{"CPU": 4.0}, {"CPU": 4.0}]).threads == 4
    assert cpu_share(Resources(workers=2, cpus_per_worker=3), one).threads == 3


def test_more_than_the_nodes_hold_is_refused():
    wide = Resources(workers=2, cpus_per_worker=3)
    check_capacity(wide, [{"CPU": 3.0}, {"CPU": 4.0}])
    with pytest.raises(
        UserError,
        match=r"at 3 CPUs each do not fit: .*; set resources\.workers to at most 1, or add",
    ):
        # six cores are wanted, and three of them on one node only once
        check_capacity(wide, [{"CPU": 5.0}])
    with pytest.raises(UserError, match=r"lower resources\.cpus_per_worker"):
        check_capacity(wide, [{"CPU": 2.0}] * 8)  # sixteen cores, and no node with three
    gpus = Resources(workers=2, gpus_per_worker=1)
    check_capacity(gpus, [{"CPU": 4.0, "GPU": 2.0}])
    with pytest.raises(
        UserError,
        match=r"1 GPU each do not fit: the cluster has 4 CPUs, 1 GPUs; set resources\.workers",
    ):
        check_capacity(gpus, [{"CPU": 4.0, "GPU": 1.0}])


def test_the_trials_of_a_sweep_share_the_cores_that_there_are():
    two, eight = [{"CPU": 2.0}], [{"CPU": 8.0}]
    assert cpu_share(Resources(), two, 1) == CpuShare(2, 2.0)
    assert cpu_share(Resources(), two, 2) == CpuShare(1, 1.0)
    assert cpu_share(Resources(), two, 3) == CpuShare(1, 0.66)  # rounded down: three of them fit
    assert cpu_share(Resources(), two, 1000) == CpuShare(1, 0.01)  # the least that Ray counts well
    assert cpu_share(Resources(), eight, 3) == CpuShare(2, 2.0)
    assert cpu_share(Resources(workers=2), eight, 2) == CpuShare(2, 2.0)
    assert cpu_share(Resources(), [{"CPU": 2.0}, {"CPU": 16.0}], 1) == CpuShare(16, 16.0)
    assert cpu_share(Resources(cpus_per_worker=3), two, 4) == CpuShare(3, 3.0)


@pytest.mark.parametrize("cores", [1.0, 2.0, 3.0, 16.0, 96.0])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_as_many_trials_fit_as_share_the_cores_of_one_machine(cores, workers):
    resources, machine = Resources(workers=workers), [{"CPU": cores}]
    for concurrent in (1, 2, 3, 7, 16):
        if cores / (workers * concurrent) >= 0.01:
            assert (
                runs_that_fit(resources, cpu_share(resources, machine, concurrent), machine)
                >= concurrent
            )


def test_how_many_runs_fit():
    assert runs_that_fit(Resources(), CpuShare(1, 1.0), [{"CPU": 8.0}]) == 8
    assert runs_that_fit(Resources(workers=2), CpuShare(3, 3.0), [{"CPU": 8.0}, {"CPU": 4.0}]) == 1
    assert (
        runs_that_fit(Resources(workers={"min": 2, "max": 4}), CpuShare(1, 1.0), [{"CPU": 8.0}])
        == 4
    )
    assert (
        runs_that_fit(Resources(), CpuShare(1, 0.1), [{"CPU": 1.0}]) == 10
    )  # 1 / 0.1 is 10, and 0.1 no binary fraction
    assert runs_that_fit(Resources(), CpuShare(64, 64.0), [{"CPU": 8.0}]) == 0
    assert runs_that_fit(Resources(), CpuShare(1, 1.0), []) == 0


@pytest.mark.parametrize(
    ("gpus", "on_one", "on_two"), [(0.25, 4, 8), (0.1, 10, 20), (0.4, 2, 4), (0.6, 1, 2), (1, 1, 2)]
)
def test_parts_of_a_gpu(gpus, on_one, on_two):
    """A part lies on one GPU: two tenths left on each of two are no room for four."""
    resources = Resources(gpus_per_worker=gpus)
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0, "GPU": 1.0}]) == on_one
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0, "GPU": 2.0}]) == on_two
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 3.0, "GPU": 2.0}]) == min(3, on_two)
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0}]) == 0


def test_no_room_for_one_trial():
    machine = [{"CPU": 2.0}]
    resources = Resources(workers=2, cpus_per_worker=1)
    check_capacity(resources, machine, cpu_share(resources, machine, 5))
    with pytest.raises(
        UserError,
        match=r"at 64 CPUs each do not fit: the cluster has 2 CPUs, 0 GPUs; lower resources",
    ):
        check_capacity(Resources(cpus_per_worker=64), machine, CpuShare(64, 64.0))
    with pytest.raises(UserError, match=r"at 0\.5 CPU and 0\.25 GPU each do not fit"):
        check_capacity(Resources(gpus_per_worker=0.25), machine, CpuShare(1, 0.5))
