"""Training data streamed from an object store beside a local copy: the wait of a step, bytes
fetched, the cache's size.

    python benchmarks/data/streaming.py [--runs 2]

An S3 server in a process of its own answers after 50 ms and sends 200 MB/s. A store of 4 GB is read
in the order `streams` through a cache of a twentieth of it, by steps that take 0.5 s each and
together half of the link; then the same from the local store. With `--runs 2`, two processes do so
at the same time and share the cache. Aims: a step waits at most 0.03 of its time; bytes fetched are
at most 1.1 of the store's; the cache's files never exceed their bound; the batches are the local
ones, by a SHA-256 over the epoch. Ratios of each aim are printed. Seen on two virtual cores that
others used, too: see docs/streaming.md.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.orders import open_order
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writer import write_batches
from ditlab.home import Home
from ditlab.storage.files import folder_size
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from support.orders import arrow_data

SHAPE, ROW = (3, 64, 64), 3 * 64 * 64
LATENCY, BANDWIDTH = 0.05, 200e6
STREAMS, BLOCK = 2, 4 << 20
WINDOWS = 0.84
"""Share of the cache that two windows take: the one in use and the next one."""
TESTS = Path(__file__).parents[2] / "tests"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--step", type=float, default=0.5, help="seconds of a simulated step")
    parser.add_argument(
        "--link", type=float, default=0.5, help="share of the link that the steps take"
    )
    parser.add_argument(
        "--cache", type=float, default=0.05, help="share of the store that the cache holds"
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="runs that share the cache, at the same time"
    )
    parser.add_argument(
        "--read", nargs=3, metavar=("PATH", "CACHE", "HOME"), help=argparse.SUPPRESS
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.read:
        path, cache, home = arguments.read
        print(json.dumps(read_epoch(path, int(cache), home, arguments, arguments.step)))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), arguments)
    for name, value in result.items():
        print(
            f"{name:44s} {value:,.4g}" if isinstance(value, float | int) else f"{name:44s} {value}"
        )
    if arguments.json:
        print(json.dumps(result))
    aims = [("wait / step", 0.03), ("bytes fetched / store", 1.1), ("largest cache / bound", 1.0)]
    for name, aim in aims:
        report(name, [float(result[name])], note=f"at most {aim:g}")


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, float | int | str]:
    store, num_bytes = folder / "bucket" / "store", int(arguments.gigabytes * 1e9)
    write_store(store, num_bytes // ROW)
    bound = int(arguments.cache * num_bytes)
    with object_server(folder) as (query, counts), watched(folder / "cache" / "blocks") as largest:
        runs = [
            start_reader(
                f"s3://bucket/store?{query}",
                bound,
                folder / f"home-{number}",
                folder / "cache",
                arguments,
            )
            for number in range(arguments.runs)
        ]
        found = [json.loads(run.communicate()[0].splitlines()[-1]) for run in runs]
        requests, sent = counts()
    local = read_epoch(str(store), bound, str(folder / "home"), arguments, 0.0)
    return {
        "steps": found[0]["steps"],
        "wait / step": max(run["wait"] for run in found)
        / max(1e-9, found[0]["steps"] * arguments.step),
        "longest wait, s": max(run["longest"] for run in found),
        "wait before the first step, s": max(run["first"] for run in found),
        "bytes fetched / store": sent / num_bytes,
        "requests": requests,
        "largest cache / bound": largest[0] / bound,
        "bound, MB": bound / 1e6,
        "batches are the copy's": str(all(run["sha256"] == local["sha256"] for run in found)),
        "processor of a run, s": max(run["processor"] for run in found),
        "processor of the copy, s": local["processor"],
    }


def write_store(path: Path, rows: int) -> None:
    """Write images that no two rows share, as fast as the disk takes them."""
    columns = {"image": Column(dtype="uint8", shape=SHAPE), "row": Column(dtype="int64", shape=())}
    noise = np.random.default_rng(0).integers(0, 256, (4096, *SHAPE), dtype=np.uint8)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, rows, len(noise)):
            num = min(len(noise), rows - first)
            noise[:, 0, 0, 0] += 1
            yield {"image": noise[:num], "row": np.arange(first, first + num)}

    write_batches(path, columns, batches(), name="streamed", source=Source(kind="benchmark"))


def read_epoch(
    path: str, cache: int, home: str, arguments: argparse.Namespace, step: float
) -> dict[str, float | int | str]:
    """Read an epoch as a step loop does, which computes for `step` seconds."""
    window = max(1, int(WINDOWS * cache / 2 / BLOCK / STREAMS))
    order = InterleavedOrderSpec(streams=STREAMS, window=window)
    access = "stream" if "://" in path else "auto"
    spec = arrow_data(path=path, access=access, cache=f"{cache}B", hold_out=0.0, order=order)
    batch = STREAMS * max(1, int(arguments.link * BANDWIDTH * arguments.step / ROW / STREAMS))
    data = open_data(spec, Home(Path(home)), verify=False, notify=lambda message: None)
    order_of_samples = open_order(order, data.train, batch, seed=0)
    steps = order_of_samples.batches_per_epoch
    digest, waits = hashlib.sha256(), []
    batches = WorkerBatches(data.train, ("image", "row"), order_of_samples, batch, range(1))
    begin, processor = time.monotonic(), time.process_time()
    with Loader(batches, 0, steps=steps, pin=False) as loader:
        for _ in range(steps):
            start = time.monotonic()
            (micro_batch,) = next(loader)
            waits.append(time.monotonic() - start)
            end = time.monotonic() + step
            for name in ("image", "row"):
                digest.update(micro_batch[name].numpy().reshape(-1).data)
            time.sleep(max(0.0, end - time.monotonic()))
    return {
        "sha256": digest.hexdigest(),
        "steps": steps,
        "first": waits[0],
        "wait": sum(waits[1:]),
        "longest": max(waits),
        "seconds": time.monotonic() - begin,
        "processor": time.process_time() - processor,
    }


def start_reader(
    uri: str, bound: int, home: Path, cache: Path, arguments: argparse.Namespace
) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--read", uri, str(bound), str(home)]
    command += ["--step", str(arguments.step), "--link", str(arguments.link)]
    environment = {**os.environ, **CREDENTIALS, "DITLAB_CACHE": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@contextmanager
def object_server(folder: Path) -> Iterator[tuple[str, "object"]]:
    """A slow S3 server in a process of its own: the query of its URIs, and a function for
    (requests, bytes sent).
    """
    command = [
        sys.executable,
        "-m",
        "support.object_store.server",
        str(folder),
        str(LATENCY),
        str(BANDWIDTH),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS
    )

    def counts() -> tuple[int, int]:
        process.stdin.write("\n")
        process.stdin.flush()
        requests, sent, _ = map(int, process.stdout.readline().split())
        return requests, sent

    try:
        port = int(process.stdout.readline())
        yield f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{port}", counts
    finally:
        process.communicate(timeout=20)


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Largest size of a folder's files meanwhile, in a list of one."""
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            largest[0] = max(largest[0], folder_size(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield largest
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
