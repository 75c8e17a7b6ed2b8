"""A family's own evaluation of a network, beside baselines: measured, shown as tables, stored with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from torch import nn

from denoisers.contract import EvaluationResult
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import RunFolder, writable_folder
from ditlab.inputs.conditions import row_set
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.text_file import save_table
from ditlab.spec.experiment import Experiment

FOLDER = "assessment"
"""Folder below the run's media, and among MLflow's artifacts."""
MOST_ROWS = 10
"""Rows of the longest table that is shown; longer ones are for tools."""


def evaluate_by_family(
    experiment: Experiment,
    network: nn.Module,
    data: DataSplits,
    num_rows: int | None,
    batch_size: int,
    inputs: ModelInputs,
) -> EvaluationResult | None:
    """The family's evaluation on the first `num_rows` held-out rows (None: all); None where it has no evaluator."""
    evaluator = experiment.family.build_evaluator(experiment.objective, experiment.model, data.text)
    if evaluator is None:
        return None
    train_rows, held_out_rows = row_set(data.train, inputs), row_set(data.held_out.first(num_rows), inputs)
    return evaluator.evaluate(network, train_rows, held_out_rows, data.references, batch_size)


def short_tables(tables: dict[str, dict[str, np.ndarray]]) -> Iterator[Table]:
    """The tables of at most `MOST_ROWS` rows for a terminal, numbers to the right."""
    for name, columns in tables.items():
        if max(map(len, columns.values())) > MOST_ROWS:
            continue
        table = Table(title=f"assessed: {name.replace('_', ' ')}")
        for header, values in columns.items():
            is_text = values.dtype.kind in "UO"
            table.add_column(header, justify="left" if is_text else "right", no_wrap=is_text)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*map(_cell, row))
        yield table


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float | np.floating) else str(value)


def store_evaluation(result: EvaluationResult, folder: RunFolder) -> list[Path]:
    """Write figures (PNG) and tables (Parquet) into the run's folder; return the files.

    Raises UserError where the disk refuses.
    """
    knob, remedy = f"the folder of run {folder.run_id}", "make room, or make DITLAB_HOME writable"
    place = writable_folder(folder.media / FOLDER, knob, remedy)
    try:
        files = [save_figure(figure, place / name) for name, figure in result.figures.items()]
        return files + [save_table(table, place / f"{name}.parquet") for name, table in result.tables.items()]
    except OSError as error:
        raise UserError(f"{knob} cannot be written ({error.strerror}); {remedy}.") from error
