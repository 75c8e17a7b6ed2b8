"""Commands that read a spec and train nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import echo
from ditlab.errors import UserError, cannot_write
from ditlab.parts import command_options, load_part
from ditlab.reports.formatting import terminal_table

if TYPE_CHECKING:
    from rich.table import Table

    from ditlab.spec.experiment import Experiment
    from ditlab_models.parameters import ParameterCount, RoledParameters
    from ditlab_models.shape_trace import Shape, ShapeRow


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.overrides
@options.as_json
def validate(specs: tuple[Path, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check experiments and sweeps without running them. Every file is checked before the command
    fails.

    Columns, sizes and classes of the data are compared with the model's where the store is on this
    machine.
    """
    from ditlab.api.specs import kind_of_file, load_checked
    from ditlab.spec.files import command_for, spec_name
    from ditlab.spec.sweep import Sweep
    from ditlab.spec.sweep_space import enumerate_trials

    mistakes = []
    valid = []
    hashes = {}
    not_compared = {}
    for path in specs:
        remark = ""
        try:
            kind = kind_of_file(path)
            spec, absent = load_checked(path, overrides, kind)
            if kind is not None:
                remark = f" ({kind.noun}, {spec.describe()})"
            elif isinstance(spec, Sweep):
                planned = enumerate_trials(spec)
                num = (spec.trials or 0) if planned is None else len(planned)
                remark = f" (sweep, {num:,} trials)"
                if spec.num_seeds > 1:
                    seeds = len(spec.first_seeds)
                    remark = (
                        f" (sweep, {num:,} configurations under {seeds} seeds, {num * seeds:,} "
                        "runs)"
                    )
            else:
                hashes[str(path)] = spec.content_hash()
        except UserError as error:
            mistakes.append(str(error))
        else:
            valid.append(str(path))
            output.print_line(f"{spec_name(path)}: valid{remark}", as_json)
            if absent:
                not_compared[str(path)] = absent
                output.say(f"{spec_name(path)}: not compared with its data, as {absent}")
    if mistakes:
        raise UserError("\n".join(mistakes))
    output.emit({"valid": valid, "spec_hash": hashes, "not_compared": not_compared}, as_json)
    command = command_for(specs[0])
    settings = output.repeated_arguments("specs", "as_json")
    output.hint(as_json, command, specs[0], *settings, "--dry-run")


@click.command()
@options.spec
@options.overrides
@options.as_json
def show(spec: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print an experiment or a sweep with its parents, overrides and defaults resolved, as
    equivalent YAML.
    """
    from ditlab.api.specs import kind_of_file, load_checked
    from ditlab.spec.experiment import Experiment
    from ditlab.spec.files import command_for

    loaded, _ = load_checked(spec, overrides, kind_of_file(spec))
    shown = loaded.to_dict()
    hashes = {}
    if isinstance(loaded, Experiment):
        hashes["spec_hash"] = loaded.content_hash()
    output.print_yaml(shown, as_json)
    output.emit({"spec": shown, **hashes}, as_json)
    output.hint(as_json, command_for(spec), *output.repeated_arguments("as_json"), "--dry-run")


@click.command()
@click.option("--sweep", is_flag=True, help="The schema of sweeps instead of that of experiments.")
@options.added("schema")
@click.option(
    "--result",
    metavar="COMMAND",
    help="The schema of the object that a command prints under --json: 'runs show'.",
)
@click.option(
    "--out",
    type=options.NewPath(path_type=Path),
    help="Write it to this file instead of standard output.",
)
@options.as_json
def schema(sweep: bool, result: str | None, out: Path | None, as_json: bool, **added: bool) -> None:
    """Print the JSON schema of experiments, or of sweeps, for editors and for reading: every field
    with its meaning.
    """
    from ditlab.cli.output_types import result_schema
    from ditlab.spec.schema import experiment_schema, sweep_schema

    asked = [option for option in command_options("schema").values() if added[option.parameter]]
    if result is not None:
        found = result_schema(result)
    elif asked:
        found = load_part("option", asked[0].name, asked[0].target)()
    else:
        found = sweep_schema() if sweep else experiment_schema()
    if out is None:
        echo(json.dumps(found, indent=None if as_json else 2))
        return
    try:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise cannot_write(f"--out {out}", error, "name another file") from error
    output.print_line(out, as_json)
    output.emit({"files": [str(out)]}, as_json)


@click.command()
@options.spec
@click.option("--shapes", is_flag=True, help="Trace the forward pass shape by shape.")
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="Batch size of the trace.",
)
@options.overrides
@options.as_json
def params(spec: Path, shapes: bool, batch: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Count a model's parameters by component and by role, on the meta device: no memory is taken,
    whatever the size.

    The role decides a parameter's weight decay, learning rate and, with Muon, its update.
    """
    from ditlab.api.specs import load

    experiment = load(spec, overrides)
    from ditlab.analysis.user_errors import building
    from ditlab.api.specs import count_parameters, trace_shapes
    from ditlab_models.parameters import count_by_role

    counts = count_parameters(experiment)
    terminal = output.console(as_json)
    with building():
        roles = count_by_role(experiment.model, experiment.objective, experiment.training)
    terminal.print(role_table(roles))
    sums = Counter[str]()
    for row in roles:
        sums[row.role] += row.total
    result: dict[str, Any] = asdict(counts) | {"roles": dict(sums)}
    result["by_parameter"] = [{**asdict(row), "parameters": row.total} for row in roles]
    if shapes:
        traced = trace_shapes(experiment, batch)
        terminal.print(shape_table(traced, batch))
        result["shapes"] = [asdict(row) for row in traced]
    terminal.print(parameter_table(experiment, counts))
    output.emit(result, as_json)
    output.hint(
        as_json, "train", *output.repeated_arguments("shapes", "batch", "as_json"), "--dry-run"
    )


def parameter_table(experiment: Experiment, counts: ParameterCount) -> Table:
    """Parameters by component; the total is the last row."""
    rows = [
        (name, f"{number:,}", f"{number / counts.total:.1%}")
        for name, number in counts.components.items()
    ]
    rows += [
        (f"{name} (training only, not in the total)", f"{each:,}", "")
        for name, each in counts.training_only.items()
    ]
    if counts.trainable != counts.total:
        rows += [("trainable", f"{counts.trainable:,}", ""), ("frozen", f"{counts.frozen:,}", "")]
    rows.append(("total", f"{counts.total:,}", ""))
    title = f"{experiment.name} ({experiment.model.family})"
    return terminal_table(
        {"component": "text", "parameters": "number", "share": "number"}, rows, title
    )


def role_table(rows: list[RoledParameters]) -> Table:
    """Parameters by role, alike ones of several blocks in one line."""
    columns = {"role": "text", "parameter": "text", "shape": "text"}
    table = terminal_table(columns | {"copies": "number", "parameters": "number"}, title="by role")
    for role in dict.fromkeys(row.role for row in rows):
        own = [row for row in rows if row.role == role]
        for row in own:
            parts = f" ({row.num_parts} matrices)" if row.num_parts > 1 else ""
            table.add_row(
                role, row.name, _shapes([row.shape]) + parts, f"{row.copies:,}", f"{row.total:,}"
            )
        table.add_row(f"all {role}", "", "", "", f"{sum(row.total for row in own):,}", style="bold")
    return table


def shape_table(rows: list[ShapeRow], batch_size: int) -> Table:
    """Shapes of inputs and outputs by module, which is named by its path's end: `blocks.3` for a
    member of a list.
    """
    columns = dict.fromkeys(("module", "class", "input", "output"), "text") | {
        "parameters": "number"
    }
    table = terminal_table(columns, title=f"forward pass, batch {batch_size}")
    for row in rows:
        parts = row.path.split(".")
        name = ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:]) or "(whole network)"
        table.add_row(
            "  " * row.depth + name,
            row.kind,
            _shapes(row.inputs),
            _shapes(row.outputs),
            f"{row.parameters:,}",
        )
    return table


def _shapes(shapes: list[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)
