"""Split of a store's rows into training and held-out rows."""

from collections.abc import Sequence

import numpy as np

from ditlab.data.loading.permutation import keyed_permutation
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.errors import UserError, nearest
from ditlab.spec.data import HoldOutClasses


def hold_out_rows(length: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) of a store of `length` rows, int64.

    The choice depends on the store's length alone, never on an experiment's seed: held-out figures of two experiments
    compare the same samples. A larger share holds out all that a smaller one does. Training rows are ascending;
    held-out rows stay shuffled, so that the first few are as good a sample as all. A share above 0 holds out at least
    one row.
    """
    order = keyed_permutation("ditlab.hold-out", length)
    num = max(1, round(length * share)) if share > 0 else 0
    return np.sort(order[num:]), order[:num]


RUN_ROWS = 16
"""Rows of a run in a small store."""
MOST_RUNS = 1000
"""Runs that a large store is cut into."""


def hold_out_runs(length: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) of a text store of `length` rows, int64, held out in runs of neighbours.

    Neighbouring rows share documents, phrases and, at their seam, a sentence. Of rows held out at random nearly every
    one would have both neighbours in training; of a run of n, two have one. A single run, as the last tenth, would be
    one place of a sorted corpus; so the rows are cut into equal runs, RUN_ROWS long or a MOST_RUNS-th of all, and runs
    are drawn until the share is full. All else is as in `hold_out_rows`.
    """
    runs = np.array_split(np.arange(length), min(MOST_RUNS, max(1, length // RUN_ROWS)))
    order = np.concatenate([runs[run] for run in keyed_permutation("ditlab.hold-out-runs", len(runs))])
    num = max(1, round(length * share)) if share > 0 else 0
    held_out = order[:num]
    return np.sort(order[num:]), held_out[keyed_permutation("ditlab.hold-out", num)]


def hold_out_groups(length: int, share: float, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) of a store of `length` rows, int64, held out in groups of `group` rows.

    Rows of one group, neighbours in the store, belong together, as the same digit in several colours does. The share
    is one of groups. All else is as in `hold_out_rows`.
    """
    assert length % group == 0, (length, group)
    train, held_out = (
        (groups[:, None] * group + np.arange(group)).reshape(-1) for groups in hold_out_rows(length // group, share)
    )
    return train, held_out[keyed_permutation("ditlab.hold-out", len(held_out))]


def hold_out_classes(store: AnyStore, classes: HoldOutClasses) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) of a store, int64; rows of the classes in `classes` are held out.

    Training rows are ascending; held-out rows are shuffled, by their number alone. Raises UserError for a column that
    holds no class indices, for an unknown class, and where no row is left to train on or none is held out.
    """
    knob, column = f"data.hold_out.column={classes.column}", store.columns.get(classes.column)
    indexed = [name for name, each in store.columns.items() if each.num_classes is not None and not each.shape]
    if column is None or classes.column not in indexed:
        problem = f"is no column of {store.path}" if column is None else f"holds no class indices in {store.path}"
        raise UserError(f"{knob} {problem}; columns of class indices there: {', '.join(indexed) or 'none'}.")
    classes_there: Sequence[int | str] = column.names or range(column.num_classes or 0)
    known = {name: number for number, name in enumerate(classes_there)}
    for value in classes.values:
        if value not in known:
            answer = nearest(str(value), column.names) if column.names else f"known: 0 to {len(known) - 1}"
            raise UserError(f"data.hold_out.values={value} is no class of {classes.column} in {store.path}; {answer}")
    values = f"data.hold_out.values={', '.join(map(str, classes.values))}"
    held = np.isin(store.tensor(classes.column).numpy(), [known[value] for value in classes.values])
    if held.all() or not held.any():
        problem = "holds out every row, so nothing is left to train on" if held.all() else "holds no row out"
        counts = column.statistics.class_counts or ()
        filled = [str(name) for name, number in known.items() if counts[number]]
        raise UserError(f"{values} {problem}; {classes.column} has rows of {', '.join(filled)} in {store.path}.")
    rows = np.flatnonzero(held)
    return np.flatnonzero(~held), rows[keyed_permutation("ditlab.hold-out", len(rows))]


def hold_out_evenly(lengths: Sequence[int], share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (training rows, held-out rows) of a store with buckets of these lengths, int64, the same share of each.

    The k-th of n rows of a bucket, in an order of the bucket's own, is placed at (k + 1/2)/n; the rows of lowest place
    are held out, in this order, so that every bucket has its share of the first few, too. All else is as in
    `hold_out_rows`.
    """
    total = sum(lengths)
    rows, places = np.empty(total, np.int64), np.empty(total)
    start = 0
    for bucket, length in enumerate(lengths):
        rows[start : start + length] = start + keyed_permutation(f"ditlab.hold-out/{bucket}", length)
        places[start : start + length] = (np.arange(length) + 0.5) / length
        start += length
    order = rows[np.lexsort((keyed_permutation("ditlab.hold-out", total), places))]
    num = max(1, round(total * share)) if share > 0 else 0
    return np.sort(order[num:]), order[:num]
