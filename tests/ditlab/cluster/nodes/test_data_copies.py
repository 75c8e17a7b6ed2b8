"""Data behind a URI on a cluster: each node has one copy on its own disk, whoever asks for it
there.
"""

import logging
from collections import Counter
from functools import partial

import pytest

from ditlab.data.stores.manifest import MANIFEST_NAME
from support.clusters.nodes import object_store_keys, ray_nodes
from support.command import run_process
from support.object_store.s3 import s3_at_hand

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = """\
name: spread
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 24, micro: 8}
training: {steps: 4}
evaluation: {every: null}
resources: {workers: 3, cpus_per_worker: 1}
tracking: {system_metrics: false}
"""


def test_each_node_copies_a_store_once(tmp_path):
    """Two workers on one node and one on another; the launcher looks from a third place."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    (tmp_path / "spec.yaml").write_text(SPEC)
    home = tmp_path / "home"
    caches = {name: tmp_path / name for name in ("launcher", "large", "small")}
    with s3_at_hand("bucket") as server:
        own = object_store_keys()
        place = f"s3://bucket/digits?{server.query}"
        ditlab = partial(run_process, home=home, cwd=tmp_path, DITLAB_CACHE=str(caches["launcher"]))
        for command in (["data", "import", "digits"], ["data", "upload", "digits", place]):
            ditlab(*command).ok()
        with ray_nodes(tmp_path / "nodes", DITLAB_HOME=str(home), **own) as nodes:
            nodes.start_head(num_cpus=0, DITLAB_CACHE=str(tmp_path / "head"))
            nodes.add_node(num_cpus=2, DITLAB_CACHE=str(caches["large"]))
            nodes.add_node(num_cpus=1, DITLAB_CACHE=str(caches["small"]))
            server.requests.clear()
            options = (
                "--address",
                nodes.address,
                "--set",
                f"data={{kind: arrow, path: '{place}'}}",
            )
            done = ditlab("train", "spec.yaml", *options, **nodes.access)
    assert done.code == 0, done.err
    assert " finished: 4 steps" in done.out, done.out
    assert done.err.count(f" copied to {caches['launcher']}/stores/digits-") == 1, done.err
    for cache in caches.values():
        assert [path.name for path in cache.glob("stores/*/*.json")] == [MANIFEST_NAME], cache
    assert not (tmp_path / "head").exists()
    shards = Counter(
        request for request in server.requests if request.startswith("GET") and ".arrow" in request
    )
    assert list(shards.values()) == [3], "once for each node and once for the launcher"
