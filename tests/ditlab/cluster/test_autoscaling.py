"""A cluster that grows for a run and shrinks after it: cluster.yaml's node types and start command,
Ray's own autoscaler, nodes that are processes of this machine."""

import json
import signal
import stat

import pytest

from ditlab.cluster.capacity import CpuShare, check_capacity, waiting_message
from ditlab.spec.resources import Resources
from ditlab.spec.yaml_text import dump_yaml
from support.clusters.faults import wait_until
from support.clusters.launcher import FakeCluster, workers_by_look
from support.command import start_process
from support.damage import refused
from support.trainings.workers import tiny

HEAD = {"CPU": 0.0, "node:__internal_head__": 1.0}


def test_a_run_on_a_cluster_that_grows_waits():
    nine = Resources(workers=9, gpus_per_worker=1)
    check_capacity(nine, [HEAD], grows=True)
    with refused("do not fit"):
        check_capacity(nine, [HEAD])
    line = waiting_message(Resources(workers=2), CpuShare(1, 1.0), [HEAD])
    assert line.startswith("waiting for the cluster to grow: resources.workers=2 at 1 CPU each")
    assert waiting_message(Resources(workers=2), CpuShare(1, 1.0), [HEAD, {"CPU": 2.0}]) == ""


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
    words = ("train", spec, "--address", cluster.address, *more)
    return start_process(*words, home=cluster.shared / "home", **cluster.access)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_no_worker_to_two_and_back(cluster, tmp_path):
    spec, looks = tmp_path / "tiny.yaml", tmp_path / "looks"
    spec.write_text(dump_yaml(tiny(name="growing", resources__workers=2).to_dict()))
    with cluster.watched(looks):
        wait_until(lambda: bool(workers_by_look(looks)), 60, "a cluster that answers")
        assert workers_by_look(looks)[-1] == 0
        process = begin(cluster, spec, "--json")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err + cluster.log.read_text()
        assert "waiting for the cluster to grow: resources.workers=2 at 1 CPU each" in err
        assert "no room" not in err and "no worker has begun" not in err
        assert max(workers_by_look(looks)) == 2
        wait_until(lambda: workers_by_look(looks)[-1] == 0, 120, "the idle nodes' end")
    result = json.loads(out.splitlines()[-1])
    assert (result["status"], result["step"]) == ("finished", 6)
    settings = cluster.home / "ditlab.settings"
    assert f"DITLAB_HOME={cluster.shared}/home" in settings.read_text().splitlines()
    assert stat.S_IMODE((cluster.home / "ditlab.env").stat().st_mode) == 0o600


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
