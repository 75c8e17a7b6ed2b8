"""Text imported on Ray: the store is that of an import on one machine, and a killed one goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ditlab.api.imports import import_data
from ditlab.data import import_blocks
from ditlab.spec.importing import TextOptions
from support.clusters.nodes import ray_nodes
from support.datasets.text_corpus import prose, write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK_BYTES = 40_000
OPTIONS = {"length": 128, "tokenizer": "bpe", "vocabulary": 400, "name": "set"}
DRIVER = """
import json, sys
from pathlib import Path
from ditlab.data import import_blocks
from ditlab.api.imports import import_data
from ditlab.spec.importing import TextOptions

source, out, address, block_bytes, options = sys.argv[1:]
import_blocks.LEAST_BYTES = int(block_bytes)
(imported,) = import_data("text", TextOptions(source=source, **json.loads(options)), Path(out), address)
print(imported.store.fingerprint)
"""


def test_two_nodes_and_a_kill_give_the_store_of_one_process(tmp_path, monkeypatch):
    source = write_corpus(
        tmp_path / "corpus", "jsonl", [prose(300 + number, seed=number) for number in range(600)]
    )
    monkeypatch.setattr(import_blocks, "LEAST_BYTES", BLOCK_BYTES)
    options = TextOptions(source=source, processes=1, **OPTIONS)
    expected = import_data("text", options, tmp_path / "expected")[0].store
    assert expected.manifest.text is not None and expected.manifest.text.documents == 600
    out = tmp_path / "stores"
    with ray_nodes(tmp_path / "cluster") as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        environment = {**os.environ, **nodes.access, "DITLAB_HOME": str(tmp_path / "home")}
        arguments = [str(source), str(out), nodes.address, str(BLOCK_BYTES), json.dumps(OPTIONS)]

        def start() -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", DRIVER, *arguments]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

        first = start()
        deadline = time.monotonic() + 120
        while not receipts(out) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert first.poll() is None, "it ended before it was killed"
        first.kill()
        first.communicate()
        second = start()
        printed, _ = second.communicate(timeout=180)
        assert second.returncode == 0 and printed.split()[-1] == expected.fingerprint


def receipts(out: Path) -> int:
    """Number of blocks that are done."""
    return len(list(out.glob(".importing/*/.*/receipts/*.json")))
