"""Parameters of an experiment's network, by component and by role, and its forward trace, as tables for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from denoisers.parameters import ParameterCount, RoledParameters, count_by_role
from denoisers.shape_trace import Shape, ShapeRow
from ditlab.analysis.user_errors import building
from ditlab.spec.experiment import Experiment


def experiment_roles(experiment: Experiment) -> list[RoledParameters]:
    """List the parameters of an experiment's network and loss with their roles, by which its optimiser groups them.

    Raises UserError for a network or objective that cannot be built.
    """
    with building():
        return count_by_role(experiment.model, experiment.objective)


def parameter_table(experiment: Experiment, counts: ParameterCount) -> Table:
    """Parameters by component."""
    table = Table("component", "parameters", "share", title=f"{experiment.name} ({experiment.model.family})")
    for name, number in counts.components.items():
        table.add_row(name, f"{number:,}", f"{number / counts.total:.1%}")
    table.add_section()
    table.add_row("total", f"{counts.total:,}", "")
    if counts.trainable != counts.total:
        table.add_row("trainable", f"{counts.trainable:,}", "")
    for name, number in counts.training_only.items():
        table.add_row(f"{name} (training only, not in the total)", f"{number:,}", "")
    return table


def role_table(rows: list[RoledParameters]) -> Table:
    """Parameters by role, alike ones of several blocks in one line."""
    table = Table("role", "parameter", "shape", "copies", "parameters", title="by role")
    for column in table.columns[3:]:
        column.justify = "right"
    table.columns[1].overflow = "fold"
    roles = dict.fromkeys(row.role for row in rows)
    for role in roles:
        own = [row for row in rows if row.role == role]
        for row in own:
            parts = f" ({row.num_parts} matrices)" if row.num_parts > 1 else ""
            table.add_row(role, row.name, _shapes([row.shape]) + parts, f"{row.copies:,}", f"{row.total:,}")
        table.add_row(f"all {role}", "", "", "", f"{sum(row.total for row in own):,}", end_section=True, style="bold")
    return table


def role_dict(rows: list[RoledParameters]) -> dict[str, Any]:
    """Parameters by role, as JSON: `roles` in sum, `by_parameter` each."""
    roles: dict[str, int] = {}
    for row in rows:
        roles[row.role] = roles.get(row.role, 0) + row.total
    return {"roles": roles, "by_parameter": [{**asdict(row), "parameters": row.total} for row in rows]}


def shape_table(rows: list[ShapeRow], batch_size: int) -> Table:
    """Shapes of inputs and outputs by module."""
    table = Table("module", "class", "input", "output", "parameters", title=f"forward pass, batch {batch_size}")
    for row in rows:
        module = "  " * row.depth + (_short(row.path) or "(whole network)")
        table.add_row(module, row.kind, _shapes(row.inputs), _shapes(row.outputs), f"{row.parameters:,}")
    return table


def _short(path: str) -> str:
    """The last part of a module's path; `blocks.3` for a member of a list."""
    parts = path.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _shapes(shapes: list[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
