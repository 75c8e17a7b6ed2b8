"""The loader beside plain torch, litdata and webdataset: samples a second, first batch, resume at
90% of an epoch.

    python benchmarks/data/loader_peers.py [--rows 1300000] [--rounds 7]

The same rows of (1, 28, 28) uint8, 1 GB, are written in the format of each. Each side takes
shuffled batches of 128 and maps them to float32 in -1 to 1, from a new iterator in every turn; of
first batches a round takes the median of nine turns. Each is shuffled as it does it: ours beside
plain torch (numpy.memmap, RandomSampler, a batch by one index) in the full order; beside litdata
(chunks, and rows in them) and webdataset (shards, and a buffer of 1,000) in the order of streams.
Neither peer of these takes worker processes. Peers that are not installed are left out; `pip
install --no-deps litdata==0.2.76 lightning-utilities obstore tifffile` leaves out the torchvision
that litdata names, and does not need here.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("", "tests"))

from benchmarks.rounds import Timed, beside, report_beside, timed
from ditlab.data.loading.batches import to_device
from ditlab.data.loading.loader import Loader, WorkerBatches
from ditlab.data.orders import open_order
from ditlab.data.splits import open_data
from ditlab.data.stores.manifest import Column, Source
from ditlab.data.stores.writer import write_batches
from ditlab.home import Home
from ditlab.spec.data import FullOrderSpec, OrderSpec
from ditlab_addons.streaming.interleaved_order import InterleavedOrderSpec
from ditlab_models.contract import BatchField
from support.orders import arrow_data

SHAPE, BATCH = (1, 28, 28), 128
FIELD = BatchField("image", SHAPE, "float32", value_range=(-1, 1))
OPENINGS = 9
"""First batches of a round and side, whose median counts: a turn of 40 ms is at the mercy of
whatever else wakes.
"""
PIECE = 20_000
"""Rows that are written at a time, and of a shard of webdataset."""
Batches = Iterator[Tensor]
ORDERS: dict[str, OrderSpec] = {"full": FullOrderSpec(), "streams": InterleavedOrderSpec(streams=1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_300_000)
    parser.add_argument(
        "--batches", type=int, default=10_000, help="batches of a turn; fewer beside slower peers"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name), options.rows, options.batches, options.rounds)


def compare(folder: Path, rows: int, batches: int, rounds: int) -> None:
    write_store(folder / "store", rows)
    write_plain(folder / "raw.bin", rows)
    ours = {name: Ours(folder / "store", order) for name, order in ORDERS.items()}
    plain = PlainTorch(folder / "raw.bin", rows)
    # At a tenth of a second a turn, whatever else ran decided.
    peers: dict[str, tuple[str, Callable[[], Batches], int]] = {
        f"torch {version('torch')}": ("full", plain.batches, batches)
    }
    lit: LitData | None = None
    if importlib.util.find_spec("litdata"):
        lit = LitData(folder / "litdata", rows)
        peers[f"litdata {version('litdata')}"] = "streams", lit.batches, batches // 40
    if importlib.util.find_spec("webdataset"):
        write_tars(folder, rows)
        peers[f"webdataset {version('webdataset')}"] = (
            "streams",
            lambda: tar_batches(folder, rows),
            batches // 400,
        )

    os.sync()  # or the system would write 4 GB to the disk beside the first rows

    def take(source: Callable[[], Batches], num: int) -> Callable[[], None]:
        return lambda: consume(source(), num)

    for threads in (1, 2):
        torch.set_num_threads(threads)
        # the fastest one
        for peer, (order, source, num) in list(peers.items())[: None if threads == 1 else 1]:
            row = f"loader, {order} order, {threads} {'thread' if threads == 1 else 'threads'}"
            mine = take(ours[order].batches, num)
            beside(row, peer, mine, take(source, num), at_least=1.2, rounds=rounds)
    torch.set_num_threads(1)
    for order, spec in ORDERS.items():
        compare_first(
            f"first batch, {order} order",
            f"torch {version('torch')}",
            partial(lambda spec: Ours(folder / "store", spec).batches(), spec),
            lambda: PlainTorch(folder / "raw.bin", rows).batches(),
            rounds,
        )
    if lit is not None:
        at = rows // BATCH * 9 // 10 * BATCH
        compare_first(
            "resume at 90% of an epoch",
            f"litdata {version('litdata')}",
            lambda: Ours(folder / "store", ORDERS["streams"]).batches(at),
            lambda: LitData(folder / "litdata").batches(at),
            rounds,
        )


def compare_first(
    row: str, peer: str, ours: Callable[[], Batches], theirs: Callable[[], Batches], rounds: int
) -> None:
    """Report the seconds to the first batch, from opening the data on; what ends the iterator is
    left out.
    """
    took: tuple[list[Timed], list[Timed]] = ([], [])
    for _ in range(rounds + 1):
        turns: tuple[list[Timed], list[Timed]] = ([], [])
        for turn in range(OPENINGS):
            for side in (turn % 2, 1 - turn % 2):
                opened: list[Batches] = []

                def first(side: int = side, opened: list[Batches] = opened) -> None:
                    opened.append((ours, theirs)[side]())
                    assert next(opened[0]).shape == (BATCH, *SHAPE)

                turns[side].append(timed(first))
                del opened
        for side in (0, 1):
            took[side].append(sorted(turns[side])[OPENINGS // 2])
    report_beside(row, peer, took[0][1:], took[1][1:], at_most=1.0)


def consume(batches: Batches, num: int) -> None:
    for batch in itertools.islice(batches, num):
        assert batch.shape == (BATCH, *SHAPE) and batch.dtype == torch.float32


def pieces(rows: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    for start in range(0, rows, PIECE):
        yield generator.integers(0, 256, (min(PIECE, rows - start), *SHAPE), dtype=np.uint8)


class Ours:
    """A store of ours, hashed piece by piece as a run reads it."""

    def __init__(self, path: Path, order: OrderSpec) -> None:
        spec = arrow_data(path=str(path), order=order, hold_out=0)
        self._data = open_data(spec, Home(path.parent / "home"))
        self._order = open_order(order, self._data.train, BATCH, 0)

    def batches(self, position: int = 0) -> Batches:
        with Loader(
            WorkerBatches(self._data.train, ("image",), self._order, BATCH, range(1)), position
        ) as loader:
            for (batch,) in loader:
                yield to_device(batch, [FIELD], self._data.train.columns, "cpu")["image"]


def write_store(path: Path, rows: int) -> None:
    columns = {"image": Column(dtype="uint8", shape=SHAPE, value_range=(0, 255))}
    write_batches(
        path,
        columns,
        ({"image": each} for each in pieces(rows)),
        name="b",
        source=Source(kind="benchmark"),
    )


def scaled(batch: Tensor) -> Tensor:
    return batch.to(torch.float32).div_(127.5).sub_(1)


class PlainTorch(Dataset):
    """A memory map, read a batch at a time."""

    def __init__(self, path: Path, rows: int) -> None:
        self._rows = np.memmap(path, np.uint8, "r", shape=(rows, *SHAPE))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, indices: Any) -> Tensor:
        return torch.from_numpy(self._rows[indices])

    def batches(self) -> Batches:
        sampler = BatchSampler(RandomSampler(self), BATCH, drop_last=True)
        return map(scaled, DataLoader(self, sampler=sampler, batch_size=None))


def write_plain(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        for piece in pieces(rows):
            file.write(piece.tobytes())


class LitData:
    """litdata's streaming data set in a folder, in chunks as large as our windows; written where
    `rows` are given.
    """

    def __init__(self, path: Path, rows: int = 0) -> None:
        from litdata import StreamingDataset
        from litdata.streaming.writer import BinaryWriter

        if rows:
            writer = BinaryWriter(str(path), chunk_bytes=64 * 2**20)
            for number, image in enumerate(
                itertools.chain.from_iterable(map(torch.from_numpy, pieces(rows)))
            ):
                writer.add_item(number, image)
            writer.done()
            writer.merge(1)
        self._data = StreamingDataset(str(path), shuffle=True, drop_last=True)

    def batches(self, position: int = 0) -> Batches:
        from litdata import StreamingDataLoader

        loader = StreamingDataLoader(self._data, batch_size=BATCH, num_workers=0)
        if position:
            iter(self._data)
            state = {"dataset": self._data.state_dict(position, 0, BATCH), "current_epoch": 1}
            loader.load_state_dict(
                state | {"num_samples_yielded": position, "latest_worker_idx": 0}
            )
        return map(scaled, loader)


def write_tars(folder: Path, rows: int) -> None:
    from webdataset import TarWriter

    for number, piece in enumerate(itertools.islice(pieces(rows), 4)):
        with TarWriter(str(folder / f"{number}.tar")) as writer:
            for row, image in enumerate(piece):
                writer.write({"__key__": f"{row:06}", "bin": image.tobytes()})


def tar_batches(folder: Path, rows: int) -> Batches:
    """Return webdataset's batches: of four shards, named as often as there are rows."""
    import webdataset

    files = [str(each) for each in folder.glob("*.tar")]
    shards = [files[number % len(files)] for number in range(-(-rows // PIECE))]
    images = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .map(image_of)
        .batched(BATCH)
    )
    batches: Iterable[np.ndarray] = webdataset.WebLoader(images, batch_size=None, num_workers=0)
    return (scaled(torch.as_tensor(each)) for each in batches if len(each) == BATCH)


def image_of(sample: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(sample["bin"], np.uint8).reshape(SHAPE)


if __name__ == "__main__":
    main()
