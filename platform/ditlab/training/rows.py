"""Real rows of a data set as families look at them: batches with what people know of them beside, fixed draws with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import NOTHING_ASKED, BatchField, RealRows, RowSet, SampleRequest
from ditlab.data.fields import to_device
from ditlab.data.manifest import StoredColumn
from ditlab.data.sources import DataSplits
from ditlab.data.view import View
from ditlab.errors import UserError
from ditlab.training.noise import RowNoise

DEFAULT_NUM = 64
"""Samples where nobody says how many, and no sampler chooses rows."""
SCANNED = 4096
"""Rows whose columns are looked at together for those that a sampler wants."""


@dataclass(frozen=True)
class Conditions:
    """What samples are drawn under."""

    num: int
    """Samples: as many as were asked for, or as many rows as there are to complete."""
    tensors: dict[str, Tensor]
    """The sampler's conditions by name, (num, ...) each."""
    rows: RealRows | None = None
    """The rows that are completed, in the host's memory; None where samples are made from noise alone."""


def row_set(view: View, fields: Sequence[BatchField], device: torch.device) -> RowSet:
    """The view's rows in its own order, their fields on `device`."""

    def batches(size: int) -> Iterator[RealRows]:
        for start in range(0, len(view), size):
            yield _rows(view, np.arange(start, min(start + size, len(view))), fields, device, start)

    return RowSet(len(view), batches)


def shown_rows(data: DataSplits) -> View:
    """The rows that completed samples are shown of: held-out ones, training rows where nothing is held out."""
    return data.held_out if len(data.held_out) else data.train


def conditions_of(
    sampler: Any,
    num: int | None,
    view: View | None,
    fields: Sequence[BatchField],
    request: SampleRequest = NOTHING_ASKED,
) -> Conditions:
    """The conditions of `num` samples; where the sampler completes rows, of the view's first `num` that it wants; where
    it takes conditions from rows and the request has no prompts, those of the view's first `num` rows, over and over.

    `num` None: all rows of a sampler that chooses among them, DEFAULT_NUM samples of any other. Their fixed draws are
    those of their places among the wanted ones, so the first k do not depend on `num`. There may be fewer such rows
    than `num`: `Conditions.num` says. A sampler that completes none needs no view.

    Raises:
        UserError: a condition that the model does not know; no row is wanted.
    """
    try:
        if sampler.takes_rows != "completed":
            num = num or DEFAULT_NUM
            if sampler.takes_rows == "conditions" and view is not None and not request.prompts:
                read = [field for field in fields if field.name in sampler.row_fields]
                rows = _rows(view, np.arange(num) % len(view), read, torch.device("cpu"), 0)
                request = replace(request, rows=rows)
            return Conditions(num, sampler.conditions(num, request))
        assert view is not None, "completed rows come from a view"
        wanted = _wanted(sampler, num, view, fields)
        if not len(wanted):
            note = sampler.note(_seen(view, np.arange(len(view)), fields))
            raise UserError(
                f"{view.origin} holds no row that `sampling` would complete{note and f' ({note})'}; take other rows "
                "(--data train, or a store's folder), or change sampling."
            )
        rows = _rows(view, wanted, fields, torch.device("cpu"), 0)
        return Conditions(len(wanted), sampler.conditions(len(wanted), replace(request, rows=rows)), rows)
    except ValueError as error:
        raise UserError(str(error)) from error


def num_chosen(sampler: Any, view: View, fields: Sequence[BatchField]) -> int | None:
    """How many of all the view's rows the sampler chooses; None where it takes any."""
    num = 0
    for _, wanted in _choices(sampler, view, fields):
        if wanted is None:
            return None
        num += len(wanted)
    return num


def _wanted(sampler: Any, num: int | None, view: View, fields: Sequence[BatchField]) -> np.ndarray:
    """Places in the view of the rows to complete: the first `num`, or as `conditions_of` says where that is None."""
    found: list[int] = []
    for seen, wanted in _choices(sampler, view, fields):
        if wanted is None:
            num = num or DEFAULT_NUM
        found.extend((seen if wanted is None else wanted).tolist())
        if num and len(found) >= num:
            break
    return np.array(found[:num], dtype=np.int64)


def _choices(sampler: Any, view: View, fields: Sequence[BatchField]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Places in the view, SCANNED at a time, and those of them that the sampler chooses (None: it takes any)."""
    for start in range(0, len(view), SCANNED):
        indices = np.arange(start, min(start + SCANNED, len(view)))
        wanted = sampler.wanted(_seen(view, indices, fields))
        yield indices, None if wanted is None else indices[wanted]


def _seen(view: View, indices: np.ndarray, fields: Sequence[BatchField]) -> RealRows:
    """Rows by their other columns; their fields are not read."""
    first = int(indices[0]) if len(indices) else 0
    return RealRows({}, _columns(view, indices, fields), _names(view.columns), _noise(first, torch.device("cpu")))


def _rows(view: View, indices: np.ndarray, fields: Sequence[BatchField], device: torch.device, first: int) -> RealRows:
    raw = {field.name: view.gather(field.name, indices) for field in fields}
    batch = to_device(raw, fields, view.columns, device)
    return RealRows(batch, _columns(view, indices, fields), _names(view.columns), _noise(first, device))


def _columns(view: View, indices: np.ndarray, fields: Sequence[BatchField]) -> dict[str, np.ndarray]:
    taken = {field.name for field in fields}
    return {
        name: _readable(view.gather(name, indices).numpy(), column)
        for name, column in view.columns.items()
        if name not in taken
    }


def _readable(values: np.ndarray, column: StoredColumn) -> np.ndarray:
    return np.array(column.names)[values] if column.names and column.num_classes is not None else values


def _names(columns: Mapping[str, StoredColumn]) -> dict[str, tuple[str, ...]]:
    return {name: column.names for name, column in columns.items() if column.names and column.num_classes is None}


def _noise(first: int, device: torch.device) -> RowNoise:
    """That of held-out metrics: a row's masks are the same ones there and here."""
    return RowNoise(0, "evaluate", first, device)
