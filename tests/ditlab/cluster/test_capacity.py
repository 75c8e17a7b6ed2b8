"""Capacity of a cluster, computed before anything starts."""

import pytest

from ditlab.cluster.capacity import CpuShare, check_capacity, cpu_share, runs_that_fit
from ditlab.spec.resources import Resources
from support.damage import refused


def test_more_than_the_nodes_hold_is_refused():
    wide = Resources(workers=2, cpus_per_worker=3)
    check_capacity(wide, [{"CPU": 3.0}, {"CPU": 4.0}])
    gpus = Resources(workers=2, gpus_per_worker=1)
    check_capacity(gpus, [{"CPU": 4.0, "GPU": 2.0}])
    machine = [{"CPU": 2.0}]
    trial = Resources(workers=2, cpus_per_worker=1)
    check_capacity(trial, machine, cpu_share(trial, machine, 5))
    for resources, nodes, share, sentence in (
        # six cores are wanted, and three of them on one node only once
        (
            wide,
            [{"CPU": 5.0}],
            None,
            r"3 CPUs each .*; set resources\.workers to at most 1, or add",
        ),
        # sixteen cores, and no node with three
        (wide, [{"CPU": 2.0}] * 8, None, r"lower resources\.cpus_per_worker"),
        (
            gpus,
            [{"CPU": 4.0, "GPU": 1.0}],
            None,
            r"1 GPU each do not fit: the cluster has 4 CPUs, 1 GPUs; set resources\.workers",
        ),
        (
            Resources(cpus_per_worker=64),
            machine,
            CpuShare(64, 64.0),
            "at 64 CPUs each do not fit: the cluster has 2 CPUs, 0 GPUs; lower resources",
        ),
        (
            Resources(gpus_per_worker=0.25),
            machine,
            CpuShare(1, 0.5),
            r"at 0\.5 CPU and 0\.25 GPU each do not fit",
        ),
    ):
        with refused(sentence):
            check_capacity(resources, nodes, share)


def test_the_trials_of_a_sweep_share_the_cores_that_there_are():
    two, eight = [{"CPU": 2.0}], [{"CPU": 8.0}]
    for spec, nodes, concurrent, threads, cpus in (
        ({}, two, 1, 2, 2.0),
        ({}, two, 2, 1, 1.0),
        ({}, two, 3, 1, 0.66),  # rounded down: three of them fit
        ({}, two, 1000, 1, 0.01),  # the least that Ray counts well
        ({}, eight, 3, 2, 2.0),
        ({"workers": 2}, eight, 2, 2, 2.0),
        ({"workers": 2}, eight, 1, 4, 4.0),
        ({"workers": 2}, [{"CPU": 4.0}, {"CPU": 4.0}], 1, 4, 4.0),
        ({}, [{"CPU": 2.0}, {"CPU": 16.0}], 1, 16, 16.0),
        ({"cpus_per_worker": 3}, two, 4, 3, 3.0),
    ):
        assert cpu_share(Resources(**spec), nodes, concurrent) == CpuShare(threads, cpus)


def test_how_many_runs_fit():
    for workers, cpus, cores, runs in (
        (1, 1.0, [8.0], 8),
        (2, 3.0, [8.0, 4.0], 1),
        ({"min": 2, "max": 4}, 1.0, [8.0], 4),
        (1, 0.66, [2.0], 3),  # the share of one of three trials
        (1, 0.1, [1.0], 10),  # 1 / 0.1 is 10, and 0.1 no binary fraction
        (1, 64.0, [8.0], 0),
        (1, 1.0, [], 0),
    ):
        nodes = [{"CPU": each} for each in cores]
        assert runs_that_fit(Resources(workers=workers), CpuShare(1, cpus), nodes) == runs


@pytest.mark.parametrize(("gpus", "on_one", "on_two"), [(0.1, 10, 20), (0.4, 2, 4), (1, 1, 2)])
def test_parts_of_a_gpu(gpus, on_one, on_two):
    """A part lies on one GPU: two tenths left on each of two are no room for four."""
    resources = Resources(gpus_per_worker=gpus)
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0, "GPU": 1.0}]) == on_one
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0, "GPU": 2.0}]) == on_two
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 3.0, "GPU": 2.0}]) == min(3, on_two)
    assert runs_that_fit(resources, CpuShare(1, 1.0), [{"CPU": 64.0}]) == 0
