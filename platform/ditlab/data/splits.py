"""Training and held-out rows of the data that an experiment's spec names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.analytic_targets import chain_of, mixture_of
from ditlab.data.builtin import BuiltIn, chromosome_names, open_built_in, store_name
from ditlab.data.images.captions import LABEL
from ditlab.data.loading.held_out import (
    hold_out_blocks,
    hold_out_classes,
    hold_out_evenly,
    hold_out_rows,
    hold_out_runs,
    without_duplicates,
)
from ditlab.data.mixture_store import Draw, JoinedStore, joined_views
from ditlab.data.named_stores import open_named_store, pointed_folder, store_folder
from ditlab.data.permutations import in_turns, keyed_permutation
from ditlab.data.planted_modules import PlantedModules
from ditlab.data.region_windows import WHOLE_CHROMOSOMES, windows_overlap
from ditlab.data.stores.bucketed_store import AnyStore, holds_store, open_store
from ditlab.data.stores.copies import Notify, write_to_stderr
from ditlab.data.stores.duplicates import Duplicates, read_duplicates
from ditlab.data.stores.manifest import MANIFEST_NAME, StoredColumn
from ditlab.data.stores.receipt import plain_name
from ditlab.data.stores.row_changes import CAPTION, IMAGE, RowChanges
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import RowNumbers, View
from ditlab.data.text.tokenizer import packed, store_codec
from ditlab.errors import UserError, shortened
from ditlab.home import Home
from ditlab.spec.data import (
    ArrowData,
    CaptionedDigitsData,
    FullOrderSpec,
    GaussianMixtureData,
    HoldOutClasses,
    MarkovChainData,
    MnistData,
    MotifsData,
    OrderSpec,
    Packing,
    SourceSpec,
    TextData,
)
from ditlab.spec.encoders import LATENTS
from ditlab.spec.mixture import DataSpec, MixtureData, in_part
from ditlab.spec.plugins import DATA_SOURCES, DataSource
from ditlab.spec.uris import is_uri
from ditlab_models.contract import TextCodec

_FULL = FullOrderSpec()
NAMED = 6
"""Most parts or classes that are named, as of a mixture, as MLflow shows it: `0.7 a (digits) + 0.3
b (mnist-train)`.
"""
MOST_OVERLAPPING = 2**16
"""Rows up to which whole blocks are held out that are so small that most of their windows overlap
with training.
"""


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
    """References to measure a model against, by name: `optimal` of generated data is their law
    (`GaussianMixture`, `MarkovChain`, or `PlantedModules.predict`)."""
    text: TextCodec | None = None
    """Codec of its tokens; None where it holds no text."""
    mixture: Mixture | None = None
    """Parts of a mixture; None for a single source."""
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes that are held out as a whole, by column; empty where a share of the rows is held
    out.
    """

    @property
    def classes(self) -> dict[str, list[str]]:
        """Names of the classes of each column that has some; a class's number is its place."""
        columns = self.train.columns.items()
        return {
            name: list(column.names)
            for name, column in columns
            if column.num_classes and column.names
        }

    def difference(self, recorded: Mapping[str, Any]) -> str:
        """Return in a sentence how the data differ from those of a run's `dataset` record; empty
        where they do not.
        """
        theirs = recorded.get("fingerprint", self.fingerprint)
        if theirs == self.fingerprint:
            return ""
        parts = []
        sizes = recorded.get("counts", {})
        before = sizes.get("train")
        if before is not None and before != len(self.train):
            parts.append(f"{len(self.train):,} training samples, {before:,} then")
        for column, before in recorded.get("classes", {}).items():
            pairs = enumerate(zip_longest(before, self.classes.get(column, []), fillvalue="none"))
            moved = next(((number, *pair) for number, pair in pairs if pair[0] != pair[1]), None)
            if moved:
                parts.append(
                    "class {0} of {column} is {2}, and was {1}".format(*moved, column=column)
                )
        listed = "; ".join(parts) or "the same number of samples with other contents"
        return (
            f"the data {self.name} have the fingerprint {self.fingerprint[:12]}, and the run "
            f"was trained on {theirs[:12]} ({listed})"
        )


@dataclass(frozen=True)
class Mixture:
    """Parts of a mixture, by name."""

    parts: Mapping[str, DataSplits]
    """Training and held-out rows of each part."""
    shares: Mapping[str, float]
    """Share of each part in what is drawn."""
    draw: Draw
    """Unit that draws a part: each sample, or each batch."""

    def measured(self, limit: int) -> dict[str, int]:
        """Return how many held-out rows of each part are measured, of `limit` in all: equally many,
        as far as it has them. Parts without any are skipped."""
        lengths = [len(part.held_out) for part in self.parts.values()]
        counts = np.bincount(in_turns(lengths)[:limit], minlength=len(lengths)).tolist()
        return {name: num for name, num in zip(self.parts, counts, strict=True) if num}


def open_data(
    spec: DataSpec | DataSource, home: Home, verify: bool = True, notify: Notify = write_to_stderr
) -> DataSplits:
    """Open the data that a spec names.

    With `verify`, every shard is read and hashed once. `notify` gets messages on copies of stores
    behind a URI. Raises UserError for a store that is missing (with the command that makes it),
    altered, or empty once rows are held out.
    """
    match spec:
        case MnistData():
            return _mnist(spec, home, verify)
        case ArrowData():
            named = spec.order.open_streamed(spec, home, notify)
            if named is None:
                named = open_named_store("data.path", spec.path, home, verify, notify)
            splits = _split(named, spec.hold_out, f"data.path={spec.path}", order=spec.order)
            return _changed(_packed(splits, spec.packing), spec)
        case MixtureData():
            return _mixture(
                spec,
                lambda name, part: open_data(
                    part, home, verify, lambda text: notify(in_part(text, name, type(part)))
                ),
            )
        case DataSource():
            return _split(
                open_store(_plugin_store(spec, home), verify),
                spec.hold_out,
                f"data.kind={spec.kind}",
            )
        case _:
            return _built_in(spec, home, verify)


def _built_in(spec: BuiltIn, home: Home, verify: bool) -> DataSplits:
    hold_out = spec.hold_out
    if hold_out is None:
        assert isinstance(spec, MotifsData), "others have a share"
        hold_out = HoldOutClasses(column="chromosome", values=tuple(chromosome_names(spec)[-2:]))
    group = spec.colours if isinstance(spec, CaptionedDigitsData) else 1
    splits = _split(open_built_in(spec, home, verify), hold_out, f"data.kind={spec.kind}", group)
    law: Any
    match spec:
        case TextData():
            return _packed(splits, spec.packing)
        case MotifsData():
            law = PlantedModules(spec).predict
        case GaussianMixtureData():
            law = mixture_of(spec)
        case MarkovChainData():
            law = chain_of(spec)
        case _:
            return splits
    return dataclasses.replace(splits, references={"optimal": law})


def _plugin_store(spec: DataSource, home: Home) -> Path:
    """Return the folder of a plugin's store, which the plugin writes where it is missing."""
    path = home.stores / plain_name(spec.store_name())
    if not holds_store(path):
        home.ensure()
        spec.write(path)
    if not holds_store(path):
        plugin = DATA_SOURCES.find(spec.kind)
        origin = plugin.origin if plugin else "its package"
        raise UserError(
            f"data.kind={spec.kind}: {origin} has written no store to {path}; update that package."
        )
    return path


def absent_data(spec: DataSpec | DataSource, home: Home) -> str:
    """Return in a clause why opening the data of a spec would write, fetch or miss a store; empty
    where all of it is here. Nothing is opened."""
    match spec:
        case MixtureData():
            clauses = (absent_data(spec.parts[name], home) for name in spec.names)
            return next(filter(None, clauses), "")
        case ArrowData():
            if is_uri(spec.path):
                return f"{spec.path} is not on this machine"
            folder = store_folder(spec.path, home)
        case MnistData():
            folder = pointed_folder(home.stores / f"mnist-{spec.split}")
        case DataSource():
            folder = home.stores / plain_name(spec.store_name())
        case _:
            folder = home.stores / store_name(spec)
    if holds_store(folder):
        return ""
    return f"{folder} holds no store yet"


def classes_with_samples(columns: Mapping[str, StoredColumn]) -> list[int]:
    """Return the numbers of the classes (column `label`) that have samples; none where all have
    some.
    """
    if LABEL not in columns:
        return []
    counts = columns[LABEL].statistics.class_counts or ()
    if all(counts):
        return []
    return np.flatnonzero(counts).tolist()


def _split(
    store: AnyStore,
    hold_out: float | HoldOutClasses | tuple[HoldOutClasses, ...],
    origin: str,
    group: int = 1,
    order: OrderSpec = _FULL,
) -> DataSplits:
    """Split a store; `group`: number of neighbouring rows that are held out together."""
    left_out = dict[str, tuple[str, ...]]()
    duplicates = read_duplicates(store)
    if isinstance(hold_out, float | int):
        train, held_out = _hold_out_share(store, hold_out, group, order, duplicates)
    else:
        classes = (hold_out,) if isinstance(hold_out, HoldOutClasses) else hold_out
        train, held_out = hold_out_classes(store, *classes)
        for each in classes:
            left_out[each.column] = (*left_out.get(each.column, ()), *map(str, each.values))
    notes = []
    num_chosen = len(train)
    train = _without_duplicates(train, duplicates, f"{origin} with data.hold_out={hold_out}")
    if len(train) < num_chosen:
        notes.append(
            f"{origin}: {num_chosen - len(train):,} samples repeat a held-out one, and are not "
            "trained on."
        )
    by_large_blocks = order.holds_out_blocks and len(store) > MOST_OVERLAPPING
    if not len(held_out):
        notes.append(
            f"{origin} with data.hold_out={hold_out} holds nothing out: no held-out evaluation."
        )
    elif not by_large_blocks and not left_out and windows_overlap(store):
        notes.append(
            f"{origin}: neighbouring windows share regions, so most of what "
            f"data.hold_out={hold_out} holds out is in training too, and held-out figures are "
            f"too good; {WHOLE_CHROMOSOMES}."
        )
    sampled = classes_with_samples(store.columns)
    if sampled:
        label = store.columns[LABEL]
        names = label.names or [*map(str, range(label.num_classes or 0))]
        empty = [name for number, name in enumerate(names) if number not in sampled]
        notes.append(
            f"{origin} holds no sample of {shortened(empty, NAMED)}, which is drawn only when "
            "asked for."
        )
    return DataSplits(
        View(store, train, origin),
        View(store, held_out, origin),
        store.fingerprint,
        store.name,
        " ".join(notes),
        text=store_codec(store),
        left_out=left_out,
    )


def _without_duplicates(train: RowNumbers, duplicates: Duplicates, setting: str) -> RowNumbers:
    """Return training rows without copies of held-out ones. Raises UserError where none is left."""
    left = without_duplicates(train, duplicates)
    if len(duplicates) and not len(left):
        raise UserError(
            f"{setting} leaves nothing to train on, as all other samples repeat held-out ones; set "
            "data.hold_out to 0, or import the data again with --keep-duplicates."
        )
    return left


def _hold_out_share(
    store: AnyStore, share: float, group: int, order: OrderSpec, duplicates: Duplicates
) -> tuple[RowNumbers, RowNumbers]:
    """Return the rows of training and those of a share that is held out, as the store and the order
    need it.
    """
    if order.holds_out_blocks:
        return hold_out_blocks(store, share)
    if store.manifest.text:
        return hold_out_runs(len(store), share)
    if len(store.parts) > 1:
        return hold_out_evenly([len(part) for part in store.parts], share, duplicates)
    return hold_out_rows(len(store), share, group, duplicates)


def _mixture(spec: MixtureData, open_part: Callable[[str, SourceSpec], DataSplits]) -> DataSplits:
    """Open the parts of a mixture and join them. Raises UserError that names the part."""
    parts = {name: _part(name, spec.parts[name], open_part) for name in spec.names}
    train, held_out = joined_views(
        {name: part.train for name, part in parts.items()},
        {name: part.held_out for name, part in parts.items()},
        "data.kind=mixture",
        spec.draw,
    )
    store = train.store
    assert isinstance(store, JoinedStore)
    named = [f"{share:.4g} {name} ({parts[name].name})" for name, share in spec.shares.items()]
    if len(named) > NAMED:
        named[NAMED:] = [f"{len(named) - NAMED} more"]
    text = next(iter(parts.values())).text
    if text:
        facts = store.manifest.text
        bytes_per_token = facts.bytes_per_token if facts else None
        text = dataclasses.replace(text, bytes_per_token=bytes_per_token)
    left_out: dict[str, tuple[str, ...]] = {}
    for name, part in parts.items():
        left_out |= {f"{name}/{column}": values for column, values in part.left_out.items()}
    return DataSplits(
        train,
        held_out,
        store.fingerprint,
        " + ".join(named),
        note=" ".join(part.note for part in parts.values() if part.note),
        text=text,
        mixture=Mixture(parts, spec.shares, store.draw),
        left_out=left_out,
    )


def _part(
    name: str, spec: SourceSpec, open_part: Callable[[str, SourceSpec], DataSplits]
) -> DataSplits:
    """Open a part of a mixture, whose messages name its own settings. Raises UserError that names
    the part.
    """
    kind = type(spec)
    try:
        part = open_part(name, spec)
    except UserError as error:
        message = in_part(str(error), name, kind)
        if f"data.parts.{name}." not in message:
            message = f"data.parts.{name}: {message}"
        raise UserError(message) from error
    return dataclasses.replace(
        part,
        train=dataclasses.replace(part.train, origin=in_part(part.train.origin, name, kind)),
        held_out=dataclasses.replace(
            part.held_out, origin=in_part(part.held_out.origin, name, kind)
        ),
        note=in_part(part.note, name, kind),
    )


def _changed(splits: DataSplits, spec: ArrowData) -> DataSplits:
    """Return splits whose samples are changed as the spec says. Raises UserError for columns that
    cannot be.
    """
    columns = splits.train.columns
    origin = splits.train.origin
    held = (
        ("flip", IMAGE, "image_features"),
        ("flip", IMAGE, LATENTS),
        ("captions", CAPTION, "text"),
    )
    for name, column, features in held:
        if getattr(spec, name) == type(spec).model_fields[name].default:
            continue
        setting = f"{origin} with data.{name}={getattr(spec, name)}"
        if column not in columns:
            raise UserError(
                f"{setting} holds no column {column} (it holds {', '.join(columns)}); leave it out."
            )
        if features in columns:
            raise UserError(
                f"{setting} holds {features} of an encoder, which saw each {column} as it is "
                "stored; leave it out, or name a store without them, and the encoder under "
                "encoders."
            )
    changes = RowChanges(len(splits.train.store), spec.flip, spec.captions == "one")
    if not (changes.flip or changes.one_caption):
        return splits
    train, held_out = (
        dataclasses.replace(view, changes=(changes,)) for view in (splits.train, splits.held_out)
    )
    return dataclasses.replace(splits, train=train, held_out=held_out)


def _packed(splits: DataSplits, packing: Packing) -> DataSplits:
    return dataclasses.replace(splits, text=packed(splits.text, packing, splits.train.origin))


def _mnist(spec: MnistData, home: Home, verify: bool) -> DataSplits:
    origin = f"data.kind=mnist, data.split={spec.split}"
    path = pointed_folder(home.stores / f"mnist-{spec.split}")
    if not (path / MANIFEST_NAME).exists():
        raise UserError(
            f"{origin}: {path} holds no store; run `ditlab data import mnist` (downloads it), or "
            "`ditlab data import mnist --source DIR` with a folder that holds the idx files."
        )
    store = Store.open(path, verify)
    hold_out = spec.hold_out
    if hold_out is None and spec.split == "test":
        hold_out = 0.1
    if hold_out is not None:
        return _split(store, hold_out, origin, order=spec.order)
    whole = _split(store, 0.0, origin, order=spec.order)
    test = pointed_folder(home.stores / "mnist-test")
    if (test / MANIFEST_NAME).exists():
        others = Store.open(test, verify)
        rows = keyed_permutation("ditlab.hold-out", len(others))
        return dataclasses.replace(
            whole, held_out=View(others, rows, "data.kind=mnist, test files"), note=""
        )
    note = (
        f"{origin} is evaluated on the test files, and {test} holds no store: nothing is held "
        "out. Import the test files with `ditlab data import mnist`, or set data.hold_out."
    )
    return dataclasses.replace(whole, note=note)
