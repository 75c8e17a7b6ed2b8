"""Parameters of an experiment's network, by component and by role, and its forward trace, as tables for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from denoisers.parameters import ParameterCount, RoledParameters
from denoisers.shape_trace import Shape, ShapeRow
from ditlab.reports.formatting import terminal_table
from ditlab.spec.experiment import Experiment


def parameter_table(experiment: Experiment, counts: ParameterCount) -> Table:
    """Parameters by component."""
    rows = [(name, f"{number:,}", f"{number / counts.total:.1%}") for name, number in counts.components.items()]
    rows.append(("total", f"{counts.total:,}", ""))
    if counts.trainable != counts.total:
        rows.append(("trainable", f"{counts.trainable:,}", ""))
    rows += [
        (f"{name} (training only, not in the total)", f"{each:,}", "") for name, each in counts.training_only.items()
    ]
    title = f"{experiment.name} ({experiment.model.family})"
    return terminal_table({"component": "text", "parameters": "number", "share": "number"}, rows, title)


def role_table(rows: list[RoledParameters]) -> Table:
    """Parameters by role, alike ones of several blocks in one line."""
    columns = {"role": "text", "parameter": "text", "shape": "text"}
    table = terminal_table(columns | {"copies": "number", "parameters": "number"}, title="by role")
    for role in dict.fromkeys(row.role for row in rows):
        own = [row for row in rows if row.role == role]
        for row in own:
            parts = f" ({row.num_parts} matrices)" if row.num_parts > 1 else ""
            table.add_row(role, row.name, _shapes([row.shape]) + parts, f"{row.copies:,}", f"{row.total:,}")
        table.add_row(f"all {role}", "", "", "", f"{sum(row.total for row in own):,}", style="bold")
    return table


def role_dict(rows: list[RoledParameters]) -> dict[str, Any]:
    """Parameters by role, as JSON: `roles` in sum, `by_parameter` each."""
    roles: dict[str, int] = {}
    for row in rows:
        roles[row.role] = roles.get(row.role, 0) + row.total
    return {"roles": roles, "by_parameter": [{**asdict(row), "parameters": row.total} for row in rows]}


def shape_table(rows: list[ShapeRow], batch_size: int) -> Table:
    """Shapes of inputs and outputs by module, which is named by its path's end: `blocks.3` for a member of a list."""
    columns = dict.fromkeys(("module", "class", "input", "output"), "text") | {"parameters": "number"}
    table = terminal_table(columns, title=f"forward pass, batch {batch_size}")
    for row in rows:
        parts = row.path.split(".")
        name = ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:]) or "(whole network)"
        table.add_row(
            "  " * row.depth + name, row.kind, _shapes(row.inputs), _shapes(row.outputs), f"{row.parameters:,}"
        )
    return table


def _shapes(shapes: list[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
