"""`ditlab export`."""

from pathlib import Path

import click

from ditlab.cli.common import emit, json_option, print_line, run_argument, say


@click.command()
@run_argument
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the files.")
@click.option("--raw", is_flag=True, help="The weights themselves instead of their moving average.")
@json_option
def export(run: str, out: Path, raw: bool, as_json: bool) -> None:
    """Write RUN's weights as safetensors, with the spec that rebuilds the network, and its tokeniser if it has one."""
    from ditlab.interface.run import open_run

    exported = open_run(run, warn=say).export(out, averaged=not raw)
    for file in exported.files:
        print_line(file, as_json)
    emit(exported.to_dict(), as_json)
