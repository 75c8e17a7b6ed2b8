"""Rows of a view as model families take them: batch fields, the store's other columns, fixed draws."""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import torch

from denoisers.contract import RealRows, RowSet
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.view import View
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise, fixed_noise


def row_set(view: View, inputs: ModelInputs) -> RowSet:
    """Return all rows of a view, on the model's device, in the view's own order, bucket by bucket."""

    def batches(size: int) -> Iterator[RealRows]:
        for rows in view.batches(size):
            yield real_rows(view, rows.indices, inputs, fixed_noise(rows.first, inputs.device, rows.bucket))

    return RowSet(len(view), batches)


def real_rows(
    view: View, indices: np.ndarray, inputs: ModelInputs, noise: RowNoise, fields: Collection[str] | None = None
) -> RealRows:
    """Return rows of a view on the noise's device; rows of several buckets are padded.

    `fields`: the model's fields to read, None for all.
    """
    read = inputs if fields is None else inputs.only(fields)
    raw = {field.name: view.padded(field.name, indices) for field in read.fields}
    batch = read.prepare_batch(raw, view.columns, noise.device)
    return RealRows(batch, _other_columns(view, indices, inputs.names), _entry_names(view.columns), noise)


def rows_without_fields(view: View, indices: np.ndarray, fields: Collection[str]) -> RealRows:
    """Return rows of a view by their other columns than the model's `fields`, which are not read."""
    noise = fixed_noise(int(indices[0]) if len(indices) else 0, torch.device("cpu"))
    return RealRows({}, _other_columns(view, indices, fields), _entry_names(view.columns), noise)


def _other_columns(view: View, indices: np.ndarray, fields: Collection[str]) -> dict[str, np.ndarray]:
    return {
        name: _with_class_names(view.padded(name, indices).numpy(), column)
        for name, column in view.columns.items()
        if name not in fields
    }


def _with_class_names(values: np.ndarray, column: StoredColumn) -> np.ndarray:
    return np.array(column.names)[values] if column.names and column.num_classes is not None else values


def _entry_names(columns: Mapping[str, StoredColumn]) -> dict[str, tuple[str, ...]]:
    return {name: column.names for name, column in columns.items() if column.names and column.num_classes is None}
