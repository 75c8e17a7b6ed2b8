"""Mixing of the order by streams: what a batch holds, beside that of a full shuffle.

    python benchmarks/data/order_mixing.py

Of stores of generated labels, sorted by class (the worst case) and unsorted, the batches of an
epoch are drawn in the full order and by streams, for several numbers of streams and windows. Three
figures of each order, as means over batches:

- classes: chi-squared of a batch's class counts against the store's shares, by its degrees of
  freedom. 1 is a random sample; above it, a batch holds too much of some classes; below it, batches
  are more even than random ones are.
- pairs of a block, of a shard: pairs of a batch's samples of one block (shard), by what a full
  shuffle has. 1 is none that chance does not bring.
- neighbours: correlation of the class counts of consecutive batches. 0 is none.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import report
from ditlab.data.loading.held_out import hold_out_blocks
from ditlab.data.loading.order import FullOrder, Order
from ditlab.data.stores.block_index import BlockLayout
from ditlab.data.stores.view import View
from ditlab_addons.streaming.sharded_order import ShardedOrder

CLASSES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4096, help="blocks of the store")
    parser.add_argument(
        "--block-rows", type=int, default=80, help="rows of a block: 80 are 4 MiB of 50 KB images"
    )
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    layout = BlockLayout(
        [64 * arguments.block_rows] * (arguments.blocks // 64), arguments.block_rows
    )
    result = {}
    for sorting, labels in labelings(layout):
        print(
            f"{layout.rows:,} rows in {layout.num_blocks:,} blocks and "
            f"{len(layout.shard_rows)} shards, {sorting}"
        )
        print("order              classes  pairs of a block  pairs of a shard  neighbours")
        baseline: dict[str, float] = {}
        for name, order in orders(layout, arguments.batch):
            figures = measure(order, layout, labels)
            baseline = baseline or figures
            shown = {
                key: figures[key] / (baseline[key] if key.startswith("pairs") else 1)
                for key in figures
            }
            print(
                f"{name:18s} {shown['classes']:7.3f}  {shown['pairs of a block']:16.3f}"
                f"  {shown['pairs of a shard']:16.3f}  {shown['neighbours']:10.3f}"
            )
            result[f"{sorting}, {name}"] = shown
    if arguments.json:
        print(json.dumps(result))
    worst = max(value["pairs of a shard"] for value in result.values())
    report("pairs of a shard, streams over full, at most", [worst])


def labelings(layout: BlockLayout) -> Iterator[tuple[str, np.ndarray]]:
    """Class of each row: in runs of a class, and at random."""
    in_runs = np.arange(layout.rows) * CLASSES // layout.rows
    yield "sorted by class", in_runs
    yield "unsorted", np.random.default_rng(0).permutation(in_runs)


def orders(layout: BlockLayout, batch: int) -> Iterator[tuple[str, Order]]:
    """Orders by their names, the full one first."""
    store = SimpleNamespace(parts=[SimpleNamespace(layout=layout)])
    view = View(store, hold_out_blocks(store, 0.0)[0], "benchmark")
    yield "full", FullOrder(layout.rows, batch, 0)
    for streams, window in itertools.product((1, 8, 64), (1, 4, 16, 64)):
        yield (
            f"{streams} streams, window {window}",
            ShardedOrder.from_view(view, batch, 0, streams, window),
        )


def measure(order: Order, layout: BlockLayout, labels: np.ndarray) -> dict[str, float]:
    """Return the figures of an epoch's batches."""
    rows = order.batches(0, order.batches_per_epoch)
    shares = np.bincount(labels, minlength=CLASSES) / len(labels)
    counts = np.stack([np.bincount(labels[batch], minlength=CLASSES) for batch in rows])
    expected = shares * order.batch_size
    blocks = layout.blocks_of(rows)
    centred = counts - expected
    scale = (centred**2).sum() * (len(centred) - 1) / len(centred)
    return {
        "classes": float(((counts - expected) ** 2 / expected).sum(axis=1).mean() / (CLASSES - 1)),
        "pairs of a block": pairs(blocks),
        "pairs of a shard": pairs(layout.shard_of(blocks)),
        "neighbours": float((centred[:-1] * centred[1:]).sum() / scale),
    }


def pairs(groups: np.ndarray) -> float:
    """Return the mean number of pairs of a batch (batches, batch_size) that lie in one group."""
    num = [
        int((counts * (counts - 1)).sum())
        for batch in groups
        for counts in [np.unique(batch, return_counts=True)[1]]
    ]
    return float(np.mean(num)) / 2


if __name__ == "__main__":
    main()
