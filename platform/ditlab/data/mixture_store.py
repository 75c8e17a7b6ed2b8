"""Joined store: the rows of a mixture's parts, whose columns agree, as one, and its training and
held-out rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ditlab.data.permutations import in_turns, ranks
from ditlab.data.stores.block_index import group_places
from ditlab.data.stores.bucketed_store import AnyStore, BucketedStore
from ditlab.data.stores.manifest import (
    AnyManifest,
    StoredColumn,
    StoreManifest,
    format_shape,
    merged_column,
)
from ditlab.data.stores.row_changes import RowChanges
from ditlab.data.stores.store import Store
from ditlab.data.stores.view import View
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.errors import UserError
from ditlab_models.contract import ANY

if TYPE_CHECKING:
    from torch import Tensor

Draw = Literal["sample", "batch"]
"""Unit that draws a part: each sample, or each batch."""

DIFFER = (
    "a model reads it of all parts alike, so import the parts alike, or take one out of data.parts."
)
SHAPES_DIFFER = "data.draw=sample puts both in one batch; set data.draw to batch."
PADDED = ("caption", "text", "text_mask")
"""Columns of captions, whose rows end with zeros: rows of a store of shorter captions get more of
them.
"""


class JoinedStore(BucketedStore):
    """Stores of a mixture's parts as one. Its columns are those that all of them hold alike.

    Where every column has one shape, `parts` is a single store over all of them, and a batch may
    mix them. Otherwise `parts` are the stores of one shape, part after part, and a batch is of one
    of them.
    """

    def __init__(
        self, stores: Mapping[str, AnyStore], draw: Literal["auto", "sample", "batch"] = "auto"
    ):
        """Join the stores of parts by name. Raises UserError for tokens of several tokenisers, for
        image sizes that cannot be drawn by sample, and where no column is common to all."""
        _check_tokenizers(stores)
        first = next(iter(stores.values()))
        self.name = " + ".join(stores)
        self.path = first.path
        self.stores = dict(stores)
        """Store of each part by its name."""
        self.problems = {
            name: f"{clause}; {DIFFER}" for name, clause in column_problems(stores).items()
        }
        """Reason why a column that some part holds cannot be read, by the column's name."""
        common = _common_columns(stores, draw, self.problems)
        self.is_uniform = all(
            len(store.parts) == 1 for store in stores.values()
        ) and not shape_problems(stores, common)
        """True if every column has one shape."""
        if draw == "auto":
            draw = "sample" if self.is_uniform else "batch"
        self.draw: Draw = draw
        flat = list(chain.from_iterable(store.parts for store in stores.values()))
        if self.is_uniform:
            flat = [StackedStore(flat, common)]
            self.columns = dict(flat[0].columns)
        else:
            self.columns = {
                name: merged_column([part.columns[name] for part in flat]) for name in common
            }
        self.parts = tuple(flat)
        content = json.dumps(
            [[name, stores[name].fingerprint] for name in sorted(stores)], separators=(",", ":")
        )
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        """SHA-256 (hex) of the parts' names and fingerprints, sorted by name; weights do not
        enter.
        """
        self.manifest = _joined_manifest([store.manifest for store in stores.values()])  # type: ignore[assignment]
        self.size = sum(part.size for part in self.parts)
        self._ends = np.cumsum([*map(len, self.parts)])
        self.first_rows = dict(
            zip(stores, accumulate(map(len, stores.values()), initial=0), strict=False)
        )
        """Number of each part's first row."""
        if self.is_uniform:
            self.first_numbers = dict.fromkeys(stores, 0)
        else:
            nums = [len(store.parts) for store in stores.values()]
            self.first_numbers = dict(zip(stores, accumulate(nums, initial=0), strict=False))
        """Number in `parts` of each part's first one."""

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise UserError for the first of a model's columns that some part holds, but not all of
        them alike.
        """
        for name in sorted(names):
            if name in self.problems:
                raise UserError(self.problems[name])


class StackedStore(Store):
    """Stores of one shape, whose rows are numbered store after store."""

    def __init__(self, stores: Sequence[Store], columns: Sequence[str]):
        """Join the given columns, which the stores hold alike."""
        self._stores = tuple(stores)
        self._store_ends = np.cumsum([len(store) for store in stores])
        merged = {}
        for name in columns:
            parts = [store.columns[name] for store in stores]
            # the padded columns have several lengths
            longest = max(column.shape[:1] for column in parts)
            merged[name] = merged_column(parts).model_copy(
                update={"shape": (*longest, *parts[0].shape[1:])}
            )
        # not its shards, which are read from the stores
        changes = {"rows": sum(map(len, stores)), "columns": merged}
        super().__init__(stores[0].path, stores[0].manifest.model_copy(update=changes))
        self.size = sum(store.size for store in stores)

    def verify(self) -> None:
        """Hash every file of every store. Raises UserError for the first one that was altered."""
        for store in self._stores:
            store.verify()

    def close(self) -> None:
        """Give up what the stores hold beside their memory. Closing twice is fine."""
        for store in self._stores:
            store.close()

    def gather(self, column: str, rows: np.ndarray, out: Tensor | None = None) -> Tensor:
        """Copy rows as `Store.gather` does; those of shorter columns are padded with zeros."""
        import torch

        stored = self.columns[column]
        if out is None:
            out = torch.empty((len(rows), *stored.shape), dtype=getattr(torch, stored.dtype))
        groups = group_places(np.searchsorted(self._store_ends, rows, side="right"))
        for number, here in groups.items():
            store = self._stores[number]
            own = rows[here] - (int(self._store_ends[number]) - len(store))
            shape = store.columns[column].shape
            if len(groups) == 1 and shape == stored.shape:
                return store.gather(column, own, out)
            # through NumPy: torch cannot assign to indices of uint16
            values = out.numpy()
            values[here] = 0
            filled: Any = (here, slice(shape[0])) if shape else here
            values[filled] = store.gather(column, own).numpy()
        return out


def _check_tokenizers(stores: Mapping[str, AnyStore]) -> None:
    """Raise UserError for parts whose tokens are of several tokenisers."""
    tokenizers = {
        name: store.manifest.attachments.get(TOKENIZER_NAME) for name, store in stores.items()
    }
    first = next(iter(stores))
    for name, digest in tokenizers.items():
        if digest != tokenizers[first]:
            theirs = "has no tokeniser, unlike"
            if digest:
                theirs = "has tokens of another tokeniser than"
            raise UserError(
                f"data.parts.{name} {theirs} data.parts.{first}, and one model reads both; "
                "import the texts with one tokeniser (`ditlab data import text --tokenizer`)."
            )


def _common_columns(
    stores: Mapping[str, AnyStore], draw: str, problems: dict[str, str]
) -> list[str]:
    """Return the columns that all parts hold alike. `problems`: those of others, to which those of
    shapes are added.

    Raises UserError for image sizes that cannot be drawn by sample, and where no column is common
    to all.
    """
    columns = next(iter(stores.values())).columns
    if draw == "sample":
        several = next((name for name, store in stores.items() if len(store.parts) > 1), None)
        if several is not None:
            raise UserError(
                f"data.draw=sample puts parts in one batch, and data.parts.{several} holds "
                "images of several sizes; set data.draw to batch."
            )
        shapes = shape_problems(stores, [name for name in columns if name not in problems])
        problems |= {name: f"{clause}, and {SHAPES_DIFFER}" for name, clause in shapes.items()}
    common = [name for name in columns if name not in problems]
    if not common:
        raise UserError(next(iter(problems.values())))
    return common


def _joined_manifest(manifests: Sequence[AnyManifest]) -> StoreManifest:
    """Return the facts on all parts, written nowhere: rows, columns and blocks are each part's
    own.
    """
    texts = [manifest.text for manifest in manifests if manifest.text is not None]
    text = None
    if len(texts) == len(manifests):
        counts = ("documents", "bytes", "tokens", "dropped")
        text = texts[0].model_copy(
            update={key: sum(getattr(each, key) for each in texts) for key in counts}
        )
    facts: dict[str, Any] = {
        "name": "mixture",
        "text": text,
        "attachments": dict(manifests[0].attachments),
    }
    return StoreManifest.model_construct(**facts)


def _meanings(column: StoredColumn) -> list[str]:
    """Return what a model reads a column as, a clause each."""
    value_range = "without a range"
    if column.value_range:
        low, high = column.value_range
        value_range = f"in the range {low:g} to {high:g}"
    classes = "without classes"
    if column.num_classes is not None:
        classes = f"with num_classes={column.num_classes}"
    divisors = f"divided by {column.divisors}" if column.divisors else "undivided"
    autoencoder = "of no autoencoder"
    if column.autoencoder:
        autoencoder = f"of the autoencoder {column.autoencoder.sha256[:12]}"
    return [
        f"as {column.dtype}",
        f"with {len(column.shape)} axes",
        value_range,
        classes,
        divisors,
        autoencoder,
        f"with {len(column.names)} names",
        *(f"with '{entry}' as name {number}" for number, entry in enumerate(column.names, start=1)),
    ]


def column_problems(stores: Mapping[str, AnyStore]) -> dict[str, str]:
    """Return why a column that not all parts hold alike, but for sizes, cannot be read: a clause by
    its name.
    """
    problems: dict[str, str] = {}
    columns = chain.from_iterable(store.columns for store in stores.values())
    for column in dict.fromkeys(columns):
        without = [part for part, store in stores.items() if column not in store.columns]
        if without:
            held = ", ".join(stores[without[0]].columns)
            problems[column] = (
                f"data.parts.{without[0]} holds no column '{column}' (it holds {held})"
            )
            continue
        (first, expected), *others = (
            (part, _meanings(store.columns[column])) for part, store in stores.items()
        )
        for other, found in others:
            for ours, theirs in zip(expected, found, strict=False):
                if ours != theirs and column not in problems:
                    problems[column] = (
                        f"data.parts.{other} holds {column} {theirs}, data.parts.{first} {ours}"
                    )
    return problems


def shape_problems(stores: Mapping[str, AnyStore], columns: Iterable[str]) -> dict[str, str]:
    """Return the columns of several shapes, with a clause on the parts that hold them."""
    problems = {}
    for column in columns:
        padded = slice(1 if column in PADDED else 0, None)
        shapes = {part: store.columns[column].shape[padded] for part, store in stores.items()}
        first = next(iter(shapes))
        other = next(
            (part for part in shapes if ANY in shapes[part] or shapes[part] != shapes[first]), None
        )
        if other is not None:
            than = ""
            if other != first:
                than = f", data.parts.{first} {format_shape(shapes[first])}"
            problems[column] = (
                f"data.parts.{other} holds {column} {format_shape(shapes[other])}{than}"
            )
    return problems


def joined_views(
    train: Mapping[str, View],
    held_out: Mapping[str, View],
    origin: str,
    draw: Literal["auto", "sample", "batch"],
) -> tuple[View, View]:
    """Join views of parts by name: training rows part after part, held-out ones in turns. Raises as
    `JoinedStore`.
    """

    def joined(store: JoinedStore, views: Mapping[str, View]) -> View:
        rows = []
        changes: list[RowChanges] = []
        for name, view in views.items():
            first = store.first_rows[name]
            rows.append(view.rows[np.arange(len(view))] + first)
            own = view.changes or (RowChanges(len(view.store)),)
            changes += [replace(each, stop=first + each.stop) for each in own]
        if not any(view.changes for view in views.values()):
            changes = []
        return View(store, np.concatenate(rows), origin, tuple(changes))

    store = JoinedStore({name: view.store for name, view in train.items()}, draw)
    other = store
    if any(held_out[name].store is not view.store for name, view in train.items()):
        # MNIST is evaluated on the store of its test files
        other = JoinedStore({name: view.store for name, view in held_out.items()}, store.draw)
    part_after_part = joined(other, held_out)
    lengths = [len(view) for view in held_out.values()]
    queues = in_turns(lengths)
    places = ranks(queues) + (np.cumsum(lengths) - lengths)[queues]
    return joined(store, train), replace(part_after_part, rows=part_after_part.rows[places])
