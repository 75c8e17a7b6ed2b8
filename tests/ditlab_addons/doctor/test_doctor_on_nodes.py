"""`ditlab doctor --cluster` on real nodes: a good cluster, one without its server, one without a
token.
"""

import pytest

from support.clusters.nodes import object_store_keys, ray_nodes
from support.command import run_process
from support.object_store.s3 import s3_at_hand

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def s3():
    with s3_at_hand("bucket") as server:
        yield server


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, s3):
    """A head that only drives, and a node."""
    folder = tmp_path_factory.mktemp("doctor") / "nodes"
    with ray_nodes(folder, **object_store_keys()) as cluster:
        cluster.start_head(num_cpus=0)
        cluster.add_node(1)
        yield cluster


def doctor(cluster, home, *arguments, **environment):
    """The command, and the last line of each check: verdict and what was found."""
    place = ("--cluster", "--address", cluster.address)
    environment = {**cluster.access, **environment}
    said = run_process(
        "doctor", *place, "--json", *arguments, home=home, cwd=cluster.folder, **environment
    )
    return said, {line["what"]: (line["verdict"], line["found"]) for line in said.json["findings"]}


def test_a_good_cluster_is_measured_and_left_clean(nodes, s3, tmp_path):
    nodes.add_node(1)
    storage, before = f"s3://bucket/runs?{s3.query}", objects_in(s3)
    said, lines = doctor(nodes, tmp_path / "home", "--storage", storage)
    assert said.code == 0, said.err
    assert said.json["missing"] == [] and said.json["verdict"].startswith("ready for a long run")
    assert "ready for a long run" in said.err
    for what in ("nodes", "versions", "clocks", "DITLAB_HOME", "checkpoint.storage", "token"):
        assert lines[what][0] == "ok", lines[what]
    assert "without a token the job server answers 401" in lines["token"][1]
    assert lines["MLflow"][0] == "note", "a database of the home"
    for place in ("DITLAB_HOME", "checkpoint.storage"):
        for verb in ("writing", "reading"):
            assert lines[f"{verb} {place}"][1].count("MB/s") == 2, lines
    assert not (tmp_path / "home").exists()
    assert objects_in(s3) == before


def objects_in(s3):
    """Keys of the bucket that all tests of a process share, without empty ones."""
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://{s3.endpoint}", region_name="us-east-1")
    return [
        each["Key"]
        for each in client.list_objects_v2(Bucket="bucket").get("Contents", [])
        if each["Size"]
    ]


def test_a_cluster_that_takes_anyone_is_not_ready(tmp_path):
    with ray_nodes(tmp_path / "nodes", RAY_AUTH_MODE="disabled") as cluster:
        cluster.start_head(num_cpus=1)
        said, _ = doctor(cluster, tmp_path / "home", RAY_AUTH_MODE="disabled")
    assert said.code == 1 and said.json["missing"] == ["token"]


def test_what_belongs_to_a_cluster_is_refused_without_one(tmp_path):
    for arguments in (["--cluster"], ["--address", "127.0.0.1:6379"], ["--storage", "/x"]):
        run_process("doctor", *arguments, home=tmp_path).refused("--cluster")
