"""Rows of several parts as one sequence: part after part, or in turns."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ditlab.data.loading.permutation import keyed_permutation
from ditlab.data.mixtures.joined_store import JoinedStore
from ditlab.data.mixtures.turns import Turns
from ditlab.data.stores.view import RowSequence, View


class StackedRows(RowSequence):
    """Rows of several parts, part after part, as rows of their joined store."""

    def __init__(self, store: JoinedStore, views: Mapping[str, View]):
        """Join views of the store's parts, by the parts' names."""
        self._store, self._views = store, dict(views)
        self._lengths = np.array([len(view) for view in views.values()], np.int64)
        self._ends = np.cumsum(self._lengths)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the joined store's rows at places (int64, in [0, len)), int64."""
        parts, numbers = self.locate(places)
        found = np.empty_like(places)
        for part, (name, view) in enumerate(self._views.items()):
            here = parts == part
            if here.any():
                found[here] = view.rows[numbers[here]] + self._store.first_row(name)
        return found

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (part, number in its view) at places, int64 each."""
        parts = np.searchsorted(self._ends, places, side="right")
        return parts, places - (self._ends - self._lengths)[parts]

    def num_before(self, place: int) -> np.ndarray:
        """Return how many rows each part has before a place, int64 (parts,)."""
        return np.clip(place - (self._ends - self._lengths), 0, self._lengths)

    @property
    def bucket_counts(self) -> np.ndarray:
        """Rows of each of the joined store's `parts`, int64 (parts,)."""
        if self._store.is_uniform:
            return self._lengths.sum(keepdims=True)
        return np.concatenate([view.bucket_counts for view in self._views.values()])

    @property
    def key(self) -> str:
        """Text that decides the rows, for a given store."""
        return "; ".join(f"{name}: {view.rows_key.hex()}" for name, view in self._views.items())

    def in_part(self, part: int) -> RowSequence:
        """Return the rows of one of the joined store's `parts`, by their numbers in it."""
        if self._store.is_uniform:
            return self
        name = next(name for name in reversed(self._views) if self._store.first_number(name) <= part)
        own = self._views[name].in_part(part - self._store.first_number(name))
        return type(self)(JoinedStore({name: own.store}), {name: own})

    def shuffled(self, text: str) -> "RowsInTurns":
        """Return the same rows, each part's in an order that belongs to a text, the parts in turns."""
        return RowsInTurns(self._store, {name: _shuffled(view, text) for name, view in self._views.items()})

    def blocks(self, ranges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (number in the joined store's `parts`, blocks) that rows of ranges lie in; a range lies in one part."""
        if self._store.is_uniform:  # one store over all parts: what is announced replaces what was before
            found = [blocks + self._store.first_block(name) for name, _, blocks in self._blocks_of_parts(ranges)]
            if found:
                yield 0, np.concatenate(found)
            return
        for name, number, blocks in self._blocks_of_parts(ranges):
            yield self._store.first_number(name) + number, blocks

    def _blocks_of_parts(self, ranges: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
        """Yield (part, number in the `parts` of its store, blocks) that rows of ranges lie in."""
        parts, firsts = self.locate(ranges[:, 0])
        for part, (name, view) in enumerate(self._views.items()):
            here = parts == part
            if not here.any() or not isinstance(view.rows, RowSequence):
                continue
            own = ranges[here] - (ranges[here][:, :1] - firsts[here, None])
            for number, blocks in view.rows.blocks(own):
                yield name, number, blocks


class RowsInTurns(StackedRows):
    """Rows of several parts in turns, a row of each; a part that has run out is passed.

    So the first few are as many of each part.
    """

    def __init__(self, store: JoinedStore, views: Mapping[str, View]):
        """Join views of the store's parts, by the parts' names."""
        super().__init__(store, views)
        self._turns = Turns(self._lengths)

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (part, number in its view) at places, int64 each."""
        return self._turns.locate(places)

    def num_before(self, place: int) -> np.ndarray:
        """Return how many rows each part has before a place, int64 (parts,)."""
        return self._turns.num_before(place)

    def blocks(self, ranges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield nothing: neighbours lie in different parts."""
        return iter(())


def _shuffled(view: View, text: str) -> View:
    rows = view.rows
    shuffled = rows.shuffled(text) if isinstance(rows, RowSequence) else rows[keyed_permutation(text, len(rows))]
    return replace(view, rows=shuffled)
