"""Conditions of samples, from a request and from rows of a data set; rows of a view as model
families take them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.data.images.captions import LABEL
from ditlab.data.splits import DataSplits, classes_with_samples
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import RowNoise, fixed_noise
from ditlab_models.contract import (
    DEFAULT_REQUEST,
    BatchField,
    ClassSampler,
    RealRows,
    RowSet,
    SampleRequest,
)

DEFAULT_NUM_SAMPLES = 64
"""Samples where no number is given, and no sampler selects rows."""
SCAN_ROWS = 4096
"""Rows whose columns are read together to find those that a sampler selects."""


@dataclass(frozen=True)
class SampleConditions:
    """Conditions of samples."""

    num: int
    """Number of samples: as many as were requested, or as there are rows to complete."""
    tensors: dict[str, Tensor]
    """Conditions of the sampler by name, (num, ...) each."""
    rows: RealRows | None = None
    """Rows to be completed, in the host's memory; None where samples are made from noise alone."""


def name_classes(sampler: Any, classes: Mapping[str, Sequence[str]]) -> Any:
    """Return a sampler that shows the classes of its samples by their names, which `classes` hold
    by column.
    """
    if isinstance(sampler, ClassSampler):
        sampler.class_names = classes.get(LABEL, ())
    return sampler


def rows_for_samples(data: DataSplits) -> View:
    """Return the rows that samples complete: held-out ones, training rows where nothing is held
    out.
    """
    return data.held_out if len(data.held_out) else data.train


def sample_conditions(
    sampler: Any,
    num: int | None,
    view: View | None,
    inputs: ModelInputs,
    request: SampleRequest = DEFAULT_REQUEST,
) -> SampleConditions:
    """Return the conditions of `num` samples, or of fewer where a sampler completes rows and
    selects fewer.

    A sampler that completes rows gets the view's first `num` that it selects; one that takes
    conditions from rows gets, for a request without prompts, the view's first `num` rows, over and
    over; any other needs no view. `num` None: all rows of a sampler that selects some,
    DEFAULT_NUM_SAMPLES samples of any other. The first k do not depend on `num`. A request without
    an encoder of texts gets that of `inputs`. Raises UserError for a condition that the model does
    not have, and where no row is selected.
    """
    if not request.encode:
        request = replace(request, encode=inputs.encode)
    if view is not None and not request.classes:
        request = replace(request, classes=classes_with_samples(view.columns))
    noise = fixed_noise(0, torch.device("cpu"))
    try:
        if sampler.takes_rows != "completed":
            num = num or DEFAULT_NUM_SAMPLES
            if sampler.takes_rows == "conditions" and view is not None and not request.prompts:
                rows = real_rows(
                    view, np.arange(num) % len(view), inputs, noise, sampler.row_fields
                )
                request = replace(request, rows=rows)
            return SampleConditions(num, sampler.conditions(num, request))
        assert view is not None, "completed rows come from a view"
        selected = _rows_to_complete(sampler, num, view, inputs.names)
        rows = real_rows(view, selected, inputs, noise)
        return SampleConditions(
            len(selected), sampler.conditions(len(selected), replace(request, rows=rows)), rows
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def _rows_to_complete(
    sampler: Any, num: int | None, view: View, fields: Collection[str]
) -> np.ndarray:
    """Return the first `num` of the view's rows that a sampler selects. Raises UserError where it
    selects none.
    """
    found: list[int] = []
    for indices, chosen in _selections(sampler, view, fields):
        if chosen is None:
            num = num or DEFAULT_NUM_SAMPLES
            chosen = indices
        found.extend(chosen.tolist())
        if num and len(found) >= num:
            break
    if not found:
        note = sampler.note(rows_without_fields(view, np.arange(len(view)), fields))
        if note:
            note = f" ({note})"
        raise UserError(
            f"{view.origin} holds no row that `sampling` would complete{note}; take other rows "
            "(--data train, or a store's folder), or change sampling."
        )
    return np.array(found[:num], dtype=np.int64)


def num_selected_rows(sampler: Any, view: View, fields: Sequence[BatchField]) -> int | None:
    """Count all the view's rows that the sampler selects; None where it takes any."""
    num = 0
    for _, selected in _selections(sampler, view, {field.name for field in fields}):
        if selected is None:
            return None
        num += len(selected)
    return num


def _selections(
    sampler: Any, view: View, fields: Collection[str]
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield places in the view, SCAN_ROWS at a time, and those of them that the sampler selects
    (None: any).
    """
    for start in range(0, len(view), SCAN_ROWS):
        indices = np.arange(start, min(start + SCAN_ROWS, len(view)))
        selected = sampler.select_rows(rows_without_fields(view, indices, fields))
        if selected is not None:
            selected = indices[selected]
        yield indices, selected


def row_set(view: View, inputs: ModelInputs) -> RowSet:
    """Return all rows of a view, on the model's device, in the view's own order, bucket by
    bucket.
    """

    def batches(size: int) -> Iterator[RealRows]:
        for rows in view.batches(size):
            yield real_rows(
                view, rows.indices, inputs, fixed_noise(rows.first, inputs.device, rows.bucket)
            )

    return RowSet(len(view), batches)


def real_rows(
    view: View,
    indices: np.ndarray,
    inputs: ModelInputs,
    noise: RowNoise,
    fields: Collection[str] | None = None,
) -> RealRows:
    """Return rows of a view on the noise's device; rows of several buckets are padded. `fields`:
    the model's fields to read, None for all."""
    read = inputs if fields is None else inputs.only(fields)
    raw = {field.name: view.padded(field.name, indices) for field in read.fields}
    batch = read.prepare_batch(raw, view.columns, noise.device, noise=noise)
    return replace(rows_without_fields(view, indices, inputs.names), batch=batch, noise=noise)


def rows_without_fields(view: View, indices: np.ndarray, fields: Collection[str]) -> RealRows:
    """Return rows of a view by their other columns than the model's `fields`, which are not
    read.
    """
    others = dict[str, np.ndarray]()
    entry_names = dict[str, tuple[str, ...]]()
    for name, column in view.columns.items():
        if name not in fields:
            others[name] = view.padded(name, indices).numpy()
            # names in the place of class indices
            if column.names and column.num_classes is not None:
                others[name] = np.array(column.names)[others[name]]
        if column.names and column.num_classes is None:
            entry_names[name] = column.names
    first = int(indices[0]) if len(indices) else 0
    noise = fixed_noise(first, torch.device("cpu"))
    return RealRows({}, others, entry_names, noise)
