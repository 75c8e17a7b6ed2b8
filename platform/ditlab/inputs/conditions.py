"""Real rows of a data set as families look at them: batches with what people know of them beside, fixed draws with."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import DEFAULT_REQUEST, BatchField, RealRows, RowSet, SampleRequest
from ditlab.data.splits import DataSplits
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise, fixed_noise

DEFAULT_NUM = 64
"""Samples where nobody says how many, and no sampler chooses rows."""
SCANNED = 4096
"""Rows whose columns are looked at together for those that a sampler wants."""


@dataclass(frozen=True)
class SampleConditions:
    """What samples are drawn under."""

    num: int
    """Samples: as many as were asked for, or as many rows as there are to complete."""
    tensors: dict[str, Tensor]
    """The sampler's conditions by name, (num, ...) each."""
    rows: RealRows | None = None
    """The rows that are completed, in the host's memory; None where samples are made from noise alone."""


def row_set(view: View, inputs: ModelInputs) -> RowSet:
    """The view's rows in its own order, bucket by bucket where it has several, as a model takes them, on its device."""

    def batches(size: int) -> Iterator[RealRows]:
        for piece in view.pieces(size):
            yield _rows(view, piece.indices, inputs, fixed_noise(piece.first, inputs.device, piece.bucket))

    return RowSet(len(view), batches)


def rows_for_samples(data: DataSplits) -> View:
    """The rows that completed samples are shown of: held-out ones, training rows where nothing is held out."""
    return data.held_out if len(data.held_out) else data.train


def sample_conditions(
    sampler: Any,
    num: int | None,
    view: View | None,
    inputs: ModelInputs,
    request: SampleRequest = DEFAULT_REQUEST,
) -> SampleConditions:
    """The conditions of `num` samples; where the sampler completes rows, of the view's first `num` that it wants; where
    it takes conditions from rows and the request has no prompts, those of the view's first `num` rows, over and over.

    `num` None: all rows of a sampler that chooses among them, DEFAULT_NUM samples of any other. Their fixed draws are
    those of their places among the wanted ones, so the first k do not depend on `num`. There may be fewer such rows
    than `num`: `Conditions.num` says. A sampler that completes none needs no view. Where the request brings no encoder
    of texts, it is that of `inputs`.

    Raises:
        UserError: a condition that the model does not know; no row is wanted.
    """
    request = request if request.encode else replace(request, encode=inputs.encode)
    try:
        if sampler.takes_rows != "completed":
            num = num or DEFAULT_NUM
            if sampler.takes_rows == "conditions" and view is not None and not request.prompts:
                rows = _rows(
                    view, np.arange(num) % len(view), inputs, fixed_noise(0, torch.device("cpu")), sampler.row_fields
                )
                request = replace(request, rows=rows)
            return SampleConditions(num, sampler.conditions(num, request))
        assert view is not None, "completed rows come from a view"
        wanted = _wanted(sampler, num, view, inputs.names)
        if not len(wanted):
            note = sampler.note(_seen(view, np.arange(len(view)), inputs.names))
            raise UserError(
                f"{view.origin} holds no row that `sampling` would complete{note and f' ({note})'}; take other rows "
                "(--data train, or a store's folder), or change sampling."
            )
        rows = _rows(view, wanted, inputs, fixed_noise(0, torch.device("cpu")))
        return SampleConditions(len(wanted), sampler.conditions(len(wanted), replace(request, rows=rows)), rows)
    except ValueError as error:
        raise UserError(str(error)) from error


def num_rows_chosen(sampler: Any, view: View, fields: Sequence[BatchField]) -> int | None:
    """How many of all the view's rows the sampler chooses; None where it takes any."""
    num = 0
    for _, wanted in _choices(sampler, view, {field.name for field in fields}):
        if wanted is None:
            return None
        num += len(wanted)
    return num


def _wanted(sampler: Any, num: int | None, view: View, taken: Collection[str]) -> np.ndarray:
    """Places in the view of the rows to complete: the first `num`, or as `conditions_of` says where that is None."""
    found: list[int] = []
    for seen, wanted in _choices(sampler, view, taken):
        if wanted is None:
            num = num or DEFAULT_NUM
        found.extend((seen if wanted is None else wanted).tolist())
        if num and len(found) >= num:
            break
    return np.array(found[:num], dtype=np.int64)


def _choices(sampler: Any, view: View, taken: Collection[str]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Places in the view, SCANNED at a time, and those of them that the sampler chooses (None: it takes any)."""
    for start in range(0, len(view), SCANNED):
        indices = np.arange(start, min(start + SCANNED, len(view)))
        wanted = sampler.select_rows(_seen(view, indices, taken))
        yield indices, None if wanted is None else indices[wanted]


def _seen(view: View, indices: np.ndarray, taken: Collection[str]) -> RealRows:
    """Rows by their other columns; those that the model takes are not read."""
    noise = fixed_noise(int(indices[0]) if len(indices) else 0, torch.device("cpu"))
    return RealRows({}, _columns(view, indices, taken), _names(view.columns), noise)


def _rows(
    view: View,
    indices: np.ndarray,
    inputs: ModelInputs,
    noise: RowNoise,
    only: Collection[str] | None = None,
) -> RealRows:
    """`only`: those of the model's fields that are wanted, where not all are. Rows of several buckets are padded."""
    wanted = inputs if only is None else inputs.only(only)
    raw = {field.name: view.padded(field.name, indices) for field in wanted.fields}
    batch = wanted.prepare_batch(raw, view.columns, noise.device)
    return RealRows(batch, _columns(view, indices, inputs.names), _names(view.columns), noise)


def _columns(view: View, indices: np.ndarray, taken: Collection[str]) -> dict[str, np.ndarray]:
    return {
        name: _readable(view.padded(name, indices).numpy(), column)
        for name, column in view.columns.items()
        if name not in taken
    }


def _readable(values: np.ndarray, column: StoredColumn) -> np.ndarray:
    return np.array(column.names)[values] if column.names and column.num_classes is not None else values


def _names(columns: Mapping[str, StoredColumn]) -> dict[str, tuple[str, ...]]:
    return {name: column.names for name, column in columns.items() if column.names and column.num_classes is None}
