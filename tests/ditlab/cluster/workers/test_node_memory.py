"""A node whose memory is used up: Ray's own memory monitor ends the worker, and the run goes on."""

import json
import os
import re

import psutil
import pytest

from support import databases
from support.clusters.faults import journal_of
from support.clusters.ray_instance import PLUGINS
from support.command import run_process
from support.trainings.workers import TINY

# bytes free of what is taken by other work when the run starts: Ray and a worker take 1 GiB
ROOM = 3 << 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_fills_its_node_goes_on_with_half_the_micro_batch(
    tmp_path, mlflow_template, monkeypatch
):
    """Passes of 16 samples take 5 GiB of the host, those of 8 take none."""
    home = databases.seed(tmp_path / "home", mlflow_template)
    spec = tmp_path / "spec.yaml"
    fault = {"kind": "host", "step": 5, "rank": 0, "above": 8, "mib": 5 << 10}
    spec.write_text(
        json.dumps(
            {
                **TINY,
                "model": {**TINY["model"], "family": "breaking"},
                "objective": {"fault": fault},
            }
        )
    )
    memory = psutil.virtual_memory()
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = run_process(
        "train",
        spec,
        home=home,
        timeout=500,
        PYTHONPATH=path,
        RAY_memory_usage_threshold=f"{(memory.total - memory.available + ROOM) / memory.total:.4f}",
    ).ok()
    (said,) = re.findall(r"node out of memory: a node's memory is nearly used up;.*", done.err)
    assert re.search(r"this run's workers use the most, [\d.]+ GiB;", said)
    assert said.endswith("going on from step 3 with micro-batches of 8, the batch stays the same.")
    text = journal_of(home, "tiny")
    assert all(f'"step":{step},' in text for step in range(1, 7)) and "node_out_of_memory" in text
