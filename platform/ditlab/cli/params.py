"""`ditlab params`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ditlab.cli.common import console, emit, json_option, set_option, spec_argument
from ditlab.cli.hints import hint, repeated_arguments


@click.command()
@spec_argument
@click.option("--shapes", is_flag=True, help="Trace the forward pass shape by shape.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(min=1), help="Batch size of the trace.")
@set_option
@json_option
def params(spec: Path, shapes: bool, batch: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Count a model's parameters by component and by role, on the meta device: no memory is taken, whatever the size.

    By its role an optimiser decides a parameter's weight decay, learning rate and, for Muon, its update.
    """
    from ditlab.interface.specs import load

    experiment = load(spec, overrides)
    from ditlab.analysis.parameters import experiment_roles, parameter_table, role_dict, role_table, shape_table
    from ditlab.interface.specs import count_parameters, trace_shapes

    counts, terminal = count_parameters(experiment), console(as_json)
    terminal.print(parameter_table(experiment, counts))
    roles = experiment_roles(experiment)
    terminal.print(role_table(roles))
    result: dict[str, Any] = asdict(counts) | role_dict(roles)
    if shapes:
        rows = trace_shapes(experiment, batch)
        terminal.print(shape_table(rows, batch))
        result["shapes"] = [asdict(row) for row in rows]
    emit(result, as_json)
    hint(as_json, "train", *repeated_arguments("shapes", "batch", "as_json"), "--dry-run")
