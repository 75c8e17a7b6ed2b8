"""Imports on Ray: the store is that of an import on one machine, whatever is killed on the way."""

import random
import re
import time

import pytest

from ditlab.cluster.node_report import probe_node
from ditlab.data.named_stores import pointed_folder
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab_addons.encode.encoding import encode_store
from support.clusters.nodes import ray_nodes
from support.command import run_process
from support.datasets.tiny_encoders import write_image_encoder
from support.killed_imports import KilledImport, unbroken, write_photographs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp("photographs") / "source")


@pytest.fixture(scope="module")
def expected(photographs, tmp_path_factory):
    return unbroken(photographs, tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of one core each."""
    with ray_nodes(tmp_path_factory.mktemp("cluster")) as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        yield nodes


def ditlab(cluster, folder, *words):
    """Run a command on the cluster in a process of its own: Ray reads a token once a process, and
    others have one.
    """
    there = ("--out", str(folder), "--address", cluster.address)
    return run_process(
        "data", *words, *there, home=folder.with_name("home"), cwd=cluster.folder, **cluster.access
    )


def test_an_import_that_is_killed_ten_times_gives_the_same_store(
    photographs, expected, cluster, tmp_path
):
    """Eight times the import alone is killed, and twice a node with all that runs there as well."""
    killed = KilledImport(photographs, tmp_path, cluster.address, **cluster.access)
    chance, done = random.Random(5), []
    for kill in range(10):
        running = killed.start()
        killed.wait_for_progress(running)
        time.sleep(chance.uniform(0, 0.15))  # of some 5 seconds of work on two fast cores
        assert running.poll() is None, f"it ended before kill {kill}: {running.communicate()}"
        with_node = kill in (3, 7)
        if with_node:
            cluster.nodes[-1].kill()
        running.kill()
        running.communicate()
        if with_node:  # not before: starting one takes so long that the import could end
            cluster.add_node(num_cpus=1)
        done.append(killed.receipts())
    assert done == sorted(done) and done[-1] > done[0], done
    killed.check_end(expected)


def test_a_node_that_is_lost_costs_no_image(photographs, expected, cluster, tmp_path):
    killed = KilledImport(photographs, tmp_path, cluster.address, **cluster.access)
    running = killed.start()
    killed.wait_for_progress(running)
    cluster.nodes[-1].kill()
    out, log = running.communicate(timeout=300)
    assert running.returncode == 0, log
    assert out.split()[-1] == expected.fingerprint
    cluster.add_node(num_cpus=1)


def test_mistakes_come_back_as_one_sentence(cluster, photographs, tmp_path):
    options = [
        "--source",
        str(photographs),
        "--resolution",
        "768",
        "--patch",
        "16",
        "--missing-caption",
        "refuse",
    ]
    said = ditlab(cluster, tmp_path / "stores", "import", "images", *options)
    assert said.code == 2
    (line,) = [line for line in said.err.splitlines() if line.startswith("ditlab: ")]
    assert re.match(
        r"ditlab: 051\.jpg has no caption; write one into a \.txt file.*skip\.$", line
    ), said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "stores").exists()


def test_features_made_on_ray_are_those_made_here(cluster, expected, tmp_path):
    encoder = str(write_image_encoder(tmp_path / "image", patch=64))
    here = encode_store(expected.path, encode_images=encoder, name="here", out=tmp_path)
    ditlab(
        cluster,
        tmp_path,
        "encode",
        str(expected.path),
        "--encode-images",
        encoder,
        "--name",
        "there",
    ).ok()
    there = BucketedStore.open(pointed_folder(tmp_path / "there"))
    assert there.fingerprint == here.store.fingerprint != expected.fingerprint


def test_a_node_says_which_folders_it_does_not_see(tmp_path):
    (tmp_path / "probe").write_text("word")
    assert probe_node(str(tmp_path / "probe"), "word", str(tmp_path)) == []
    assert probe_node(str(tmp_path / "probe"), "another", str(tmp_path / "none")) == [
        "out",
        "source",
    ]
    assert probe_node(str(tmp_path / "none"), "word", None) == ["out"]
