"""`ditlab show`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, set_option, spec_argument


@click.command()
@spec_argument
@set_option
@json_option
def show(spec: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print an experiment or a sweep with its parents, overrides and defaults resolved: YAML that gives the same."""
    from ditlab.spec.reading.files import is_sweep
    from ditlab.spec.reading.loading import load_experiment
    from ditlab.spec.reading.yaml_text import dump_yaml
    from ditlab.spec.sweep.loading import load_sweep
    from ditlab.spec.sweep.space import check_sweep

    if is_sweep(spec):
        sweep = load_sweep(spec, overrides)
        check_sweep(sweep, str(spec))
        shown, hashes = sweep.to_dict(), {}
    else:
        experiment = load_experiment(spec, overrides)
        shown, hashes = experiment.to_dict(), {"spec_hash": experiment.content_hash()}
    click.echo(dump_yaml(shown), nl=False, err=as_json)
    emit({"spec": shown, **hashes}, as_json)
