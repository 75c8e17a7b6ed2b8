"""Rows of training: each once in an epoch, in an order of the epoch's own, and none of them held
out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ditlab.data.loading.order import Order
from ditlab.data.splits import DataSplits
from ditlab_addons.check.prove.findings import Findings

LEAST_ROWS = 10
"""Rows of an epoch whose order two epochs share by chance less than once in three million times."""
MOST_ORDERED = 2**20
"""Samples of an epoch whose order is compared."""
MOST_ROWS = 2**22
"""Training rows that are looked for among the held-out ones."""


def compare_order(orders: Sequence[Order], findings: Findings) -> None:
    """Compare two epochs of each order: they differ, and neither holds a row twice."""
    for number, order in enumerate(orders):
        part = ""
        if len(orders) > 1:
            part = f" of part {number + 1}"
        first = rows_of_epoch(order, 0)
        second = rows_of_epoch(order, 1)
        wrong = []
        for epoch, rows in enumerate((first, second), start=1):
            twice = len(rows) - len(np.unique(rows))
            if twice:
                wrong.append(f"epoch {epoch} holds {twice} of {len(rows)} samples twice")
        findings.same("order of epochs", f"each row once in an epoch{part}", wrong)
        if len(first) < LEAST_ROWS:
            findings.unchecked.append(
                f"whether epochs{part} differ in their order, as they have {len(first)} samples"
            )
            continue
        wrong = []
        if (first == second).all():
            wrong.append("two epochs have one order")
        findings.same("order of epochs", f"epochs differ{part}", wrong)


def rows_of_epoch(order: Order, epoch: int) -> np.ndarray:
    """Return the rows of an epoch (from 0) in their order, (num,) int64: those of whole batches, at
    most MOST_ORDERED or one batch."""
    most = max(1, MOST_ORDERED // order.batch_size)
    batches = min(order.batches_per_epoch, most)
    return order.batches(epoch * order.batches_per_epoch, batches).reshape(-1)


def data_parts(data: DataSplits) -> dict[str, DataSplits]:
    """Return the parts of a mixture by name; other data alone under the name ""."""
    if data.mixture is None:
        return {"": data}
    return dict(data.mixture.parts)


def compare_split(data: DataSplits, findings: Findings) -> None:
    """Compare the rows of training with the held-out ones: none is both."""
    for name, part in data_parts(data).items():
        if part.train.store.fingerprint != part.held_out.store.fingerprint:
            continue  # the held-out rows are of another store
        held_out = part.held_out.rows[np.arange(min(len(part.held_out), MOST_ROWS))]
        train = part.train.rows[np.arange(min(len(part.train), MOST_ROWS))]
        both = np.intersect1d(held_out, train)
        wrong = []
        if len(both):
            wrong.append(f"row {both[0]} is in both")
        what = "none is trained on"
        if data.mixture is not None:
            what = f"none is trained on of part {name}"
        findings.same("held-out rows", what, wrong)
