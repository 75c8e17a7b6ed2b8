"""Training and held-out rows of the data that an experiment's spec names."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from denoisers.contract import TextCodec
from ditlab.data.builtin.captioned_digits import open_captioned_digits
from ditlab.data.builtin.digits import open_digits
from ditlab.data.builtin.motifs import last_chromosomes, open_motifs
from ditlab.data.builtin.python_docs import open_python_docs
from ditlab.data.genome.planted_modules import PlantedModules
from ditlab.data.genome.region_windows import WHOLE_CHROMOSOMES, windows_overlap
from ditlab.data.loading.computed_rows import hold_out_blocks
from ditlab.data.loading.hold_out import (
    hold_out_classes,
    hold_out_evenly,
    hold_out_groups,
    hold_out_rows,
    hold_out_runs,
)
from ditlab.data.loading.permutation import keyed_permutation
from ditlab.data.named_stores import open_named_store
from ditlab.data.remote.node_copy import Notify, write_to_stderr
from ditlab.data.source_stores import open_source
from ditlab.data.stores.bucketed_store import AnyStore
from ditlab.data.stores.manifest import MANIFEST_NAME
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import Rows, View
from ditlab.data.text.store_tokenizer import packed, store_codec
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.data import (
    ArrowData,
    CaptionedDigitsData,
    DigitsData,
    FullOrderSpec,
    HoldOutClasses,
    LanesOrderSpec,
    MnistData,
    MotifsData,
    OrderSpec,
    Packing,
    TextData,
)
from ditlab.spec.data_sources import DataSource
from ditlab.spec.mixture import DataSpec

_FULL = FullOrderSpec()


@dataclass(frozen=True)
class DataSplits:
    """Training and held-out rows of an experiment's data."""

    train: View
    held_out: View
    """Empty where nothing is held out."""
    fingerprint: str
    """Fingerprint of the training store's contents."""
    name: str
    """Name of the training store."""
    note: str = ""
    """Remark on this split for people, or nothing."""
    references: Mapping[str, Any] = field(default_factory=dict)
    """References to measure a model against, by name: `optimal` of generated regions (`PlantedModules.predict`)."""
    text: TextCodec | None = None
    """Codec of its tokens; None where it holds no text."""


def open_data(
    spec: DataSpec | DataSource, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> DataSplits:
    """Open the data that a spec names.

    All kinds but `mnist` and `arrow` write their store under `home.stores` at their first use. With `verify`, every
    shard is read and hashed once. `notify` gets messages on copies of stores behind a URI
    (`node_copy.open_remote_store`). Raises UserError for a store that is missing (with the command that makes it),
    altered, or empty once rows are held out.
    """
    match spec:
        case DigitsData():
            splits = _split(open_digits(home, verify), spec.hold_out, "data.kind=digits")
        case CaptionedDigitsData():
            store = open_captioned_digits(spec, home, verify)
            splits = _split(store, spec.hold_out, "data.kind=captioned_digits", group=spec.colours)
        case MnistData():
            splits = _mnist(spec, home, verify)
        case ArrowData():
            named = open_named_store("data.path", spec.path, home, verify, notify)
            splits = _packed(_split(named, spec.hold_out, f"data.path={spec.path}", order=spec.order), spec.packing)
        case TextData():
            store = open_python_docs(spec, home, verify)
            splits = _packed(_split(store, spec.hold_out, "data.kind=text"), spec.packing)
        case MotifsData():
            hold_out = last_chromosomes(spec) if spec.hold_out is None else spec.hold_out
            references = {"optimal": PlantedModules(spec).predict}
            splits = _split(open_motifs(spec, home, verify), hold_out, "data.kind=motifs")
            splits = dataclasses.replace(splits, references=references)
        case DataSource():
            splits = _split(open_source(spec, home, verify), spec.hold_out, f"data.kind={spec.kind}")
    return splits


def _split(
    store: AnyStore,
    hold_out: float | HoldOutClasses,
    origin: str,
    group: int = 1,
    order: OrderSpec = _FULL,
) -> DataSplits:
    """Split a store; `group`: number of neighbouring rows that are held out together."""
    train: Rows
    held_out: Rows
    if isinstance(hold_out, HoldOutClasses):
        train, held_out = hold_out_classes(store, hold_out)
    elif isinstance(order, LanesOrderSpec):
        train, held_out = hold_out_blocks(store, hold_out)
    elif store.manifest.text:
        train, held_out = hold_out_runs(len(store), hold_out)
    elif len(store.parts) > 1:
        train, held_out = hold_out_evenly([len(part) for part in store.parts], hold_out)
    elif group > 1:
        train, held_out = hold_out_groups(len(store), hold_out, group)
    else:
        train, held_out = hold_out_rows(len(store), hold_out)
    note = "" if len(held_out) else f"{origin} with data.hold_out={hold_out} holds nothing out: no held-out evaluation."
    by_rows = not isinstance(hold_out, HoldOutClasses) and not isinstance(order, LanesOrderSpec)
    if len(held_out) and by_rows and windows_overlap(store):
        note = (
            f"{origin}: neighbouring windows share regions, so most of what data.hold_out={hold_out} holds out is in "
            f"training too, and held-out figures are too good; {WHOLE_CHROMOSOMES}."
        )
    views = View(store, train, origin), View(store, held_out, origin)
    return DataSplits(*views, store.fingerprint, store.name, note, text=store_codec(store))


def _packed(splits: DataSplits, packing: Packing) -> DataSplits:
    return dataclasses.replace(splits, text=packed(splits.text, packing, splits.train.origin))


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
        return _split(store, 0.1 if spec.hold_out is None else spec.hold_out, origin, order=spec.order)
    whole = _split(store, 0.0, origin, order=spec.order)
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
