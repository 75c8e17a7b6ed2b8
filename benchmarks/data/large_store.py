"""Start-up on a store of many small rows in the order of streams, beside a store with a tenth of
the rows.

    python benchmarks/data/large_store.py [--rows 100000000]

Writes two stores of 64-byte rows (a shard of real blocks, named many times over: 320 MB for 100
million rows). One fresh process opens the data and takes the first batch; another one opens them
and resumes at the last batch of an epoch, and takes the next epoch's first, too. Printed: processor
seconds, and memory beyond that of the imports (torch and DiTLab); pages of the mapped store apart,
which are those of a few windows and which the system takes back at will. Medians over rounds. Aims:
all three under a second of processor and 200 MB, and less than 10% more for ten times the rows.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report

STREAMS, WINDOW, BATCH = 4, 2, 256
SHARDS = 20
BLOCKS = 1420
"""Blocks of the larger store: 4.5 MB each at 100 million rows. Streams of both stores are whole
windows.
"""
MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(start_up(Path(arguments.child[0]), arguments.child[1] == "resume")))
        return
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"all": arguments.rows, "a tenth": arguments.rows // 10}
        stores = {name: Path(folder, name.replace(" ", "-")) for name in sizes}
        for name, rows in sizes.items():
            write_store(stores[name], rows // SHARDS, max(1, arguments.rows // BLOCKS))
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sizes}
        for number in range(arguments.rounds):
            for name in list(sizes)[:: 1 if number % 2 else -1]:
                rounds[name].append(measured(stores[name]))
        for name, found in rounds.items():
            results[name] = {key: statistics.median(one[key] for one in found) for key in found[0]}
    for name, values in results.items():
        print(f"{sizes[name]:,} rows ({name})")
        for key, value in values.items():
            print(f"  {key:34s} {value:8.3f}")
    growth = {
        key: results["all"][key] / max(results["a tenth"][key], 1e-9) for key in results["all"]
    }
    if arguments.json:
        print(json.dumps(results))
    for name in ("processor seconds", "own memory, MB", "memory, MB"):
        report(f"ten times the rows, {name}", [growth[name]])


def write_store(path: Path, shard_rows: int, block_rows: int) -> None:
    """Write a store of SHARDS shards of random rows, which are the same file."""
    from ditlab.data.stores import writer
    from ditlab.data.stores.manifest import Column, Source

    columns = {
        "image": Column(dtype="uint8", shape=(1, 7, 8), value_range=(0, 255)),
        "label": Column(dtype="int64", num_classes=10),
    }
    path.mkdir(parents=True)
    generator = np.random.default_rng(0)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, shard_rows, 100_000):
            num = min(100_000, shard_rows - start)
            image = generator.integers(0, 256, (num, 1, 7, 8), dtype=np.uint8)
            yield {"image": image, "label": image[:, 0, 0, 0].astype(np.int64) % 10}

    with patch.object(writer, "SHARD_BYTES", 2**62):
        (shard,) = writer.write_shards(path, "rows", columns, batches(), block_rows)
    writer.finish_store(
        path,
        columns,
        [shard] * SHARDS,
        name="large",
        description="",
        source=Source(kind="benchmark"),
    )


def measured(store: Path) -> dict[str, float]:
    """Return the figures of two fresh processes."""
    first, resumed = (in_process(store, kind) for kind in ("first", "resume"))
    return {
        "opening, seconds": first["opening"],
        "first batch, seconds": first["batch"],
        "resume at an epoch's end, seconds": resumed["batch"],
        "processor seconds": first["opening"] + first["batch"] + resumed["batch"],
        "own memory, MB": max(first["own"], resumed["own"]),
        "the store's pages, MB": max(first["pages"], resumed["pages"]),
        "memory, MB": max(first["own"] + first["pages"], resumed["own"] + resumed["pages"]),
    }


def in_process(store: Path, kind: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(store), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def start_up(store: Path, resumes: bool) -> dict[str, float]:
    """Open the data and take the first batch of the run, or the last one of its first epoch."""
    import torch

    from ditlab.data.loading.loader import Loader, WorkerBatches
    from ditlab.data.orders import open_order
    from ditlab.data.splits import open_data
    from ditlab.home import Home
    from support.orders import arrow_data

    torch.zeros(1)
    spec = arrow_data(
        path=str(store), order={"kind": "interleaved", "streams": STREAMS, "window": WINDOW}
    )
    home = Home(store.parent / "home")
    own, pages = memory()
    begin = time.process_time()
    data = open_data(spec, home)
    order = open_order(spec.order, data.train, BATCH, 0)
    opened = time.process_time()
    batches = WorkerBatches(data.train, ("image", "label"), order, BATCH, range(1))
    position = (order.batches_per_epoch - 1) * BATCH if resumes else 0
    with Loader(batches, position, steps=2 if resumes else 1) as loader:
        assert len(list(loader)) == (2 if resumes else 1)
    ended = time.process_time()
    own_then, pages_then = memory()
    figures = {"opening": opened - begin, "batch": ended - opened}
    return figures | {"own": (own_then - own) / MB, "pages": (pages_then - pages) / MB}


def memory() -> tuple[int, int]:
    """Return this process's resident bytes: its own, and those of mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, pages, shared = (
        int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile", "RssShmem")
    )
    return own + shared, pages


if __name__ == "__main__":
    main()
