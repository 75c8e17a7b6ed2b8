"""`ditlab validate`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, set_option
from ditlab.cli.hints import hint, repeated_arguments


@click.command()
@click.argument("specs", nargs=-1, required=True, type=click.Path(path_type=Path))
@set_option
@json_option
def validate(specs: tuple[Path, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check experiments and sweeps without running them. Every file is checked before the command fails."""
    from ditlab.errors import UserError
    from ditlab.interface.specs import load, load_sweep
    from ditlab.spec.reading.files import is_sweep
    from ditlab.spec.sweep.space import enumerate_trials

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
            print_line(f"{path}: valid{remark}", as_json)
    if mistakes:
        raise UserError("\n".join(mistakes))
    emit({"valid": valid, "spec_hash": hashes}, as_json)
    command, settings = "tune" if is_sweep(specs[0]) else "train", repeated_arguments("specs", "as_json")
    hint(as_json, command, specs[0], *settings, "--dry-run")
