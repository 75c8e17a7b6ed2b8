"""Imports on Ray: the store is that of an import on one machine, whatever is killed on the way."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ditlab.data.block_imports import plan
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.errors import UserError
from ditlab.interface.imports import import_data
from ditlab.spec.importing import ImagesOptions
from support.clusters.nodes import RayNodes, ray_nodes
from support.datasets.photographs import captioned_folder, encoded, smooth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BLOCK_BYTES = 30_000
KILLS = 10
DRIVER = """
import json, sys
from pathlib import Path
from ditlab.data.block_imports import plan
from ditlab.interface.imports import import_data
from ditlab.spec.importing import ImagesOptions

source, out, address, block_bytes, options = sys.argv[1:]
plan.LEAST_BYTES = int(block_bytes)
(imported,) = import_data("images", ImagesOptions(source=source, **json.loads(options)), Path(out), address or None)
print(imported.store.fingerprint)
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs that take about a tenth of a second each, one of them damaged and one without a caption."""
    folder = tmp_path_factory.mktemp("photographs")
    shapes = [(900, 1200), (1200, 900), (1000, 1000)]
    pictures = [encoded(smooth(*shape, seed), "JPEG") for seed, shape in enumerate(shapes)]
    files: dict[str, Any] = {f"{n:03d}.jpg": (pictures[n % 3], f"slope {n}") for n in range(150)}
    files["050.jpg"] = (pictures[0][:2000], "damaged")
    files["051.jpg"] = (pictures[0], None)
    return captioned_folder(folder / "source", files)


OPTIONS = {"resolution": 768, "patch": 16, "missing_caption": "skip", "name": "set"}


@pytest.fixture(scope="module")
def expected(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> BucketedStore:
    """The store of an import in this process that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LEAST_BYTES", BLOCK_BYTES)
        options = ImagesOptions(source=photographs, processes=1, **OPTIONS)
        (imported,) = import_data("images", options, tmp_path_factory.mktemp("expected"))
    store = imported.store
    assert isinstance(store, BucketedStore)
    return store


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """Two nodes of one core each."""
    with ray_nodes(tmp_path_factory.mktemp("cluster")) as nodes:
        nodes.start_head(num_cpus=1)
        nodes.add_node(num_cpus=1)
        yield nodes


@pytest.fixture
def start(cluster: RayNodes, photographs: Path, tmp_path: Path) -> Callable[[], "subprocess.Popen[str]"]:
    """Start an import on the cluster into `tmp_path/stores`."""
    arguments = [str(photographs), str(tmp_path / "stores"), cluster.address, str(BLOCK_BYTES), json.dumps(OPTIONS)]
    environment = {**os.environ, **cluster.access, "DITLAB_HOME": str(tmp_path / "home")}

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def receipts(tmp_path: Path) -> int:
    return len(list((tmp_path / "stores").glob("set/.partial-*/receipts/*.json")))


def test_an_import_that_is_killed_ten_times_gives_the_same_store(start, expected, cluster, tmp_path):
    """Eight times the import itself is killed, and twice a node with all that runs there."""
    chance = random.Random(5)
    done = []
    for kill in range(KILLS):
        driver = start()
        before = receipts(tmp_path)
        while receipts(tmp_path) <= before and driver.poll() is None:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1.0))
        assert driver.poll() is None, f"it ended before kill {kill}: {driver.communicate()}"
        if kill in (3, 7):
            cluster.nodes[-1].kill()
            cluster.add_node(num_cpus=1)
        driver.kill()
        driver.communicate()
        done.append(receipts(tmp_path))
    assert done == sorted(done) and done[-1] > done[0], done
    driver = start()
    out, log = driver.communicate(timeout=300)
    assert driver.returncode == 0, log
    assert out.split()[-1] == expected.fingerprint
    store = BucketedStore.open(tmp_path / "stores" / "set")
    store_files = sorted(path.name for path in (tmp_path / "stores" / "set").iterdir())
    assert not [name for name in store_files if name.startswith(".")]
    assert store.fingerprint == expected.fingerprint and store.manifest.facts == expected.manifest.facts
    assert store.manifest.facts == {"missing caption": 1, "unreadable": 1}


def test_a_node_that_is_lost_costs_no_image(start, expected, cluster, tmp_path):
    driver = start()
    while not receipts(tmp_path) and driver.poll() is None:
        time.sleep(0.05)
    cluster.nodes[-1].kill()
    out, log = driver.communicate(timeout=300)
    assert driver.returncode == 0, log
    assert out.split()[-1] == expected.fingerprint
    cluster.add_node(num_cpus=1)


def test_mistakes_come_back_as_one_sentence(cluster, photographs, tmp_path, monkeypatch):
    for name, value in cluster.access.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    options = ImagesOptions(source=photographs, **{**OPTIONS, "missing_caption": "refuse"})
    with pytest.raises(UserError, match=r"^051\.jpg has no caption; write one into a \.txt file.*skip\.$"):
        import_data("images", options, tmp_path / "stores", cluster.address)
    assert not (tmp_path / "stores").exists()
