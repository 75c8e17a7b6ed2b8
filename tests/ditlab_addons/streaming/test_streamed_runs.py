"""Runs whose data are streamed: the numbers of a copied store, and one sentence where the store
goes away.
"""

import numpy as np
import pytest

from ditlab.data.loading import loader
from ditlab.data.stores.manifest import Column
from ditlab.home import Home
from ditlab.tracking.history import metric_history
from support.clusters.unbroken import checkpoint_of
from support.datasets.writing import written
from support.object_store.server import object_server
from support.trainings.workers import same_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPEC = """\
name: streamed
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2, num_classes: 5}
data: {kind: arrow, path: "PATH", access: ACCESS, cache: 1MiB, order: {kind: interleaved, streams: 4, window: 2}}
batch: {size: 32, micro: 16}
training: {steps: 60}
checkpoint: {every: 20}
evaluation: {every: 30, samples: 0, limit: 64}
tracking: {system_metrics: false, every: 1}
"""


@pytest.fixture
def server(tmp_path):
    """A server of a store of 1,200 images in 60 blocks."""
    columns = {
        "image": Column(dtype="uint8", shape=(1, 8, 8), value_range=(0, 255)),
        "label": Column(dtype="int64", num_classes=5),
    }
    generator = np.random.default_rng(0)
    path = tmp_path / "bucket" / "store"
    batch = {
        "image": generator.integers(0, 256, (1200, 1, 8, 8), dtype=np.uint8),
        "label": generator.integers(0, 5, 1200),
    }
    written(path, columns, batch, rows_per_block=20, rows_per_shard=200)
    with object_server(tmp_path) as running:
        yield running


def spec_of(tmp_path, server, access):
    path = tmp_path / f"{access}.yaml"
    text = SPEC.replace("PATH", f"s3://bucket/store?{server.query}").replace("ACCESS", access)
    path.write_text(text, encoding="utf-8")
    return path


def losses(home, run_id):
    values = metric_history(Home(home).run(run_id))["train/loss"].values
    return list(values.tolist())


def test_an_outage_ends_the_run_in_one_sentence_and_a_resumed_run_ends_in_the_same_bits(
    server, ditlab, home, tmp_path, monkeypatch
):
    def train(access, *arguments):
        spec = spec_of(tmp_path, server, access)
        return ditlab("train", spec, "--local", "--json", *arguments)

    copied = train("copy").ok()
    whole = losses(home, copied.json["run_id"])
    assert len(whole) == 60 and copied.json["metrics"]["train/data_wait"] >= 0.0
    monkeypatch.setenv("DITLAB_STORAGE_WAIT", "0.5")
    monkeypatch.setattr(loader, "BLOCK_BYTES", 1)  # four steps are gathered ahead, and not all
    before = len(server.ranges())
    server.fault = lambda asked: "500" if len(server.ranges()) > before + 50 else None
    broken = train("stream")
    assert broken.code == 1, broken.err
    (line,) = [line for line in broken.err.splitlines() if "has not given shard-" in line]
    assert "resume the run." in line and "Traceback" not in broken.err
    run_id = next(
        path.name for path in (home / "train").iterdir() if path.name != copied.json["run_id"]
    )
    journal = (home / "train" / run_id / "journal.jsonl").read_text(encoding="utf-8")
    assert '"ditlab.failure":"storage_unreachable"' in journal
    done = losses(home, run_id)
    assert 0 < len(done) < 60 and done == whole[: len(done)]
    server.fault = lambda asked: None
    train("stream", "--resume", run_id).ok()
    assert losses(home, run_id) == whole
    assert same_state(checkpoint_of(home, run_id), checkpoint_of(home, copied.json["run_id"]))
