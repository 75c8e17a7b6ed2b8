"""What fits on a cluster is known before anything starts."""

import pytest

from ditlab.cluster.capacity import check_capacity, worker_share
from ditlab.errors import UserError
from support.workers import tiny


def test_cores_are_shared_out_and_fit_on_a_node():
    one = [{"CPU": 8.0}]
    assert worker_share(tiny(), one).threads == 8
    assert worker_share(tiny(resources__workers=2), one).threads == 4
    assert worker_share(tiny(), [{"CPU": 4.0}, {"CPU": 16.0}]).threads == 16
    assert worker_share(tiny(resources__workers=2), [{"CPU": 4.0}, {"CPU": 4.0}]).threads == 4
    assert worker_share(tiny(resources={"workers": 2, "cpus_per_worker": 3}), one).threads == 3


def test_more_than_the_nodes_hold_is_refused():
    wide = tiny(resources={"workers": 2, "cpus_per_worker": 3})
    check_capacity(wide, [{"CPU": 3.0}, {"CPU": 4.0}])
    with pytest.raises(UserError, match=r"at 3 CPUs each do not fit: .*; set resources\.workers to at most 1, or add"):
        check_capacity(wide, [{"CPU": 5.0}])  # six cores are wanted, and three of them on one node only once
    with pytest.raises(UserError, match=r"lower resources\.cpus_per_worker"):
        check_capacity(wide, [{"CPU": 2.0}] * 8)  # sixteen cores, and no node with three
    gpus = tiny(resources={"workers": 2, "gpus_per_worker": 1})
    check_capacity(gpus, [{"CPU": 4.0, "GPU": 2.0}])
    with pytest.raises(
        UserError, match=r"1 GPU each do not fit: the cluster has 4 CPUs, 1 GPUs; set resources\.workers"
    ):
        check_capacity(gpus, [{"CPU": 4.0, "GPU": 1.0}])
