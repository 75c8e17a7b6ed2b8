"""A cluster that grows for a run and shrinks after it: cluster.yaml's node types and start command, Ray's own
autoscaler, nodes that are processes of this machine."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from ditlab.cluster.capacity import (
    CpuShare,
    Growth,
    NodeType,
    check_capacity,
    cpu_share,
    limits_of,
    waiting_message,
)
from ditlab.errors import UserError
from ditlab.spec.resources import Resources
from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import wait_until
from support.clusters.launcher import FakeCluster, cluster_file, workers_by_look
from support.trainings.workers import tiny

HEAD = {"CPU": 0.0, "node:__internal_head__": 1.0}
GPU = {"CPU": 48.0, "GPU": 4.0}


def test_what_cluster_yaml_may_add():
    limits = limits_of(cluster_file())
    assert limits == Growth((NodeType("gpu_worker", {}, 8),), 8)
    full = Growth((NodeType("gpu_worker", GPU, 8),), 8)
    assert full.beside([HEAD]) == Growth((NodeType("gpu_worker", GPU, 8),), 8)
    assert full.beside([HEAD, *[GPU] * 3]).nodes() == [GPU] * 5
    assert full.beside([HEAD, *[GPU] * 8]).nodes() == []


def test_one_limit_for_all_types_together():
    small = {"CPU": 8.0, "GPU": 1.0}
    growth = Growth((NodeType("small", small, 6), NodeType("large", GPU, 2)), 4).beside([HEAD, small])
    assert growth.nodes() == [GPU, GPU, small]
    assert str(growth) == "may grow by 3 nodes of small (8 CPUs, 1 GPUs) or 2 nodes of large (48 CPUs, 4 GPUs)"


def test_a_run_is_measured_by_what_the_cluster_may_become():
    growth = Growth((NodeType("gpu_worker", GPU, 2),), 2)
    eight = Resources(workers=8, gpus_per_worker=1)
    check_capacity(eight, [HEAD], growth=growth)
    nine = Resources(workers=9, gpus_per_worker=1)
    words = (
        r"resources\.workers=9 at 10 CPUs and 1 GPU each do not fit: the cluster has 0 CPUs, 0 GPUs and may grow by 2 "
        r"nodes of gpu_worker \(48 CPUs, 4 GPUs\); set resources\.workers to at most 8, or add nodes\."
    )
    with pytest.raises(UserError, match=words):
        check_capacity(nine, [HEAD], growth=growth)
    check_capacity(nine, [HEAD], growth=Growth(is_known=False))  # the autoscaler itself knows


def test_two_workers_with_a_gpu_each_want_one_node():
    growth = Growth((NodeType("gpu_worker", GPU, 8),), 8)
    assert cpu_share(Resources(workers=2, gpus_per_worker=1), [HEAD], growth=growth) == CpuShare(12, 12.0)
    assert cpu_share(Resources(workers=2), [HEAD], growth=growth) == CpuShare(48, 48.0)


def test_a_run_that_waits_names_the_missing_resources():
    growth = Growth((NodeType("small", {"CPU": 1.0}, 2),), 2)
    line = waiting_message(Resources(workers=2), CpuShare(1, 1.0), [HEAD], growth)
    assert line == (
        "waiting for the cluster: 2 workers need 1 CPU each; it has 0 CPUs, 0 GPUs and may grow by 2 nodes of small "
        "(1 CPUs, 0 GPUs)."
    )
    assert waiting_message(Resources(workers=2), CpuShare(1, 1.0), [HEAD, {"CPU": 2.0}], growth) == ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = FakeCluster(
        tmp_path_factory.mktemp("cluster"), cores=1, workers=2, idle_minutes=0.5
    )  # longer than one node waits for the other here
    cluster.start()
    yield cluster
    cluster.stop()


def begin(cluster, spec, *more):
    """`ditlab train` on the cluster, with the token."""
    command = [sys.executable, "-m", "ditlab", "train", str(spec), "--address", cluster.address, *more]
    environment = {**os.environ, **cluster.access, "DITLAB_HOME": str(cluster.shared / "home"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(cluster, spec, *more):
    """The same to its end."""
    process = begin(cluster, spec, *more)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_no_worker_to_two_and_back(cluster, tmp_path):
    spec, looks = tmp_path / "tiny.yaml", tmp_path / "looks"
    spec.write_text(dump_yaml(tiny(name="growing", resources__workers=2).to_dict()))
    with cluster.watched(looks):
        wait_until(lambda: bool(workers_by_look(looks)), 60, "a cluster that answers")
        assert workers_by_look(looks)[-1] == 0
        done = train(cluster, spec, "--json")
        assert done.returncode == 0, done.stderr + cluster.log.read_text()
        assert "waiting for the cluster: 2 workers need 1 CPU each; it has 0 CPUs, 0 GPUs and may grow" in done.stderr
        assert "no room" not in done.stderr and "no worker has begun" not in done.stderr
        assert max(workers_by_look(looks)) == 2
        wait_until(lambda: workers_by_look(looks)[-1] == 0, 120, "the idle nodes' end")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["step"]) == ("finished", 6)
    settings = cluster.home / "ditlab.settings"
    assert f"DITLAB_HOME={cluster.shared}/home" in settings.read_text().splitlines()
    assert stat.S_IMODE((cluster.home / "ditlab.env").stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_cluster_can_never_hold_is_refused_at_once(cluster, tmp_path):
    spec = tmp_path / "wide.yaml"
    spec.write_text(dump_yaml(tiny(name="wide", resources__workers=3, batch__size=48).to_dict()))
    began = time.monotonic()
    done = train(cluster, spec)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "resources.workers=3 at 1 CPU each do not fit" in done.stderr
    assert "may grow by 2 nodes of gpu_worker (1 CPUs, 0 GPUs); set resources.workers to at most 2" in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_waits_can_leave(cluster, tmp_path):
    """An hour is what Ray would wait: Ctrl-C need not."""
    spec = tmp_path / "leaving.yaml"
    spec.write_text(dump_yaml(tiny(name="leaving", resources__workers=2).to_dict()))
    process = begin(cluster, spec)
    assert process.stderr
    said = next(line for line in process.stderr if "waiting for the cluster" in line)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in rest, said + rest
