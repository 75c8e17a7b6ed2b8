"""`ditlab schema`."""

import json
from pathlib import Path

import click

from ditlab.cli.common import emit, json_option


@click.command()
@click.option("--sweep", is_flag=True, help="The schema of sweeps instead of that of experiments.")
@click.option("--out", type=click.Path(path_type=Path), help="Write it to this file instead of standard output.")
@json_option
def schema(sweep: bool, out: Path | None, as_json: bool) -> None:
    """Print the JSON schema of experiments, or of sweeps, for editors and for reading: every field with its meaning."""
    from ditlab.errors import UserError
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
    emit({"files": [str(out)]}, as_json)
