"""From a spec's `data` to rows: which store, which rows train, which are held out."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from denoisers.contract import TextCodec
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.manifest import MANIFEST_NAME
from ditlab.data.planted import PlantedModules
from ditlab.data.planted_store import last_chromosomes, open_motifs
from ditlab.data.python_docs import open_python_docs
from ditlab.data.region_windows import WHOLE_CHROMOSOMES, windows_overlap
from ditlab.data.sampler import keyed_permutation
from ditlab.data.store import Store
from ditlab.data.tokenizer import store_codec
from ditlab.data.view import View
from ditlab.errors import UserError, nearest
from ditlab.home import Home
from ditlab.spec.data import ArrowData, DataSpec, DigitsData, HoldOutClasses, MnistData, MotifsData, TextData
from ditlab.spec.importing import DigitsOptions


@dataclass(frozen=True)
class DataSplits:
    train: View
    held_out: View
    """Empty where nothing is held out."""
    fingerprint: str
    """Of the contents that train: the training store's fingerprint."""
    name: str
    """The training store's name."""
    note: str = ""
    """What a person should know about this split, or nothing."""
    references: Mapping[str, Any] = field(default_factory=dict)
    """What the data's maker knows of it, by name: `optimal` of generated regions (`PlantedModules.predict`)."""
    text: TextCodec | None = None
    """How its tokens read; None where it holds no text."""


def open_data(spec: DataSpec, home: Home, verify: bool = True) -> DataSplits:
    """The data that a spec names; `digits`, `motifs` and `text` make theirs under `home.stores` at their first use.

    With `verify`, every shard is read and hashed once. Raises UserError for a store that is missing (with the command
    that makes it), altered, or empty once rows are held out.
    """
    match spec:
        case DigitsData():
            splits = _split(_digits(home, verify), spec.hold_out, "data.kind=digits")
        case MnistData():
            splits = _mnist(spec, home, verify)
        case ArrowData():
            store = Store.open(store_folder(spec.path, home), verify)
            splits = _split(store, spec.hold_out, f"data.path={spec.path}")
        case TextData():
            splits = _split(open_python_docs(spec, home, verify), spec.hold_out, "data.kind=text")
        case MotifsData():
            hold_out = last_chromosomes(spec) if spec.hold_out is None else spec.hold_out
            known = {"optimal": PlantedModules(spec).predict}
            splits = _split(open_motifs(spec, home, verify), hold_out, "data.kind=motifs")
            splits = dataclasses.replace(splits, references=known)
    return splits


def store_folder(name: str, home: Home) -> Path:
    """The folder of the store that a person names: one here or, of a plain name, below `home.stores`. Absolute.

    A store here comes first; a folder here that is none hides no store of the home's.
    """
    here, known = (folder / MANIFEST_NAME for folder in (Path(name).expanduser().resolve(), home.stores / name))
    is_plain = len(Path(name).parts) == 1
    return (known if is_plain and known.exists() and not here.exists() else here).parent


def hold_out_rows(length: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows) of a store of `length` rows, int64.

    The choice depends on the store's length alone, never on an experiment's seed: held-out figures of two experiments
    compare the same samples. A larger share holds out all that a smaller one does. Training rows are ascending;
    held-out rows stay shuffled, so that the first few are as good a sample as all. A share above 0 holds out at least
    one row.
    """
    order = keyed_permutation("ditlab.hold-out", length)
    num = max(1, round(length * share)) if share > 0 else 0
    return np.sort(order[num:]), order[:num]


RUN_ROWS = 16
MOST_RUNS = 1000


def hold_out_runs(length: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows) of a text's store of `length` rows, int64: held out are runs of neighbours.

    Neighbouring rows share documents, phrases and, at their seam, a sentence. Of rows held out at random nearly every
    one would have both neighbours in training; of a run of n, two have one. A single run, as the last tenth, would be
    one place of a sorted corpus; so the rows are cut into equal runs, RUN_ROWS long or a MOST_RUNS-th of all, and runs
    are drawn until the share is full. All else is as `hold_out_rows` says.
    """
    runs = np.array_split(np.arange(length), min(MOST_RUNS, max(1, length // RUN_ROWS)))
    order = np.concatenate([runs[run] for run in keyed_permutation("ditlab.hold-out-runs", len(runs))])
    num = max(1, round(length * share)) if share > 0 else 0
    held_out = order[:num]
    return np.sort(order[num:]), held_out[keyed_permutation("ditlab.hold-out", num)]


def hold_out_classes(store: Store, classes: HoldOutClasses) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows) of a store, int64: held out are all rows whose class is one of `classes`.

    Training rows are ascending; held-out rows are shuffled, by their number alone. Raises UserError for a column that
    holds no class indices, for a class that it does not know, and where nothing trains or nothing is held out.
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


def _split(store: Store, hold_out: float | HoldOutClasses, origin: str) -> DataSplits:
    if isinstance(hold_out, HoldOutClasses):
        train, held_out = hold_out_classes(store, hold_out)
    elif store.manifest.text:
        train, held_out = hold_out_runs(len(store), hold_out)
    else:
        train, held_out = hold_out_rows(len(store), hold_out)
    note = "" if len(held_out) else f"{origin} with data.hold_out={hold_out} holds nothing out: no held-out evaluation."
    if len(held_out) and not isinstance(hold_out, HoldOutClasses) and windows_overlap(store):
        note = (
            f"{origin}: neighbouring windows share regions, so most of what data.hold_out={hold_out} holds out is in "
            f"training too, and held-out figures are too good; {WHOLE_CHROMOSOMES}."
        )
    views = View(store, train, origin), View(store, held_out, origin)
    return DataSplits(*views, store.fingerprint, store.name, note, text=store_codec(store))


def _digits(home: Home, verify: bool) -> Store:
    """The digits' store. Two processes may make it at once: they write the same files, and renames are atomic."""
    path = home.stores / "digits"
    if not (path / MANIFEST_NAME).exists():
        run_import("digits", ImportRequest(home.ensure().stores, home.caches, DigitsOptions()))
    return Store.open(path, verify)


def _mnist(spec: MnistData, home: Home, verify: bool) -> DataSplits:
    origin = f"data.kind=mnist, data.split={spec.split}"
    path = home.stores / f"mnist-{spec.split}"
    if not (path / MANIFEST_NAME).exists():
        raise UserError(
            f"{origin}: {path} holds no store; run `ditlab data import mnist` (downloads it), or "
            "`ditlab data import mnist --source DIR` with a folder that holds the idx files."
        )
    store = Store.open(path, verify)
    if spec.hold_out is not None or spec.split == "test":
        return _split(store, 0.1 if spec.hold_out is None else spec.hold_out, origin)
    whole = _split(store, 0.0, origin)
    test = home.stores / "mnist-test"
    if (test / MANIFEST_NAME).exists():
        others = Store.open(test, verify)
        rows = keyed_permutation("ditlab.hold-out", len(others))
        return dataclasses.replace(whole, held_out=View(others, rows, "data.kind=mnist, test files"), note="")
    note = (
        f"{origin} is evaluated on the test files, and {test} holds no store: nothing is held out. Import the test "
        "files with `ditlab data import mnist`, or set data.hold_out."
    )
    return dataclasses.replace(whole, note=note)
