"""`ditlab schema`."""

import json
from pathlib import Path

import click

from ditlab.cli.common import json_option


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write it to this file instead of standard output.")
@json_option
def schema(out: Path | None, as_json: bool) -> None:
    """Print the JSON schema of experiments, for editors and for reading: every field with its meaning."""
    from ditlab.spec.schema import experiment_schema

    text = json.dumps(experiment_schema(), indent=None if as_json else 2)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
        click.echo(f"wrote {out}", err=True)
    else:
        click.echo(text)
