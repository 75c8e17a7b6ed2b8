"""`ditlab validate`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, set_option


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path))
@set_option
@json_option
def validate(specs: tuple[Path, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check specs without running them. Every mistake of every file is named before the command fails."""
    from ditlab.errors import UserError
    from ditlab.spec.loading import load_experiment

    mistakes, hashes = [], {}
    for path in specs:
        try:
            hashes[str(path)] = load_experiment(path, overrides).content_hash()
        except UserError as error:
            mistakes.append(str(error))
        else:
            click.echo(f"{path}: valid", err=as_json)
    if mistakes:
        raise UserError("\n".join(mistakes))
    emit({"valid": list(hashes), "spec_hash": hashes}, as_json)
