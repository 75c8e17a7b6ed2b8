"""GET's stores imported on Ray: the store is that of one process, and a killed import goes on."""

import numpy as np
import pytest

from ditlab.api.imports import import_data
from ditlab_addons.genome.options import GetOptions
from support.clusters.killed_import import ImportOnNodes
from support.clusters.nodes import ray_nodes
from support.datasets.get_sources import GetSource, peaks_of, scores
from support.object_store.server import object_server

LIMITS = dict.fromkeys(
    (
        "ditlab.data.import_blocks.LEAST_BYTES",
        "ditlab_addons.genome.get_import.WHOLE_BYTES",
        "ditlab.data.stores.block_index.BLOCK_BYTES",
    ),
    100_000,
)
"""Sizes under which the store has many blocks."""
OPTIONS = {"regions": 20, "cell_type": "T", "name": "set"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nodes_that_read_an_object_store_give_the_store_of_one_process(tmp_path, monkeypatch):
    """20,000 peaks and 60 motifs."""
    draws = np.random.default_rng(2).random(20_000)
    motifs = [f"M{number}" for number in range(60)]
    peaks = peaks_of({"chr2": 11_000, "chr10": 9_000})
    source = GetSource(peaks, motifs, scores(20_000, 60), {"T": np.where(draws < 0.3, 0, draws)})
    path = source.write(tmp_path / "bucket" / "source.zarr", chunk=200)
    for place, value in LIMITS.items():
        monkeypatch.setattr(place, value)
    options = GetOptions(source=path, processes=1, **OPTIONS)
    expected = import_data("get", options, tmp_path / "expected")[0].store
    assert len(list(expected.path.glob("block-*.arrow"))) > 5
    with object_server(tmp_path) as server, ray_nodes(tmp_path / "cluster") as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        uri = f"s3://bucket/source.zarr?{server.query}"
        importing = ImportOnNodes("get", uri, tmp_path, nodes, LIMITS, OPTIONS)
        for _ in range(3):
            importing.kill()
        assert importing.end() == expected.fingerprint
