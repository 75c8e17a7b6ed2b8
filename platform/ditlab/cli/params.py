"""`ditlab params`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import building, emit, json_option, set_option, spec_argument


@click.command()
@spec_argument
@click.option("--shapes", is_flag=True, help="Trace the forward pass shape by shape.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(min=1), help="Batch size of the trace.")
@set_option
@json_option
def params(spec: Path, shapes: bool, batch: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Count a model's parameters by component, on the meta device: no memory is taken, whatever the size."""
    from rich.console import Console
    from rich.table import Table

    from denoisers.parameter_counts import count_parameters
    from denoisers.shape_trace import trace_shapes
    from ditlab.spec.reading.loading import load_experiment

    experiment = load_experiment(spec, overrides)
    with building():
        counts = count_parameters(experiment.model, experiment.objective)
    console = Console(stderr=as_json)
    table = Table("component", "parameters", "share", title=f"{experiment.name} ({experiment.model.family})")
    for name, number in counts.components.items():
        table.add_row(name, f"{number:,}", f"{number / counts.total:.1%}")
    table.add_section()
    table.add_row("total", f"{counts.total:,}", "")
    if counts.trainable != counts.total:
        table.add_row("trainable", f"{counts.trainable:,}", "")
    for name, number in counts.training_only.items():
        table.add_row(f"{name} (training only, not in the total)", f"{number:,}", "")
    console.print(table)
    result: dict[str, Any] = {
        "total": counts.total,
        "trainable": counts.trainable,
        "components": counts.components,
        "training_only": counts.training_only,
    }
    if shapes:
        rows = trace_shapes(experiment.model, batch)
        trace = Table("module", "class", "input", "output", "parameters", title=f"forward pass, batch {batch}")
        for row in rows:
            module = "  " * row.depth + (_short(row.path) or "(whole network)")
            trace.add_row(module, row.kind, _shapes(row.inputs), _shapes(row.outputs), f"{row.parameters:,}")
        console.print(trace)
        result["shapes"] = [asdict(row) for row in rows]
    emit(result, as_json)


def _short(path: str) -> str:
    """The last part of a module's path; `blocks.3` for a member of a list."""
    parts = path.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
