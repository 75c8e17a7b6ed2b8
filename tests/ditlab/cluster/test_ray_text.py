"""Text imported on Ray: the store is that of an import on one machine, and a killed one goes on."""

import pytest

from ditlab.api.imports import import_data
from ditlab.spec.importing import TextOptions
from support.clusters.killed_import import ImportOnNodes
from support.clusters.nodes import ray_nodes
from support.datasets.text_corpus import prose, write_corpus

LIMITS = {"ditlab.data.import_blocks.LEAST_BYTES": 40_000}
OPTIONS = {"length": 128, "tokenizer": "bpe", "vocabulary": 400, "name": "set"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_and_a_kill_give_the_store_of_one_process(tmp_path, monkeypatch):
    texts = [prose(300 + number, seed=number) for number in range(600)]
    source = write_corpus(tmp_path / "corpus", "jsonl", texts)
    for place, value in LIMITS.items():
        monkeypatch.setattr(place, value)
    options = TextOptions(source=source, processes=1, **OPTIONS)
    expected = import_data("text", options, tmp_path / "expected")[0].store
    assert expected.manifest.text.documents == 600
    with ray_nodes(tmp_path / "cluster") as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        importing = ImportOnNodes("text", str(source), tmp_path, nodes, LIMITS, OPTIONS)
        importing.kill()
        assert importing.end() == expected.fingerprint
