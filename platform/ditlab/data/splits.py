"""From a spec's `data` to rows: which store, which rows train, which are held out."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denoisers.contract import TextCodec
from ditlab.data.builtin.captioned_digits import open_captioned_digits
from ditlab.data.builtin.motifs import last_chromosomes, open_motifs
from ditlab.data.builtin.python_docs import open_python_docs
from ditlab.data.genome.planted_modules import PlantedModules
from ditlab.data.genome.region_windows import WHOLE_CHROMOSOMES, windows_overlap
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.loading.hold_out import (
    hold_out_classes,
    hold_out_evenly,
    hold_out_groups,
    hold_out_rows,
    hold_out_runs,
)
from ditlab.data.loading.order import keyed_permutation
from ditlab.data.remote.node_copy import Notify, open_remote_store, write_to_stderr
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.manifest import MANIFEST_NAME
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import store_codec
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.spec.data import (
    ArrowData,
    CaptionedDigitsData,
    DataSpec,
    DigitsData,
    HoldOutClasses,
    MnistData,
    MotifsData,
    TextData,
)
from ditlab.spec.importing import DigitsOptions
from ditlab.spec.uris import is_uri


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


def open_data(spec: DataSpec, home: Home, verify: bool = True, notify: Notify = write_to_stderr) -> DataSplits:
    """The data that a spec names; but `mnist` and `arrow`, all make theirs under `home.stores` at their first use.

    With `verify`, every shard is read and hashed once. `say` hears of copies of stores that lie behind a URI
    (`node_copy.open_remote_store`). Raises UserError for a store that is missing (with the command that makes it),
    altered, or empty once rows are held out.
    """
    match spec:
        case DigitsData():
            splits = _split(_digits(home, verify), spec.hold_out, "data.kind=digits")
        case CaptionedDigitsData():
            store = open_captioned_digits(spec, home, verify)
            splits = _split(store, spec.hold_out, "data.kind=captioned_digits", group=spec.colours)
        case MnistData():
            splits = _mnist(spec, home, verify)
        case ArrowData():
            named = open_place("data.path", spec.path, home, verify, notify)
            splits = _split(named, spec.hold_out, f"data.path={spec.path}")
        case TextData():
            splits = _split(open_python_docs(spec, home, verify), spec.hold_out, "data.kind=text")
        case MotifsData():
            hold_out = last_chromosomes(spec) if spec.hold_out is None else spec.hold_out
            known = {"optimal": PlantedModules(spec).predict}
            splits = _split(open_motifs(spec, home, verify), hold_out, "data.kind=motifs")
            splits = dataclasses.replace(splits, references=known)
    return splits


def open_place(knob: str, place: str, home: Home, verify: bool = True, notify: Notify = write_to_stderr) -> AnyStore:
    """The store that a person names by a URI, a folder's path or a name. Raises UserError as `open_data` does."""
    if is_uri(place):
        return open_remote_store(knob, place, home, verify, notify)
    return open_store(store_folder(place, home), verify)


def store_folder(name: str, home: Home) -> Path:
    """The folder of the store that a person names: one here or, of a plain name, below `home.stores`. Absolute.

    A store here comes first; a folder here that is none hides no store of the home's.
    """
    here, known = Path(name).expanduser().resolve(), home.stores / name
    is_plain = len(Path(name).parts) == 1
    return known if is_plain and holds_store(known) and not holds_store(here) else here


def _split(store: AnyStore, hold_out: float | HoldOutClasses, origin: str, group: int = 1) -> DataSplits:
    """`group`: neighbouring rows that are held out together."""
    if isinstance(hold_out, HoldOutClasses):
        train, held_out = hold_out_classes(store, hold_out)
    elif store.manifest.text:
        train, held_out = hold_out_runs(len(store), hold_out)
    elif len(store.parts) > 1:
        train, held_out = hold_out_evenly([len(part) for part in store.parts], hold_out)
    elif group > 1:
        train, held_out = hold_out_groups(len(store), hold_out, group)
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
