"""GET's stores imported by several processes and on Ray: the store is that of one process, and a
killed one goes on.
"""

import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from ditlab.api.imports import import_data
from ditlab.data import import_blocks
from ditlab.data.stores import block_index
from ditlab_addons.genome import get_import
from ditlab_addons.genome.options import GetOptions
from support.clusters.nodes import ray_nodes
from support.datasets.get_sources import GetSource, peaks_of, scores
from support.object_store.server import object_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BLOCK_BYTES = 100_000
OPTIONS = {"regions": 20, "cell_type": "T", "name": "set"}
DRIVER = """
import json, sys
from pathlib import Path
from ditlab.data import import_blocks
from ditlab_addons.genome import get_import
from ditlab.data.stores import block_index
from ditlab.api.imports import import_data
from ditlab_addons.genome.options import GetOptions

if __name__ == "__main__":
    source, out, address, block_bytes, options = sys.argv[1:]
    import_blocks.LEAST_BYTES = get_import.WHOLE_BYTES = block_index.BLOCK_BYTES = int(block_bytes)
    (imported,) = import_data("get", GetOptions(source=source, **json.loads(options)), Path(out), address or None)
    print(imported.store.fingerprint)
"""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """Folder of a bucket with a store of 20,000 peaks and 60 motifs."""
    folder = tmp_path_factory.mktemp("objects")
    draws = np.random.default_rng(2).random(20_000)
    motifs = [f"M{number}" for number in range(60)]
    peaks = peaks_of({"chr2": 11_000, "chr10": 9_000})
    source = GetSource(peaks, motifs, scores(20_000, 60), {"T": np.where(draws < 0.3, 0, draws)})
    source.write(folder / "bucket" / "source.zarr", chunk=200)
    return folder


@pytest.fixture
def expected(bucket, tmp_path, monkeypatch):
    """Fingerprint of an import in this process; the others are to have many blocks as well."""
    monkeypatch.setattr(import_blocks, "LEAST_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(get_import, "WHOLE_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(block_index, "BLOCK_BYTES", BLOCK_BYTES)
    options = GetOptions(source=bucket / "bucket" / "source.zarr", processes=1, **OPTIONS)
    store = import_data("get", options, tmp_path / "expected")[0].store
    assert len(list(store.path.glob("block-*.arrow"))) > 5
    return store.fingerprint


class Import:
    """Import in a process of its own."""

    def __init__(self, source, folder, address="", **environment):
        self.folder = folder
        (folder / "driver.py").write_text(DRIVER)  # a file: processes that are spawned import it
        arguments = [source, str(folder / "stores"), address, str(BLOCK_BYTES), json.dumps(OPTIONS)]
        self._command = [sys.executable, str(folder / "driver.py"), *arguments]
        self._environment = {**os.environ, **environment, "DITLAB_HOME": str(folder / "home")}

    def start(self):
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def receipts(self):
        return len(list((self.folder / "stores").glob(".importing/set/.partial-*/receipts/*.json")))

    def kill_and_end(self, kills, chance):
        """Kill the import at random moments, each after one more block, then let it end; returns
        the fingerprint.
        """
        done = 0
        for _ in range(kills):
            running, before = self.start(), self.receipts()
            while self.receipts() <= before and running.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.03))
            if running.poll() is not None:
                break  # a fast machine ends between two kills
            assert self.receipts(), "whole blocks stay"
            done += 1
            running.kill()
            running.communicate()
        assert done >= 2, "it ended before it could be killed twice"
        running = self.start()
        printed, _ = running.communicate(timeout=300)
        assert running.returncode == 0
        left = [
            path.name for path in (self.folder / "stores").rglob("*") if path.name.startswith(".")
        ]
        assert left == []
        return printed.split()[-1]


def test_two_nodes_that_read_an_object_store_give_the_store_of_one_process(
    bucket, expected, tmp_path
):
    with object_server(bucket) as server, ray_nodes(tmp_path / "cluster") as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        killed = Import(
            f"s3://bucket/source.zarr?{server.query}", tmp_path, nodes.address, **nodes.access
        )
        assert killed.kill_and_end(3, random.Random(2)) == expected
