"""Held-out rows and their draws, as evaluations read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from ditlab.data.splits import DataSplits
from ditlab.data.stores.row_changes import change_rows
from ditlab.data.stores.view import View
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.training.evaluation import metrics_by_part
from ditlab_addons.check.prove.properties.checked_run import CheckedRun
from ditlab_addons.check.prove.properties.draws import RowDraws, add_draws, compare_draws
from ditlab_addons.check.prove.properties.training_rows import data_parts
from ditlab_addons.check.prove.properties.watching import WatchedObjective
from ditlab_addons.check.prove.reference import ReferenceModel, Tensors
from ditlab_addons.check.prove.steps import is_stored

PHASE = "held-out draws"


class HeldOutRow(NamedTuple):
    """A row that an evaluation reads."""

    view: View
    row: int
    """Its number in the view's store."""


def compare_held_out(checked: CheckedRun) -> None:
    """Compare the rows that an evaluation reads with the held-out ones, and the numbers that it
    draws for each in evaluations of two batch sizes."""
    run = checked.run
    findings = checked.findings
    if not len(run.data.held_out):
        findings.unchecked.append("held-out metrics, as no rows are held out")
        return
    size = min(checked.pass_size, run.experiment.evaluation.limit)
    model = checked.model(torch.float32)
    watched = evaluated(checked, model, size)
    again = evaluated(checked, model, max(1, size // 2))
    compare_rows(checked, watched)
    draws = draws_by_name(watched)
    others = draws_by_name(again)
    wrong = [
        f"{name} depends on the batch, or on the evaluation"
        for name, each in draws.items()
        if name not in others or each.rows != others[name].rows
    ]
    findings.same(PHASE, "alike in two evaluations", wrong)
    if run.data.mixture is None and len(run.data.held_out.store.parts) == 1:
        compare_draws(PHASE, "held-out rows", draws, findings)
    if watched.again:
        findings.untold.append(
            f"Held-out metrics draw {', '.join(sorted(watched.again))} several times for a row, "
            "and these have the same numbers."
        )


def evaluated(checked: CheckedRun, model: ReferenceModel, batch_size: int) -> WatchedObjective:
    """Evaluate a network as a run does, in this process; return its objective, with the batches and
    draws that it was called with."""
    run = checked.run
    alone = Rank(0, 1, 0, checked.inputs.device)
    objective = WatchedObjective(model.objective)
    with torch.no_grad():
        metrics_by_part(
            model.network,
            objective,
            run.experiment,
            run.data,
            checked.inputs,
            batch_size,
            run.experiment.evaluation.limit,
            alone,
            ControlChannel(alone),
        )
    return objective


def draws_by_name(watched: WatchedObjective) -> dict[str, RowDraws]:
    """Return the draws of an evaluation by name."""
    found: dict[str, RowDraws] = {}
    for batch in watched.draws:
        add_draws(found, batch)
    return found


def compare_rows(checked: CheckedRun, watched: WatchedObjective) -> None:
    """Compare the batches of an evaluation with the held-out rows, one after the other."""
    due = list(held_out_rows(checked.run.data, checked.experiment.evaluation.limit))
    wrong = []
    num_read = 0
    for batch in watched.batches:
        num = len(next(iter(batch.values())))
        for place in range(num):
            number = num_read + place
            if number >= len(due):
                wrong.append(f"evaluation reads more than {len(due)} rows")
                break
            for name in differing_fields(batch, place, due[number], checked.inputs):
                wrong.append(f"{name} of row {number + 1} is another's")
        num_read += num
    if num_read < len(due):
        wrong.append(f"evaluation reads {num_read} of {len(due)} rows")
    checked.findings.same("held-out rows", "those that evaluation reads", wrong)


def held_out_rows(data: DataSplits, limit: int) -> Iterator[HeldOutRow]:
    """Yield the held-out rows that an evaluation of `limit` reads, in its order: each part's first
    ones, one size after the other."""
    measured = {"": limit}
    if data.mixture is not None:
        measured = data.mixture.measured(limit)
    parts = data_parts(data)
    for name, num in measured.items():
        view = parts[name].held_out
        rows = view.rows[np.arange(min(num, len(view)))]
        for row in rows[np.argsort(view.store.bucket_of(rows), kind="stable")]:
            yield HeldOutRow(view, int(row))


def differing_fields(
    batch: Tensors, place: int, due: HeldOutRow, inputs: ModelInputs
) -> Iterator[str]:
    """Yield the fields of a batch that hold other values at a place than the row due."""
    view = due.view
    row = np.array([due.row])
    for field in inputs.fields:
        if field.name not in batch:
            continue  # an encoder's features take its place
        values = view.store.gather(field.name, row)
        if view.changes:
            change_rows(view.changes, {field.name: values}, row)
        own = batch[field.name][place : place + 1]
        if not is_stored(own, values, field, view.columns[field.name]):
            yield field.name
