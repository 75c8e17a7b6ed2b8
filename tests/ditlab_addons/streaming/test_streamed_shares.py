"""Streamed data on a cluster: each node fetches its share of the store, and no more."""

from collections import Counter

import numpy as np
import pytest

from ditlab.data.stores.manifest import Column
from support.clusters.nodes import object_store_keys, ray_nodes
from support.command import run_process
from support.datasets.writing import written
from support.object_store.server import object_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS, BLOCK_ROWS, SIDE = 3200, 10, 32
SPEC = """\
name: shares
model: {family: dit, image_size: 32, patch_size: 8, width: 32, depth: 1, num_heads: 2, channels: 1, num_classes: 5}
batch: {size: 32, micro: 8}
training: {steps: 100}
evaluation: {every: null}
checkpoint: {every: null}
resources: {workers: 2, cpus_per_worker: 1}
tracking: {system_metrics: false}
"""


def test_each_of_two_nodes_fetches_about_half_of_the_store_in_an_epoch(tmp_path):
    """The server knows a node by the name of its key; the launcher looks from a third place."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    store = tmp_path / "bucket" / "store"
    columns = {
        "image": Column(dtype="uint8", shape=(1, SIDE, SIDE), value_range=(0, 255)),
        "label": Column(dtype="int64", num_classes=5),
    }
    generator = np.random.default_rng(0)
    batch = {
        "image": generator.integers(0, 256, (ROWS, 1, SIDE, SIDE), dtype=np.uint8),
        "label": generator.integers(0, 5, ROWS),
    }
    written(store, columns, batch, rows_per_block=BLOCK_ROWS, rows_per_shard=400)
    home = tmp_path / "home"
    with object_server(tmp_path) as server:
        own = object_store_keys()
        place = f"s3://bucket/store?{server.query}"
        with ray_nodes(tmp_path / "nodes", DITLAB_HOME=str(home), **own) as nodes:
            nodes.start_head(num_cpus=0, DITLAB_CACHE=str(tmp_path / "head"))
            for name in ("one", "two"):
                nodes.add_node(
                    num_cpus=1, DITLAB_CACHE=str(tmp_path / name), AWS_ACCESS_KEY_ID=name
                )
            data = (
                f"data={{kind: arrow, path: '{place}', access: stream, cache: 2MiB, hold_out: 0.0, "
                "order: {kind: interleaved, streams: 4, window: 4}}"
            )
            command = ["train", "spec.yaml", "--address", nodes.address, "--set", data]
            places = {"home": home, "cwd": tmp_path, "DITLAB_CACHE": str(tmp_path / "here")}
            done = run_process(*command, **places, **nodes.access)
    assert done.code == 0, done.err
    assert " finished: 100 steps" in done.out, done.out
    whole = sum(path.stat().st_size for path in store.glob("*.arrow"))
    fetched = Counter()
    for asked in server.ranges():
        if asked.key.endswith(".arrow"):
            fetched[asked.login] += asked.stop - asked.first
    shares = {login: num / whole for login, num in fetched.items()}
    assert set(shares) == {"one", "two"}
    assert all(0.45 < share <= 0.6 for share in shares.values()), shares
