"""Samples per second of the loader beside raw memory-map reads of the same bytes.

    python benchmarks/data/loader_throughput.py

A generated store of 60,000 rows of (1, 28, 28) uint8 is read in batches of 128: by the loader in
its shuffled order, with prefetch, by a consumer that does nothing else; as a contiguous slice and
copy of a NumPy memory map; as NumPy's indexing of that map with shuffled indices. The three take
turns, in another order every round, over whole epochs; ratios are of one round, and the median over
the rounds is what counts. Aim: the loader at 0.8 of slice and copy. Seen on two virtual cores,
otherwise idle: 0.77 to 0.82 of slice and copy, and random gather itself at about 1.0 of it. At
last, how long a consumer whose steps take a millisecond waits for the loader.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Measured, report
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.loading.order import FullOrder
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.data.stores.writer import write_batches

ROWS, SHAPE, BATCH = 60_000, (1, 28, 28), 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=4, help="epochs of each variant in a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates, waited = measure(Path(folder), arguments.rounds, arguments.epochs)
    result = summarise(rates) | {"waiting s/step": waited}
    for name, values in rates.items():
        print(f"{name:26s} median {statistics.median(values) / 1e6:6.2f} M samples/s", end="")
        print(f"   (rounds {min(values) / 1e6:.2f} to {max(values) / 1e6:.2f})")
    print(
        f"{'waiting for the loader':26s} mean   {waited * 1e6:6.1f} us a step, of a consumer "
        "that takes 1 ms a step"
    )
    measured = Measured(samples_per_second=statistics.median(rates["loader"]))
    for other in ("random gather", "slice and copy"):
        ratios = [mine / theirs for mine, theirs in zip(rates["loader"], rates[other], strict=True)]
        report(f"loader over {other}", ratios, measured)
    if arguments.json:
        print(json.dumps(result))


def measure(folder: Path, rounds: int, epochs: int) -> tuple[dict[str, list[float]], float]:
    """Samples per second by variant, one figure a round; a slow consumer's waiting, in seconds a
    step.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8)
    pixels.tofile(folder / "raw.bin")
    source = Source(kind="benchmark")
    columns = {"image": Column(dtype="uint8", shape=SHAPE)}
    write_batches(folder / "store", columns, [{"image": pixels}], name="b", source=source)
    store = Store.open(folder / "store")
    view = View(store, np.arange(ROWS), "benchmark")
    order = FullOrder(ROWS, BATCH, seed=0)
    raw = np.memmap(folder / "raw.bin", np.uint8, "r", shape=(ROWS, *SHAPE))
    steps = order.batches_per_epoch * epochs
    indices = order.batches(0, order.batches_per_epoch)
    # one for all rounds: the rate of a long run
    batches = Loader(WorkerBatches(view, ("image",), order, BATCH, range(1)), 0)

    def loader() -> None:
        for _ in itertools.islice(batches, steps):
            pass

    def slice_and_copy() -> None:
        for _ in range(epochs):
            for start in range(0, ROWS - BATCH + 1, BATCH):
                raw[start : start + BATCH].copy()

    def random_gather() -> None:
        for _ in range(epochs):
            for batch in indices:
                raw[batch]

    variants = {"loader": loader, "slice and copy": slice_and_copy, "random gather": random_gather}
    for run in variants.values():  # pages mapped, threads started
        run()
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        names = list(variants)
        for name in names[number % 3 :] + names[: number % 3]:
            rates[name].append(steps * BATCH / seconds(variants[name]))
    waited = waiting_seconds(batches, steps=300)
    batches.close()
    return rates, waited


def waiting_seconds(batches: Loader, steps: int) -> float:
    """Mean wait for the next step of a consumer that is busy for a millisecond a step."""
    waited = 0.0
    for _ in range(steps):
        time.sleep(1e-3)
        waited += seconds(lambda: next(batches))
    return waited / steps


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def summarise(rates: dict[str, list[float]]) -> dict[str, float]:
    """Medians of the rates, and of the loader's ratio to each other variant within a round."""
    result = {f"{name} samples/s": statistics.median(values) for name, values in rates.items()}
    for other in ("slice and copy", "random gather"):
        ratios = [mine / theirs for mine, theirs in zip(rates["loader"], rates[other], strict=True)]
        result[f"loader / {other}"] = statistics.median(ratios)
    return result


if __name__ == "__main__":
    main()
