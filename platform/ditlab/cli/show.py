"""`ditlab show`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, set_option, spec_argument


@click.command()
@spec_argument
@set_option
@json_option
def show(spec: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print a spec with its parents, overrides and defaults resolved: YAML that gives the same experiment."""
    from ditlab.spec.loading import load_experiment
    from ditlab.spec.yaml_text import dump_yaml

    experiment = load_experiment(spec, overrides)
    click.echo(dump_yaml(experiment.to_dict()), nl=False, err=as_json)
    emit({"spec": experiment.to_dict(), "spec_hash": experiment.content_hash()}, as_json)
