"""`ditlab show`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_yaml, set_option, spec_argument
from ditlab.cli.hints import hint, repeated_arguments


@click.command()
@spec_argument
@set_option
@json_option
def show(spec: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print an experiment or a sweep with its parents, overrides and defaults resolved, as equivalent YAML."""
    from ditlab.interface.specs import load, load_sweep
    from ditlab.spec.reading.files import is_sweep

    if is_sweep(spec):
        shown, hashes = load_sweep(spec, overrides).to_dict(), {}
    else:
        experiment = load(spec, overrides)
        shown, hashes = experiment.to_dict(), {"spec_hash": experiment.content_hash()}
    print_yaml(shown, as_json)
    emit({"spec": shown, **hashes}, as_json)
    hint(as_json, "train" if hashes else "tune", *repeated_arguments("as_json"), "--dry-run")
