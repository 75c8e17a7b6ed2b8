"""Commands that read a spec and train nothing: `ditlab validate`, `show`, `schema`, `params`, `profile`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ditlab.cli import options, output
from ditlab.errors import UserError


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.overrides
@options.as_json
def validate(specs: tuple[Path, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check experiments and sweeps without running them. Every file is checked before the command fails."""
    from ditlab.api.specs import load, load_sweep
    from ditlab.spec.files import is_sweep
    from ditlab.spec.sweep_space import enumerate_trials

    mistakes, valid, hashes = [], [], {}
    for path in specs:
        remark = ""
        try:
            if is_sweep(path):
                sweep = load_sweep(path, overrides)
                planned = enumerate_trials(sweep)
                remark = f" (sweep, {sweep.trials if planned is None else len(planned):,} trials)"
            else:
                hashes[str(path)] = load(path, overrides).content_hash()
        except UserError as error:
            mistakes.append(str(error))
        else:
            valid.append(str(path))
            output.print_line(f"{path}: valid{remark}", as_json)
    if mistakes:
        raise UserError("\n".join(mistakes))
    output.emit({"valid": valid, "spec_hash": hashes}, as_json)
    command, settings = "tune" if is_sweep(specs[0]) else "train", output.repeated_arguments("specs", "as_json")
    output.hint(as_json, command, specs[0], *settings, "--dry-run")


@click.command()
@options.spec
@options.overrides
@options.as_json
def show(spec: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print an experiment or a sweep with its parents, overrides and defaults resolved, as equivalent YAML."""
    from ditlab.api.specs import load, load_sweep
    from ditlab.spec.files import is_sweep

    if is_sweep(spec):
        shown, hashes = load_sweep(spec, overrides).to_dict(), {}
    else:
        experiment = load(spec, overrides)
        shown, hashes = experiment.to_dict(), {"spec_hash": experiment.content_hash()}
    output.print_yaml(shown, as_json)
    output.emit({"spec": shown, **hashes}, as_json)
    output.hint(as_json, "train" if hashes else "tune", *output.repeated_arguments("as_json"), "--dry-run")


@click.command()
@click.option("--sweep", is_flag=True, help="The schema of sweeps instead of that of experiments.")
@click.option("--out", type=click.Path(path_type=Path), help="Write it to this file instead of standard output.")
@options.as_json
def schema(sweep: bool, out: Path | None, as_json: bool) -> None:
    """Print the JSON schema of experiments, or of sweeps, for editors and for reading: every field with its meaning."""
    from ditlab.spec.schema import experiment_schema, sweep_schema

    found = sweep_schema() if sweep else experiment_schema()
    if out is None:
        click.echo(json.dumps(found, indent=None if as_json else 2))
        return
    try:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}); name another file.") from error
    click.echo(out, err=as_json)
    output.emit({"files": [str(out)]}, as_json)


@click.command()
@options.spec
@click.option("--shapes", is_flag=True, help="Trace the forward pass shape by shape.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(min=1), help="Batch size of the trace.")
@options.overrides
@options.as_json
def params(spec: Path, shapes: bool, batch: int, overrides: tuple[str, ...], as_json: bool) -> None:
    """Count a model's parameters by component and by role, on the meta device: no memory is taken, whatever the size.

    The role decides a parameter's weight decay, learning rate and, with Muon, its update.
    """
    from ditlab.api.specs import load

    experiment = load(spec, overrides)
    from denoisers.parameters import count_by_role
    from ditlab.analysis.parameters import parameter_table, role_dict, role_table, shape_table
    from ditlab.analysis.user_errors import building
    from ditlab.api.specs import count_parameters, trace_shapes

    counts, terminal = count_parameters(experiment), output.console(as_json)
    terminal.print(parameter_table(experiment, counts))
    with building():
        roles = count_by_role(experiment.model, experiment.objective)
    terminal.print(role_table(roles))
    result: dict[str, Any] = asdict(counts) | role_dict(roles)
    if shapes:
        rows = trace_shapes(experiment, batch)
        terminal.print(shape_table(rows, batch))
        result["shapes"] = [asdict(row) for row in rows]
    output.emit(result, as_json)
    output.hint(as_json, "train", *output.repeated_arguments("shapes", "batch", "as_json"), "--dry-run")


@click.command()
@options.spec
@click.option("--steps", default=3, show_default=True, help="Profiled steps, at most 20.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the trace and the picture [default: DITLAB_HOME/caches/profile/NAME].",
)  # fmt: skip
@options.overrides
@options.as_json
def profile(spec: Path, steps: int, out: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show where the time of a training step goes: by phase, module and operator, in words and as a picture.

    Takes real steps of one worker on this machine, and leaves no run behind. The trace beside the picture opens in
    Perfetto and in Chrome (chrome://tracing).
    """
    from ditlab.cli.progress import ProgressBars

    with ProgressBars("loading PyTorch") as progress:
        from ditlab.analysis import profiling
        from ditlab.analysis.plot import Plot
        from ditlab.api import planning

        progress.stage("profiling steps")
        found = planning.profile(spec, overrides, num_steps=steps, out=out, say=progress.say)
        picture = Plot(profiling.profile_figure(found)).save(found.trace.with_name("profile.png"))
    terminal = output.console(as_json)
    for line in profiling.profile_lines(found):
        output.say(line) if as_json else terminal.print(line, markup=False, highlight=False)
    terminal.print(profiling.module_table(found))
    terminal.print(profiling.operator_table(found))
    for file in (picture, found.trace):
        output.print_line(output.short_path(file), as_json)
    output.emit({**profiling.profile_dict(found), "picture": str(picture)}, as_json)
