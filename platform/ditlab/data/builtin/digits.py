"""Handwritten 8x8 digits that scikit-learn carries, 1,797 of them (UCI: Alpaydin and Kaynak 1998)."""

from pathlib import Path

import numpy as np

from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source
from ditlab.data.stores.store import Store
from ditlab.data.stores.written import WrittenStore, write_store
from ditlab.home import Home

STORE_NAME = "digits"

COLUMNS = {
    "image": Column(
        dtype="uint8", shape=(1, 8, 8), value_range=(0, 16), unit="pixel intensity", description="channel, row, column"
    ),
    "label": Column(dtype="int64", num_classes=10, unit="class index", description="the digit"),
}


def open_digits(home: Home, verify: bool = True) -> Store:
    """Open the digits under `home.stores`, written at their first use.

    Two processes may write them at once: they write the same files, and renames are atomic.
    """
    path = home.stores / STORE_NAME
    if not (path / MANIFEST_NAME).exists():
        write_digits(home.ensure().stores)
    return Store.open(path, verify)


def write_digits(out: Path) -> WrittenStore:
    """Write `out/digits`: image uint8 (1, 8, 8) in [0, 16], label int64."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    batch = {
        "image": digits.images.astype(np.uint8)[:, None],  # whole numbers held as float64
        "label": digits.target.astype(np.int64),
    }
    source = Source(
        kind="digits",
        citation="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI (1998), test part",
        license="CC BY 4.0 (UCI Machine Learning Repository)",
        note="embedded in scikit-learn (sklearn.datasets.load_digits)",
    )
    return write_store(
        out / STORE_NAME,
        COLUMNS,
        [batch],
        name=STORE_NAME,
        description="1,797 handwritten digits, 8x8 grey values",
        source=source,
    )
