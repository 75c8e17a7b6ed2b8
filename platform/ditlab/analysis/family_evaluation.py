"""A family's own assessment of a run, for `ditlab evaluate`: measured, printed, and kept with the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from torch import nn

from denoisers.contract import Assessment
from ditlab.analysis.saved_run import SavedRun
from ditlab.data.splits import DataSplits
from ditlab.errors import UserError
from ditlab.home import writable_folder
from ditlab.inputs.conditions import row_set
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.spec.experiment import Experiment

FOLDER = "assessment"
"""Below the run's media, and among MLflow's artifacts."""
MOST_ROWS = 10
"""Of a table that is printed; longer ones are for tools."""


def assess(
    experiment: Experiment,
    network: nn.Module,
    data: DataSplits,
    rows: int | None,
    batch_size: int,
    inputs: ModelInputs,
) -> Assessment | None:
    """The family's assessment on the first `rows` held-out rows (None: all), or None where it has no assessor."""
    assessor: Any = experiment.objective.assessor(experiment.model, data.text)
    if assessor is None:
        return None
    held_out = replace(data.held_out, rows=data.held_out.rows[:rows])
    train, seen = row_set(data.train, inputs), row_set(held_out, inputs)
    found: Assessment = assessor.assess(network, train, seen, data.references, batch_size)
    return found


def printed_tables(assessment: Assessment) -> Iterator[Table]:
    """The tables that a person can read in one look, numbers to the right."""
    for name, columns in assessment.tables.items():
        if max(map(len, columns.values())) > MOST_ROWS:
            continue
        table = Table(title=f"assessed: {name.replace('_', ' ')}")
        for header, values in columns.items():
            is_text = values.dtype.kind in "UO"
            table.add_column(header, justify="left" if is_text else "right", no_wrap=is_text)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*map(_shown, row))
        yield table


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float | np.floating) else str(value)


def table_lists(assessment: Assessment) -> dict[str, dict[str, list[Any]]]:
    """The tables for a JSON line."""
    return {
        name: {header: values.tolist() for header, values in columns.items()}
        for name, columns in assessment.tables.items()
    }


def keep(assessment: Assessment, saved: SavedRun) -> list[Path]:
    """Writes figures (PNG) and tables (Parquet) into the run's folder; returns where they lie.

    Raises UserError where the disk refuses.
    """
    from ditlab.reports.rendering.render import (
        save,  # matplotlib fills its cache below DITLAB_HOME: not for an unknown run
    )
    from ditlab.reports.tables import save_table

    knob, remedy = f"the folder of run {saved.folder.run_id}", "make room, or make DITLAB_HOME writable"
    folder = writable_folder(saved.folder.media / FOLDER, knob, remedy)
    try:
        files = [save(figure, folder / name) for name, figure in assessment.figures.items()]
        return files + [save_table(table, folder / f"{name}.parquet") for name, table in assessment.tables.items()]
    except OSError as error:
        raise UserError(f"{knob} cannot be written ({error.strerror}); {remedy}.") from error
